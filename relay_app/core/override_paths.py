"""Dotted paths into a JSON document: read, and change without touching the original. Pure.

`a.b` is a field, `a.0` and `a.-1` are places in a list, `*` is each of its entries or
fields; `\\.` is a dot in a name. A change shares all that it leaves as it is with the
original, so what is the same object afterwards was not changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

MAX_STEPS = 32
EACH = "*"

_STEP = re.compile(r"(?:\\.|[^.\\])+")
_INDEX = re.compile(r"-?\d{1,9}")

Path: TypeAlias = tuple[str, ...]


class Missing(Enum):
    """What a path that leads nowhere finds; a change that returns it takes the place away."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


class PathError(ValueError):
    """A path that can't be read, or that does not fit the document; the text says why."""


def read_path(text: object) -> Path:
    """Return the steps of a path; raise PathError."""
    if not isinstance(text, str) or not text:
        raise PathError("a path is a text like messages.-1.content")
    steps = tuple(_STEP.findall(text))
    if len(steps) > MAX_STEPS or text != ".".join(steps):
        raise PathError(f"{text[:100]!r} is not a path like messages.-1.content")
    return tuple(re.sub(r"\\(.)", r"\1", step) for step in steps)


def find(node: Any, path: Path) -> list[Any]:
    """Return what stands at `path`: nothing, one value, or with `*` several."""
    if not path:
        return [node]
    step, rest = path[0], path[1:]
    if step == EACH:
        inner = node.values() if isinstance(node, Mapping) else node
        if not isinstance(node, Mapping | list):
            return []
        return [value for one in inner for value in find(one, rest)]
    if isinstance(node, Mapping):
        return find(node[step], rest) if step in node else []
    if isinstance(node, list):
        place = _place(step, len(node))
        return [] if place is None or place >= len(node) else find(node[place], rest)
    return []


def change(node: Any, path: Path, to: Callable[[Any], Any], *, makes: bool = False) -> Any:
    """Return `node` with `to(old)` at `path`; `old` is MISSING where nothing stands.

    With `makes` objects on the way are made, and one entry behind the end of a list; without
    it nothing happens where the way ends. Raises PathError when a `makes` way leads into a
    text or number, or by a name into a list.
    """
    if not path:
        return to(node)
    step, rest = path[0], path[1:]
    if step == EACH:
        return _change_each(node, rest, to, makes=makes)
    if node is MISSING and makes:
        node = {}
    if isinstance(node, Mapping):
        old = node.get(step, MISSING)
        new = change(old, rest, to, makes=makes)
        return node if new is old else _with(node, step, new)
    if isinstance(node, list):
        return _change_entry(node, path, to, makes=makes)
    if makes:
        raise PathError(f"{step!r} is to be set in what is neither an object nor a list")
    return node


def _change_entry(node: list[Any], path: Path, to: Callable[[Any], Any], *, makes: bool) -> Any:
    place = _place(path[0], len(node))
    if place is None and makes and _INDEX.fullmatch(path[0]) is None:
        raise PathError(f"{path[0]!r} is to be set in a list, which has numbers for places")
    if place is None or (place == len(node) and not makes):
        return node
    old = node[place] if place < len(node) else MISSING
    new = change(old, path[1:], to, makes=makes)
    if new is old:
        return node
    return [*node[:place], *([] if new is MISSING else [new]), *node[place + 1 :]]


def _change_each(node: Any, rest: Path, to: Callable[[Any], Any], *, makes: bool) -> Any:
    if isinstance(node, Mapping):
        changed = {name: change(value, rest, to, makes=makes) for name, value in node.items()}
        if all(value is node[name] for name, value in changed.items()):
            return node
        return {name: value for name, value in changed.items() if value is not MISSING}
    if isinstance(node, list):
        entries = [change(value, rest, to, makes=makes) for value in node]
        if all(new is old for new, old in zip(entries, node, strict=True)):
            return node
        return [value for value in entries if value is not MISSING]
    return node


def _with(node: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return `node` with the field set, where it stood if it did, or without it."""
    if value is MISSING:
        return {key: old for key, old in node.items() if key != name}
    return {**node, name: value}


def _place(step: str, length: int) -> int | None:
    """Return the place that `step` names in a list: up to one behind its end; else None."""
    if _INDEX.fullmatch(step) is None:
        return None
    place = int(step)
    place = place + length if place < 0 else place
    return place if 0 <= place <= length else None
