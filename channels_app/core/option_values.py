"""Values of options that are more than a number or a word. Pure.

Each reader takes what a file, form or column holds and returns an immutable value, or
raises ValueError saying what is wanted. Mappings may come as JSON text, as forms send them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any

from channels_app.core.types import TimeLimits

MAX_CHARS = 100_000
MAX_NAME = 200
MAX_SECONDS = 86_400
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


STRUCTURED: Mapping[str, Callable[[object], Any]] = {
    "lines": read_lines,
    "names": read_names,
    "model_lists": read_model_lists,
    "model_timeouts": read_model_timeouts,
}


def thawed(value: Any) -> Any:
    """Return `value` as JSON can hold it: mappings as dicts, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: thawed(inner) for key, inner in value.items()}
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
