"""When an operation of a `param_override` applies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relay_app.core.override_paths import Path, PathError, find, read_path

_KEYS = frozenset({"path", "mode", "value", "invert", "pass_missing_key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Compares what stands at `path` of the body, else of the context, with `value`."""

    path: Path
    mode: str = "full"
    value: Any = None
    invert: bool = False
    pass_missing_key: bool = False

    def holds(self, document: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
        """Return whether it is so; where `*` finds several values, for any of them."""
        found = find(document, self.path) or find(context, self.path)
        if not found:
            return self.pass_missing_key
        return any(_COMPARE[self.mode](one, self.value) for one in found) is not self.invert


def read_conditions(raw: object) -> tuple[Condition, ...]:
    """Return the conditions in a list, or in the short form {path: value}; raise ValueError."""
    if raw is None:
        return ()
    if isinstance(raw, Mapping) and "path" not in raw:
        return tuple(Condition(path=read_path(path), value=value) for path, value in raw.items())
    entries = [raw] if isinstance(raw, Mapping) else raw
    if not isinstance(entries, list | tuple):
        raise PathError('conditions is a list like [{"path": "model", "value": "gpt-4o"}]')
    return tuple(_read_condition(entry) for entry in entries)


def _read_condition(raw: object) -> Condition:
    if not isinstance(raw, Mapping):
        raise PathError('a condition is an object like {"path": "model", "value": "gpt-4o"}')
    if unknown := sorted(map(str, raw.keys() - _KEYS)):
        raise PathError(f"unknown key {unknown[0]!r} in a condition")
    mode, value = raw.get("mode", "full"), raw.get("value")
    if mode not in _COMPARE:
        raise PathError(f"unknown mode {mode!r} of a condition; known: {', '.join(_COMPARE)}")
    if mode in _NUMERIC and _number(value) is None:
        raise PathError(f"mode {mode} of a condition compares with a number, not {value!r}")
    if mode not in _NUMERIC and mode != "full" and not isinstance(value, str):
        raise PathError(f"mode {mode} of a condition compares with a text, not {value!r}")
    return Condition(
        path=read_path(raw.get("path")),
        mode=mode,
        value=value,
        invert=_flag(raw, "invert"),
        pass_missing_key=_flag(raw, "pass_missing_key"),
    )


def _flag(raw: Mapping[str, Any], name: str) -> bool:
    value = raw.get(name, False)
    if not isinstance(value, bool):
        raise PathError(f"{name} is true or false, not {value!r}")
    return value


def _is_same(found: Any, wanted: Any) -> bool:
    """Return whether both are the same JSON value; 1 and 1.0 are, 1 and true are not."""
    return isinstance(found, bool) is isinstance(wanted, bool) and bool(found == wanted)


def _contains(found: Any, wanted: str) -> bool:
    if isinstance(found, list):
        return wanted in found
    return isinstance(found, str) and wanted in found


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[Any, Any], bool]:
    def compared(found: Any, wanted: Any) -> bool:
        number = _number(found)
        return number is not None and compare(number, wanted)

    return compared


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "full": _is_same,
    "prefix": lambda found, wanted: isinstance(found, str) and found.startswith(wanted),
    "suffix": lambda found, wanted: isinstance(found, str) and found.endswith(wanted),
    "contains": _contains,
    "gt": _ordered(lambda found, wanted: found > wanted),
    "gte": _ordered(lambda found, wanted: found >= wanted),
    "lt": _ordered(lambda found, wanted: found < wanted),
    "lte": _ordered(lambda found, wanted: found <= wanted),
}
_NUMERIC = frozenset({"gt", "gte", "lt", "lte"})
