"""The operations of a `param_override`: read from the channel's setting, done to a body. Pure.

Their names and meanings are New API's. What a client left out is not the channel's fault:
an operation on a missing place does nothing (`set`, `append` and `prepend` make it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
from relay_app.core.override_texts import (
    Substitution,
    in_parts,
    is_text_part,
    read_pattern,
    replaced,
)
from relay_app.core.override_work import Allowance, OverrideError, Weights

MAX_OPERATIONS = 100
_KEYS = frozenset({"mode", "path", "value", "keep_origin", "from", "to", "conditions", "logic"})


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
        read_pattern(source)
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
    weight, allowance = Weights().of([*op.path, op.value]), Allowance()

    def to(old: Any) -> Any:
        if op.keep_origin and old is not MISSING:
            return old
        allowance.take(weight)
        return op.value

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
    """Add `value` to a list, a text or an object, at its end or in front; what it can't be added
    to stays as it is."""
    is_append, value = op.mode == "append", op.value
    weight, allowance = Weights().of([*op.path, value]), Allowance()

    def to(old: Any) -> Any:
        if old is MISSING or old is None:
            allowance.take(weight)
            return value
        allowance.take(weight)
        if isinstance(value, str) and _are_parts(old):
            return _with_more_text(old, to, is_append=is_append)
        if isinstance(old, list):
            more = value if isinstance(value, list) else [value]
            return [*old, *more] if is_append else [*more, *old]
        if isinstance(old, str) and isinstance(value, str):
            return old + value if is_append else value + old
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            return {**value, **old} if op.keep_origin else {**old, **value}
        return old

    return change(document, op.path, to, makes=EACH not in op.path)


def _are_parts(node: Any) -> bool:
    """Return whether `node` is the content of a message, rather than a list of texts."""
    return isinstance(node, list) and bool(node) and all(isinstance(p, Mapping) for p in node)


def _with_more_text(parts: list[Any], to: Callable[[str], str], *, is_append: bool) -> list[Any]:
    """Return `parts` with `to` done to the last text, or the first one; the same if none is."""
    places = [place for place, part in enumerate(parts) if is_text_part(part)]
    if not places:
        return parts
    place = places[-1 if is_append else 0]
    return [*parts[:place], *in_parts([parts[place]], to), *parts[place + 1 :]]


def _replace(document: Any, op: Operation) -> Any:
    allowance = Allowance()
    return _change_text(
        document, op, lambda old: replaced(old, op.source, op.target, allowance=allowance)
    )


def _regex_replace(document: Any, op: Operation) -> Any:
    return _change_text(
        document, op, Substitution(op.source, op.target, allowance=Allowance()).done_to
    )


def _change_text(document: Any, op: Operation, to: Callable[[str], str]) -> Any:
    """Return `document` with `to` done to texts, also those in a list; all else stays."""

    def one(old: str) -> str:
        new = to(old)
        return old if new == old else new

    def changed(old: Any) -> Any:
        if isinstance(old, list):
            return in_parts(old, one)
        return one(old) if isinstance(old, str) else old

    return change(document, op.path, changed)


def _return_error(_: Any, op: Operation) -> Any:
    raise AskedError(op.value)


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
