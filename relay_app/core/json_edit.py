"""Change fields of a JSON object and keep the bytes of all others. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode_items = msgspec.json.Decoder(list[msgspec.Raw])


def set_fields(body: bytes, values: Mapping[str, Any]) -> bytes:
    """Return the JSON object `body` with these top-level fields set.

    Other fields keep their order and, but for bodies that only the standard parser reads
    (lone surrogates), their bytes. Raises ValueError when `body` is no JSON object.
    """
    return join_fields({**split_fields(body), **values})


def split_fields(body: bytes) -> dict[str, Any]:
    """Return the top-level fields, each as the bytes that it has in `body` (`Raw`).

    Plain values where only the standard parser reads it. Raises ValueError.
    """
    try:
        return dict[str, Any](_decode_fields.decode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        document = json.loads(body.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("the body is no JSON object")
    return document


def split_items(body: bytes) -> list[bytes]:
    """Return the items of a JSON array, each as the bytes that it has in `body`.

    Written anew where only the standard parser reads it. Raises ValueError.
    """
    try:
        return [bytes(item) for item in _decode_items.decode(body)]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        items = json.loads(body.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if not isinstance(items, list):
        raise ValueError("the body is no JSON array")
    return [json.dumps(item).encode() for item in items]


def read_field(value: Any) -> Any:
    """Return the plain value of a field of `split_fields`; raise ValueError."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeError):
        return json.loads(bytes(value))
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None


def opened(fields: Mapping[str, Any], names: Collection[str] | None) -> dict[str, Any]:
    """Return `fields` with the named ones, or all, as plain values; raise ValueError."""
    return {
        name: read_field(value) if names is None or name in names else value
        for name, value in fields.items()
    }


def join_fields(fields: Mapping[str, Any]) -> bytes:
    """Return the JSON object of these fields, raw or plain; raise ValueError."""
    try:
        return msgspec.json.encode(fields)
    except UnicodeError:  # lone surrogates
        return json.dumps(opened(fields, None), allow_nan=False).encode()
    except (RecursionError, TypeError, OverflowError) as error:
        raise ValueError(f"the body can't be written as JSON: {error}") from None
