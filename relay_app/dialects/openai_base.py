"""What all OpenAI endpoints share: errors, the list of models, how usage is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson

from relay_app.core.types import Call, Usage
from relay_app.dialects.base import BodyError, ErrorParts, with_model_field

# What OpenAI calls errors of these statuses; others are `server_error` or, below 500,
# `invalid_request_error`.
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

# Counts above this are nonsense that no database column would take.
MAX_TOKENS = 2**31 - 1

INPUT_NAMES = ("input_tokens", "prompt_tokens")
OUTPUT_NAMES = ("output_tokens", "completion_tokens")
DETAILS_NAMES = ("input_tokens_details", "prompt_tokens_details", "input_token_details")


class OpenAIDialect:
    """Base of the OpenAI dialects."""

    family = "openai"
    stream_end = b""
    ends_cleanly = False
    request_id_header = ""

    def with_model(self, call: Call, model: str) -> Call:
        return with_model_field(call, model)

    def model_list(self, names: Sequence[str]) -> bytes:
        return orjson.dumps({"object": "list", "data": [_card(name) for name in names]})

    def model_card(self, name: str) -> bytes:
        return orjson.dumps(_card(name))

    def error_body(self, parts: ErrorParts) -> bytes:
        return dumped({"error": error_object(parts)})

    def error_event(self, parts: ErrorParts) -> bytes:
        return b"data: " + self.error_body(parts) + b"\n\n"


def error_object(parts: ErrorParts) -> dict[str, Any]:
    """Return an error as OpenAI writes it."""
    default = "server_error" if parts.status >= 500 else "invalid_request_error"
    return {
        "message": parts.message,
        "type": parts.type or TYPES.get(parts.status, default),
        "param": parts.param,
        "code": parts.code,
    }


def dumped(document: dict[str, Any]) -> bytes:
    """Return the document as JSON, also with lone surrogates: upstreams' texts hold them."""
    try:
        return orjson.dumps(document)
    except TypeError:
        return json.dumps(document).encode()


def checked_model(model: str | None, *, default: str = "") -> str:
    """Return the model's name, the API's own default if none is given; raise BodyError."""
    if model is None and not default:
        raise BodyError("model is missing", param="model")
    if model is not None and not model.strip():
        raise BodyError("model: the name is empty", param="model")
    return model or default


def read_object(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object, or None when `data` is none.

    The standard parser reads what the fast one refuses, such as lone surrogates.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
    return document if isinstance(document, dict) else None


def usage_in(document: dict[str, Any]) -> Usage | None:
    """Return the tokens that `document` reports under any of the names in use, else None.

    Rerankers report a total only: all of it is input. Cohere tells its counts in `meta`.
    """
    meta = object_in(document, "meta")
    usage = (
        object_in(document, "usage") or object_in(meta, "tokens") or object_in(meta, "billed_units")
    )
    known = {*INPUT_NAMES, *OUTPUT_NAMES, "total_tokens"}
    if known.isdisjoint(usage):
        return None
    input_tokens, output_tokens = _first(usage, INPUT_NAMES), _first(usage, OUTPUT_NAMES)
    if not input_tokens and not output_tokens:
        input_tokens = count(usage.get("total_tokens"))
    details = [object_in(usage, name) for name in DETAILS_NAMES]
    cached = max(count(found.get("cached_tokens")) for found in details)
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached)


def count(value: object) -> int:
    """Return `value` as a count within what a column takes; 0 for what is no number."""
    if not isinstance(value, int | float) or not value > 0:  # a NaN is not above 0 either
        return 0
    return int(min(value, MAX_TOKENS))


def object_in(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object in this field, empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def text_in(document: dict[str, Any], name: str) -> str:
    """Return the string in this field, empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "relay"}


def _first(usage: dict[str, Any], names: Sequence[str]) -> int:
    return next((found for name in names if (found := count(usage.get(name)))), 0)
