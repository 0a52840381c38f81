"""What all OpenAI endpoints share: errors, the list of models, how usage is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson

from relay_app.core.types import Call
from relay_app.dialects.base import BodyError, ErrorParts, with_model_field

# What OpenAI calls errors of these statuses; others are `server_error` or, below 500,
# `invalid_request_error`.
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


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


def read_json(data: bytes) -> Any:
    """Return the value, None when `data` is no JSON.

    The standard parser reads what the fast one refuses, such as lone surrogates.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None


def read_object(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object, or None when `data` is none."""
    document = read_json(data)
    return document if isinstance(document, dict) else None


def text_in(document: dict[str, Any], name: str) -> str:
    """Return the string in this field, empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "relay"}
