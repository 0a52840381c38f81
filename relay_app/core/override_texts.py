"""Texts that the operations of a `param_override` rewrite, also in parts of messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import re2

from relay_app.core.override_work import Allowance, OverrideError

# A match takes some microseconds, in which nobody else is served. A prompt of 100 kB has no more.
MAX_MATCHES = 100_000
# What kinds of parts that are texts call themselves; Gemini's have no kind.
TEXT_KINDS = frozenset({"text", "input_text", "output_text", None})

# The bytes of UTF-8 that no character begins with.
_INNER = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))
_GROUP = re2.compile(rb"\$(?:\$|(\w+)|\{(\w+)\})")


def is_text_part(part: Any) -> bool:
    """Return whether an entry of a message's content is a text."""
    return (
        isinstance(part, Mapping)
        and isinstance(part.get("text"), str)
        and part.get("type") in TEXT_KINDS
        and not part.get("thought")
    )


def in_parts(parts: list[Any], to: Callable[[str], str]) -> list[Any]:
    """Return `parts` with `to` done to each text in it; the same list if that changes nothing."""
    changed = [_in_part(part, to) for part in parts]
    return parts if all(new is old for new, old in zip(changed, parts, strict=True)) else changed


def _in_part(part: Any, to: Callable[[str], str]) -> Any:
    if isinstance(part, str):
        return to(part)
    if not is_text_part(part):
        return part
    text = to(part["text"])
    return part if text is part["text"] else {**part, "text": text}


def replaced(text: str, source: str, target: str, *, allowance: Allowance) -> str:
    """Return `text` with each `source` replaced; the same one if there is none."""
    count = text.count(source)
    allowance.take(count * (len(target) - len(source)))
    return text.replace(source, target) if count else text


@lru_cache(maxsize=256)
def read_pattern(text: str) -> Any:
    """Return the regular expression; raise OverrideError."""
    options = re2.Options()
    options.log_errors = False  # it would write to stderr by itself
    try:
        return re2.compile(text.encode(), options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise OverrideError(f"from is no regular expression for RE2: {shown[:200]}") from None


class Substitution:
    """Replaces the matches of a pattern, in all texts of one operation.

    `$1` and `${name}` in the template are groups, as in Go; an unknown one is empty.
    """

    def __init__(self, pattern: str, template: str, *, allowance: Allowance) -> None:
        self._pattern = read_pattern(pattern)
        self._pieces = _read_template(pattern, template)
        self._allowance = allowance
        self._matches = 0

    def done_to(self, text: str) -> str:
        """Return `text` with each match replaced; raise OverrideError."""
        body = text.encode("utf-8", "surrogatepass")
        pieces, copied = [], 0
        for match in self._pattern.finditer(body):
            start, end = match.span()
            if start == end and body[start : start + 1] in _INNER:
                continue  # RE2 looks for empty matches between the bytes of a character, too
            self._matches += 1
            if self._matches > MAX_MATCHES:
                raise OverrideError(f"the regular expression matches more than {MAX_MATCHES} times")
            pieces += [body[copied:start], self._expanded(match, end - start)]
            copied = end
        if not pieces:
            return text
        return b"".join([*pieces, body[copied:]]).decode("utf-8", "surrogatepass")

    def _expanded(self, match: Any, length: int) -> bytes:
        """Return what takes the place of `match`, which is so long."""
        found = [one if isinstance(one, bytes) else match.group(one) or b"" for one in self._pieces]
        self._allowance.take(sum(map(len, found)) - length)
        return b"".join(found)


@lru_cache(maxsize=256)
def _read_template(pattern: str, template: str) -> tuple[bytes | int, ...]:
    """Return the texts and the numbers of groups that `template` is made of."""
    groups, names = read_pattern(pattern).groups, read_pattern(pattern).groupindex
    encoded = template.encode("utf-8", "surrogatepass")
    pieces: list[bytes | int] = []
    copied = 0
    for found in _GROUP.finditer(encoded):
        start, end = found.span()
        pieces.append(encoded[copied:start])
        copied = end
        name: bytes | None = found.group(1) or found.group(2)
        if name is None:
            pieces.append(b"$")
            continue
        number = int(name[:9]) if name.isdigit() else names.get(name)
        if number is not None and number <= groups:
            pieces.append(number)
    return tuple(piece for piece in (*pieces, encoded[copied:]) if piece != b"")
