"""The operations of a `param_override`: read from the channel's setting, done to a body. Pure.

Their names and meanings are New API's. What a client left out is not the channel's fault:
an operation on a missing place does nothing (`set`, `append` and `prepend` make it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import re2

from relay_app.core.override_conditions import Condition, read_conditions
from relay_app.core.override_paths import (
    EACH,
    MISSING,
    Path,
    PathError,
    change,
    find,
    read_path,
)

MAX_OPERATIONS = 100
# What a replacement may come to; requests are of megabytes.
MAX_TEXT_CHARS = 64 * 1024 * 1024
# RE2 needs linear time for each match, so the number of matches is bounded as well.
MAX_MATCHES = 10_000

_KEYS = frozenset({"mode", "path", "value", "keep_origin", "from", "to", "conditions", "logic"})


class OverrideError(ValueError):
    """A channel's setting that can't be used, or that does not fit the request."""


class AskedError(Exception):
    """A `return_error`: the request ends with this answer."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        super().__init__(asked["message"])
        self.message: str = asked["message"]
        self.status: int = asked["status_code"]
        self.code: str = asked["code"]
        self.type: str = asked["type"]
        self.skip_retry: bool = asked["skip_retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change. `source` and `target` are paths (move, copy) or texts (replace)."""

    mode: str
    path: Path = ()
    value: Any = None
    keep_origin: bool = False
    source: Any = None
    target: Any = None
    conditions: tuple[Condition, ...] = ()
    needs_all: bool = False
    # The names of fields of the body that it looks at or changes; None: any.
    heads: frozenset[str] | None = field(default=None)

    def applies(self, document: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
        """Return whether its conditions hold; without any it always applies."""
        held = (condition.holds(document, context) for condition in self.conditions)
        return not self.conditions or (all(held) if self.needs_all else any(held))

    def done_to(self, document: Any) -> Any:
        """Return `document` changed; raise PathError, OverrideError or AskedError."""
        return _DO[self.mode](document, self)


def read_operations(raw: object) -> tuple[Operation, ...]:
    """Return the operations in a list; raise OverrideError naming the first bad one."""
    if not isinstance(raw, list | tuple) or len(raw) > MAX_OPERATIONS:
        raise OverrideError(f"operations is a list of at most {MAX_OPERATIONS} objects")
    found = []
    for number, entry in enumerate(raw):
        try:
            found.append(_read_operation(entry))
        except (PathError, OverrideError) as error:
            raise OverrideError(f"operations[{number}]: {error}") from None
    return tuple(found)


def _read_operation(raw: object) -> Operation:
    if not isinstance(raw, Mapping):
        raise OverrideError('wanted an object like {"mode": "set", "path": "top_p", "value": 1}')
    if unknown := sorted(map(str, raw.keys() - _KEYS)):
        raise OverrideError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    mode, logic = raw.get("mode"), raw.get("logic", "OR")
    if not isinstance(mode, str) or mode not in _DO:
        raise OverrideError(f"unknown mode {mode!r}; known: {', '.join(_DO)}")
    if not isinstance(logic, str) or logic.upper() not in {"AND", "OR"}:
        raise OverrideError(f"logic is AND or OR, not {logic!r}")
    if not isinstance(keep_origin := raw.get("keep_origin", False), bool):
        raise OverrideError(f"keep_origin is true or false, not {keep_origin!r}")
    conditions = read_conditions(raw.get("conditions"))
    parts = _READ.get(mode, _read_place)(raw)
    return Operation(
        mode=mode,
        keep_origin=keep_origin,
        conditions=conditions,
        needs_all=logic.upper() == "AND",
        heads=_heads(parts, conditions),
        **parts,
    )


def _heads(parts: Mapping[str, Any], conditions: tuple[Condition, ...]) -> frozenset[str] | None:
    ways = [way for way in parts.values() if isinstance(way, tuple) and way]
    ways += [condition.path for condition in conditions]
    heads = frozenset(way[0] for way in ways)
    return None if EACH in heads else heads


# -- what each mode is made of -------------------------------------------------------


def _read_place(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"path": _writable(raw.get("path"))}


def _read_value(raw: Mapping[str, Any]) -> dict[str, Any]:
    if "value" not in raw:
        raise OverrideError("value is missing")
    return {"path": _writable(raw.get("path")), "value": raw["value"]}


def _read_way(raw: Mapping[str, Any]) -> dict[str, Any]:
    source, target = _writable(raw.get("from")), _writable(raw.get("to"))
    if EACH in source or EACH in target:
        raise OverrideError("from and to name one place each, without *")
    return {"source": source, "target": target}


def _read_texts(raw: Mapping[str, Any]) -> dict[str, Any]:
    source, target = raw.get("from"), raw.get("to", "")
    if not isinstance(source, str) or not source or not isinstance(target, str):
        raise OverrideError("from and to are texts, the first not empty")
    if raw["mode"] == "regex_replace":
        _pattern(source)
    return {"path": _writable(raw.get("path")), "source": source, "target": target}


def _read_error(raw: Mapping[str, Any]) -> dict[str, Any]:
    value = raw.get("value")
    told = {"message": value} if isinstance(value, str) else value
    if not isinstance(told, Mapping) or not isinstance(told.get("message"), str):
        raise OverrideError('value is an object like {"message": "no", "status_code": 400}')
    asked = {
        "status_code": 400,
        "code": "invalid_request",
        "type": "invalid_request_error",
        "skip_retry": True,
        **told,
    }
    status = asked["status_code"]
    if not isinstance(status, int) or isinstance(status, bool) or not 400 <= status <= 599:
        raise OverrideError(f"status_code is a status from 400 to 599, not {status!r}")
    if not isinstance(asked["code"], str) or not isinstance(asked["type"], str):
        raise OverrideError("code and type are texts")
    if asked["code"].startswith("channel:"):
        raise OverrideError("code can't be one of the relay's own, channel:...")
    if not isinstance(asked["skip_retry"], bool):
        raise OverrideError("skip_retry is true or false")
    return {"value": asked}


def _writable(text: object) -> Path:
    """Return the path, unless it leads to `stream`: the form of the answer is the client's."""
    path = read_path(text)
    if path[0] in {"stream", EACH}:
        raise OverrideError(f"{path[0]} can't be changed: clients would get another kind of answer")
    return path


# -- what each mode does -------------------------------------------------------------


def _set(document: Any, op: Operation) -> Any:
    def to(old: Any) -> Any:
        return old if op.keep_origin and old is not MISSING else op.value

    return change(document, op.path, to, makes=True)


def _delete(document: Any, op: Operation) -> Any:
    return change(document, op.path, lambda _: MISSING)


def _copy(document: Any, op: Operation) -> Any:
    found = find(document, op.source)
    if not found or (op.keep_origin and find(document, op.target)):
        return document
    return change(document, op.target, lambda _: found[0], makes=True)


def _move(document: Any, op: Operation) -> Any:
    found = find(document, op.source)
    if not found or (op.keep_origin and find(document, op.target)):
        return document
    rest = change(document, op.source, lambda _: MISSING)
    return change(rest, op.target, lambda _: found[0], makes=True)


def _join(document: Any, op: Operation) -> Any:
    """Add `value` to a list, a text or an object, at its end or in front."""
    is_append, value = op.mode == "append", op.value

    def to(old: Any) -> Any:
        if old is MISSING or old is None:
            return value
        if isinstance(old, list):
            more = value if isinstance(value, list) else [value]
            return [*old, *more] if is_append else [*more, *old]
        if isinstance(old, str) and isinstance(value, str):
            return old + value if is_append else value + old
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            return {**value, **old} if op.keep_origin else {**old, **value}
        raise OverrideError(f"{_kind(value)} can't be joined to {_kind(old)}")

    return change(document, op.path, to, makes=EACH not in op.path)


def _replace(document: Any, op: Operation) -> Any:
    def to(old: str) -> str:
        growth = old.count(op.source) * (len(op.target) - len(op.source))
        if len(old) + growth > MAX_TEXT_CHARS:
            raise OverrideError("the replaced text would be too large")
        return old.replace(op.source, op.target)

    return _change_text(document, op, to)


def _regex_replace(document: Any, op: Operation) -> Any:
    pattern = _pattern(op.source)
    return _change_text(document, op, lambda old: _substituted(pattern, op.target, old))


def _change_text(document: Any, op: Operation, to: Callable[[str], str]) -> Any:
    def changed(old: Any) -> Any:
        if old is MISSING or old is None:
            return old
        if not isinstance(old, str):
            raise OverrideError(f"{op.mode} works on a text and found {_kind(old)}")
        new = to(old)
        return old if new == old else new

    return change(document, op.path, changed)


def _return_error(_: Any, op: Operation) -> Any:
    raise AskedError(op.value)


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    return kinds.get(type(value), "nothing" if value is None else "a number")


@lru_cache(maxsize=256)
def _pattern(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False  # it would write to stderr by itself
    try:
        return re2.compile(text.encode(), options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise OverrideError(f"from is no regular expression for RE2: {shown[:200]}") from None


def _substituted(pattern: Any, template: str, text: str) -> str:
    """Return `text` with each match replaced; `$1` and `${name}` in `template` are groups."""
    body = text.encode("utf-8", "surrogatepass")
    pieces, copied, size = [], 0, 0
    for number, match in enumerate(pattern.finditer(body)):
        if match.start() == match.end() and body[match.start() : match.end() + 1] in _INNER:
            continue  # RE2 looks for empty matches between the bytes of a character, too
        piece = _expanded(template.encode("utf-8", "surrogatepass"), match)
        size += len(piece)
        if number >= MAX_MATCHES or size > MAX_TEXT_CHARS:
            raise OverrideError("the regular expression matches too often")
        pieces += [body[copied : match.start()], piece]
        copied = match.end()
    return b"".join([*pieces, body[copied:]]).decode("utf-8", "surrogatepass")


# The bytes of UTF-8 that no character begins with.
_INNER = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))
_GROUP = re2.compile(rb"\$(?:\$|(\w+)|\{(\w+)\})")


def _expanded(template: bytes, match: Any) -> bytes:
    """Return `template` with its groups filled in, as Go does it; an unknown one is empty."""

    def value(found: Any) -> bytes:
        name: bytes | None = found.group(1) or found.group(2)
        if name is None:
            return b"$"
        try:
            return match.group(int(name) if name.isdigit() else name) or b""
        except (IndexError, KeyError, re2.error):
            return b""

    return template if b"$" not in template else bytes(_GROUP.sub(value, template))


_DO: Mapping[str, Callable[[Any, Operation], Any]] = {
    "set": _set,
    "delete": _delete,
    "move": _move,
    "copy": _copy,
    "append": _join,
    "prepend": _join,
    "replace": _replace,
    "regex_replace": _regex_replace,
    "return_error": _return_error,
}
_READ: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "set": _read_value,
    "move": _read_way,
    "copy": _read_way,
    "append": _read_value,
    "prepend": _read_value,
    "replace": _read_texts,
    "regex_replace": _read_texts,
    "return_error": _read_error,
}
