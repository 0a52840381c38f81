"""How much the operations of a `param_override` may build, weighed as JSON text. Pure.

A document that shares parts with itself is small in memory and large when it is written, so
each part counts as often as it stands there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

# What all operations of a request may add to it; requests are of megabytes.
MAX_GROWTH = 64 * 1024 * 1024
# Rough lengths of what is no text, with the marks around it.
_SCALAR_CHARS = 8
_MARK_CHARS = 4


class OverrideError(ValueError):
    """A channel's setting that can't be used, or that does not fit the request."""


class Allowance:
    """What one operation may still add, to be asked before anything is built."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_GROWTH

    def take(self, chars: int) -> None:
        """Count `chars` more, if they are; raise OverrideError when there is no room."""
        self._left -= max(0, chars)
        if self._left < 0:
            raise OverrideError("the request would become too large")


class Weights:
    """Weighs documents, each object and list once: they are kept, and never change."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, node: Any) -> int:
        """Return about how many characters `node` has as JSON; raise OverrideError."""
        try:
            return self._of(node)
        except RecursionError:
            raise OverrideError("the request would be nested too deeply") from None

    def check(self, new: Any, *, before: Any) -> None:
        """Raise OverrideError if `new` is larger than `before` by more than is allowed."""
        if new is not before and self.of(new) - self.of(before) > MAX_GROWTH:
            raise OverrideError("the request would become too large")

    def _of(self, node: Any) -> int:
        if isinstance(node, str | msgspec.Raw):
            return len(node) + _MARK_CHARS
        if isinstance(node, int):
            return _SCALAR_CHARS + node.bit_length() // 3
        if not isinstance(node, list | Mapping):
            return _SCALAR_CHARS
        known = self._known.get(id(node))
        if known is None:
            weight = _MARK_CHARS + sum(map(self._of, node))
            if isinstance(node, Mapping):
                weight += sum(map(self._of, node.values()))
            known = self._known[id(node)] = node, weight
        return known[1]
