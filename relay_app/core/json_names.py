"""Names that stand twice in one JSON object: readers disagree about which one counts. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

# What stands between two values of an object, and the name in it.
_NAME = re.compile(rb'[ \t\r\n]*([{,])[ \t\r\n]*"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*')
_END = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*\Z")


def repeated_name(body: bytes) -> tuple[str, int] | None:
    """Return the first name that the JSON object `body` gives more than once, and how often.

    Names are compared as they are meant, however they are spelled, and without case: some
    readers take `Model` for `model`. None when there is none, or when it is no object.
    Raises ValueError for what is no JSON, RecursionError where it is nested too deeply.
    """
    try:
        fields = _decode_fields.decode(body)
    except (msgspec.MsgspecError, UnicodeError):
        return _counted(body)
    # What the names and values that were read come to, written without a space. A body that is
    # not longer holds no others.
    length = 1
    for name, value in fields.items():
        length += 4 + len(name) + len(value)
    if (length != len(body) and not _is_all(body, fields)) or not _are_lower(fields):
        return _counted(body)
    return None


def json_pairs(body: bytes) -> Any:
    """Return the JSON document with tuples of (name, value) for objects: nothing is lost where
    a name stands twice.

    Whatever any reader takes is read, be it broken UTF-8 or numbers without end (as floats).
    Raises ValueError or RecursionError.
    """
    text = body.decode("utf-8-sig", "replace")
    return json.loads(text, object_pairs_hook=tuple, parse_int=float, strict=False)


def _is_all(body: bytes, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether `body` is these fields in their order and white space, nothing else."""
    at, mark = 0, b"{"
    for name, value in fields.items():
        found = _NAME.match(body, at)
        if found is None or found[1] != mark or found[2] != name.encode():
            return False
        if not body.startswith(bytes(value), found.end()):
            return False
        at, mark = found.end() + len(value), b","
    return _END.match(body, at) is not None


def _are_lower(names: Mapping[str, object]) -> bool:
    """Return whether no two names can be the same but for their case; False: perhaps not."""
    joined = "".join(names)
    if joined.isascii() and (joined.islower() or not joined):
        return True
    return len({name.casefold() for name in names}) == len(names)


def _counted(body: bytes) -> tuple[str, int] | None:
    """Return the same by reading all of it."""
    document = json_pairs(body)
    if not isinstance(document, tuple):
        return None
    names = [name for name, _ in document]
    counts = Counter(map(str.casefold, names))
    return next(((n, c) for n in names if (c := counts[n.casefold()]) > 1), None)
