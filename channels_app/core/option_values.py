"""Values of options that are more than a number or a word. Pure.

Each reader takes what a file, form or column holds and returns an immutable value, or
raises ValueError saying what is wanted. Mappings may come as JSON text, as forms send them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

from channels_app.core.types import TimeLimits

MAX_CHARS = 100_000
MAX_NAME = 200
MAX_SECONDS = 86_400
MAX_USD = 1_000_000
MAX_RATIO = 1_000
LIMIT_NAMES = tuple(field.name for field in fields(TimeLimits))


def read_lines(raw: object) -> tuple[str, ...]:
    """Return the texts of `raw`, one a line, each once; blank lines are left out."""
    if not isinstance(raw, str) or len(raw) > MAX_CHARS:
        raise ValueError(f"wanted a text of at most {MAX_CHARS} characters, one entry a line")
    return tuple(dict.fromkeys(line.strip() for line in raw.splitlines() if line.strip()))


def read_names(raw: object) -> tuple[str, ...]:
    """Return the names in a list, or in a text that separates them by commas or lines."""
    if isinstance(raw, str):
        raw = raw.replace(",", "\n").splitlines()
    if not isinstance(raw, list | tuple) or not all(isinstance(name, str) for name in raw):
        raise ValueError("wanted a list of names, such as [default, vip]")
    return tuple(dict.fromkeys(_name(name) for name in raw if name.strip()))


def read_model_lists(raw: object) -> Mapping[str, tuple[str, ...]]:
    """Return a mapping of models to lists of other models."""
    found = {}
    for model, listed in _mapping(raw, "{gpt-4o: [gpt-4o-mini]}").items():
        others = [listed] if isinstance(listed, str) else listed
        if not isinstance(others, list | tuple) or not all(isinstance(o, str) for o in others):
            raise ValueError(f"{model}: wanted a list of models, such as [gpt-4o-mini]")
        names = tuple(dict.fromkeys(_name(name) for name in others))
        if model in names:
            raise ValueError(f"{model}: it names itself")
        found[_name(model)] = names
    return MappingProxyType(found)


def read_model_timeouts(raw: object) -> Mapping[str, TimeLimits]:
    """Return a mapping of models (or prefixes and `*`) to their time limits in seconds."""
    found = {}
    for model, value in _mapping(raw, '{"o1*": {first_token: 300}}').items():
        limits = thawed(value)
        if not isinstance(limits, dict) or not limits:
            raise ValueError(f"{model}: wanted time limits, such as {{first_token: 300}}")
        if "*" in model[:-1]:
            raise ValueError(f"{model}: a * may stand at the end only")
        for name, seconds in limits.items():
            if name not in LIMIT_NAMES:
                raise ValueError(
                    f"{model}: unknown limit {name!r}; known: {', '.join(LIMIT_NAMES)}"
                )
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not is_number or not 0 <= seconds <= MAX_SECONDS:
                raise ValueError(f"{model}: {name} is not a number of seconds to {MAX_SECONDS}")
        found[_name(model)] = TimeLimits(**limits)
    return MappingProxyType(found)


def read_usd(raw: object) -> Decimal:
    """Return an amount of USD, exactly as it is written; nine decimals at most."""
    amount = _decimal(raw)
    if amount is None or not 0 <= amount <= MAX_USD or amount != round(amount, 9):
        raise ValueError(f"{raw!r} is no amount of USD from 0 to {MAX_USD}, such as 10 or 0.05")
    return amount


def read_ratio_tables(raw: object) -> Mapping[str, Mapping[str, Decimal]]:
    """Return a mapping of users' groups to what other groups cost them."""
    found = {}
    for user_group, table in _mapping(raw, '{"vip": {"default": "0.8"}}').items():
        ratios = thawed(table)
        if not isinstance(ratios, dict):
            raise ValueError(f"{user_group}: wanted groups and ratios, such as {{default: 0.8}}")
        found[_name(user_group)] = MappingProxyType(
            {_name(group): _ratio(group, ratio) for group, ratio in ratios.items()}
        )
    return MappingProxyType(found)


def _ratio(group: str, raw: object) -> Decimal:
    ratio = _decimal(raw)
    if ratio is None or not 0 <= ratio <= MAX_RATIO or ratio != round(ratio, 6):
        raise ValueError(f"{group}: {raw!r} is no ratio from 0 to {MAX_RATIO}, such as 0.8")
    return ratio


def _decimal(raw: object) -> Decimal | None:
    """Return a number as it is written; None if it is none. YAML and JSON read some as floats,
    whose text is what was written."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float | Decimal):
        return None
    try:
        value = Decimal(str(raw).strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


STRUCTURED: Mapping[str, Callable[[object], Any]] = {
    "lines": read_lines,
    "names": read_names,
    "model_lists": read_model_lists,
    "model_timeouts": read_model_timeouts,
    "usd": read_usd,
    "ratio_tables": read_ratio_tables,
}


def thawed(value: Any) -> Any:
    """Return `value` as JSON can hold it: mappings as dicts, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: thawed(inner) for key, inner in value.items()}
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, TimeLimits):
        return {name: limit for name, limit in asdict(value).items() if limit is not None}
    return [thawed(inner) for inner in value] if isinstance(value, tuple) else value


def _mapping(raw: object, example: str) -> Mapping[str, Any]:
    if isinstance(raw, str) and len(raw) <= MAX_CHARS:
        try:
            raw = json.loads(raw) if raw.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError(f"wanted JSON of a mapping, such as {example}") from None
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise ValueError(f"wanted a mapping, such as {example}")
    return raw


def _name(text: str) -> str:
    name = text.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ValueError(f"{text[:60]!r} is not a name of at most {MAX_NAME} characters")
    return name
