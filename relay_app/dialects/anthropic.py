"""The Anthropic messages dialect: requests, answers, stream events, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
import orjson

from billing_app.core.usage import MAX_TOKENS, Usage
from relay_app.core.error_body import read_error
from relay_app.core.types import AnswerFacts, Call, EventFacts
from relay_app.dialects.base import (
    BodyError,
    Envelope,
    ErrorParts,
    Incoming,
    count_in,
    decode_envelope,
    with_model_field,
)
from relay_app.dialects.written import text_bytes, written_bytes

# What Anthropic calls errors of these statuses; others are `api_error` or, below 500,
# `invalid_request_error`.
TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

# Types of an upstream that clients of this dialect know; any other is told by its status.
KNOWN_TYPES = frozenset(
    {
        *TYPES.values(),
        "api_error",
        "invalid_request_error",
        "memory_path_conflict_error",
        "memory_precondition_failed_error",
    }
)

# An end for one of these reasons is an answer even without content.
CUT_SHORT = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})

# Blocks that begin empty and are filled by deltas, and where they would be filled already.
# Blocks of any other kind (tools, their results, redacted thinking) say something at once.
FILLED_LATER = {"text": ("text",), "thinking": ("thinking", "signature")}
# Fields of deltas that hold what the model wrote.
TEXTS = frozenset({"text", "thinking", "partial_json", "content"})
# Says that another model took over, nothing of the answer.
NOTICES = frozenset({"fallback"})

# What many events of a stream say; it is frozen, so one serves all.
NOTHING = EventFacts()

# Events that carry nothing.
SIGNALS = frozenset({"ping", "content_block_stop", "message_stop"})

# The API's own value where a model's date is not known.
UNKNOWN_TIME = "1970-01-01T00:00:00Z"


class _Request(msgspec.Struct):
    model: str
    messages: list[msgspec.Raw]
    stream: bool | None = None
    max_tokens: msgspec.Raw = msgspec.Raw(b"")

    @property
    def output_limit(self) -> int:
        return count_in(self.max_tokens)


_decode_request = msgspec.json.Decoder(_Request)


class AnthropicMessages:
    """POST /v1/messages."""

    family = "anthropic"
    ends_cleanly = True
    stream_end = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    request_id_header = "request-id"

    def read_request(self, incoming: Incoming) -> Envelope:
        request: _Request = decode_envelope(_decode_request, incoming.body)
        if not request.model.strip():
            raise BodyError("model: the name is empty", param="model")
        return Envelope(
            model=request.model,
            is_stream=bool(request.stream),
            max_output_tokens=request.output_limit,
        )

    def with_model(self, call: Call, model: str) -> Call:
        return with_model_field(call, model)

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        answer = _read(body)
        if answer is None:
            return AnswerFacts(is_readable=False, is_error=read_error(body).is_error)
        has_content = _has_content(answer.get("content"))
        if not has_content and read_error(body).is_error:
            return AnswerFacts(is_error=True)
        usage = _usage(answer.get("usage"))
        is_spent = usage is not None and usage.output_tokens > 0
        is_answer = has_content or is_spent or _text(answer.get("stop_reason")) in CUT_SHORT
        return AnswerFacts(
            is_empty=not is_answer,
            model=_text(answer.get("model")),
            usage=usage,
            output_bytes=written_bytes(answer.get("content")) if usage is None else 0,
        )

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        if data is None:
            return NOTHING
        event = _read(data)
        if event is None:
            is_error = name == b"error" or read_error(data).is_error
            return EventFacts(is_error=is_error, is_malformed=not is_error)
        kind = _text(event.get("type")) or name.decode("ascii", "replace")
        if name == b"error" or kind == "error" or event.get("error"):
            return EventFacts(is_error=True)
        read = READERS.get(kind)
        if read is not None:
            return read(event)
        if kind in SIGNALS:
            return EventFacts(is_last=kind == "message_stop")
        return EventFacts(is_error=read_error(data).is_error)  # anything new is passed on

    def model_list(self, names: Sequence[str]) -> bytes:
        document = {
            "data": [_card(name) for name in names],
            "has_more": False,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }
        return orjson.dumps(document)

    def model_card(self, name: str) -> bytes:
        return orjson.dumps(_card(name))

    def error_body(self, parts: ErrorParts) -> bytes:
        problem: dict[str, object] = {"type": _type_of(parts), "message": parts.message}
        if parts.code:
            problem["details"] = {"error_code": parts.code}
        document: dict[str, object] = {"type": "error", "error": problem}
        if parts.request_id:
            document["request_id"] = parts.request_id
        try:
            return orjson.dumps(document)
        except TypeError:  # an upstream's text may hold lone surrogates
            return json.dumps(document).encode()

    def error_event(self, parts: ErrorParts) -> bytes:
        return b"event: error\ndata: " + self.error_body(parts) + b"\n\n"


class AnthropicCount(AnthropicMessages):
    """POST /v1/messages/count_tokens: how long a message would be, nothing generated."""

    def read_request(self, incoming: Incoming) -> Envelope:
        return replace(super().read_request(incoming), is_stream=False, max_output_tokens=0)

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        answer = _read(body)
        if answer is None or read_error(body).is_error:
            return AnswerFacts(is_readable=answer is not None, is_error=read_error(body).is_error)
        return AnswerFacts()


def _card(name: str) -> dict[str, object]:
    return {"type": "model", "id": name, "display_name": name, "created_at": UNKNOWN_TIME}


def _type_of(parts: ErrorParts) -> str:
    if parts.type in KNOWN_TYPES:
        return parts.type
    default = "api_error" if parts.status >= 500 else "invalid_request_error"
    return TYPES.get(parts.status, default)


def _read(data: bytes) -> dict[str, Any] | None:
    """Return the event or answer, or None when it is no JSON object.

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


def _beginning(event: dict[str, Any]) -> EventFacts:
    message = _object(event.get("message"))
    usage = _usage(message.get("usage"))
    if usage is not None:
        # The output counted here is a placeholder: nothing was generated yet.
        usage = replace(usage, output_tokens=0, reasoning_tokens=0)
    content = message.get("content")
    return EventFacts(
        is_meaningful=_has_content(content),
        output_bytes=written_bytes(content),
        model=_text(message.get("model")),
        usage=usage,
    )


def _block(event: dict[str, Any]) -> EventFacts:
    block = event.get("content_block")
    return _something(written_bytes(block)) if _says_something(block) else NOTHING


def _delta(event: dict[str, Any]) -> EventFacts:
    """Return what the fields but the type hold: text, thinking, JSON, ..."""
    for name, value in _object(event.get("delta")).items():
        if value and name != "type":
            is_text = name in TEXTS and isinstance(value, str)
            return _something(text_bytes(value) if is_text else 0)
    return NOTHING


@lru_cache(maxsize=1024)
def _something(size: int) -> EventFacts:
    return EventFacts(is_meaningful=True, output_bytes=size)


def _end(event: dict[str, Any]) -> EventFacts:
    """Return what a `message_delta` says: with a stop reason it is the proper end."""
    reason = _text(_object(event.get("delta")).get("stop_reason"))
    told = event.get("usage")
    usage = _usage(told)
    if usage is not None and not _count(_object(told).get("input_tokens")):
        usage = replace(usage, input_tokens=0)  # the beginning has told it
    return EventFacts(is_finish=bool(reason), is_normal_finish=reason not in CUT_SHORT, usage=usage)


READERS: Mapping[str, Callable[[dict[str, Any]], EventFacts]] = {
    "content_block_delta": _delta,
    "content_block_start": _block,
    "message_start": _beginning,
    "message_delta": _end,
}


def _has_content(content: object) -> bool:
    if isinstance(content, list):
        return any(_says_something(block) for block in content)
    return bool(content)


def _says_something(block: object) -> bool:
    """Return whether a content block carries a part of the answer as it stands."""
    if not isinstance(block, dict):
        return bool(block)
    kind = _text(block.get("type"))
    if kind in FILLED_LATER:
        return any(block.get(name) for name in FILLED_LATER[kind])
    return bool(block) and kind not in NOTICES


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    cached = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    by_life = _object(usage.get("cache_creation"))
    an_hour = _count(by_life.get("ephemeral_1h_input_tokens"))
    written = max(written, an_hour + _count(by_life.get("ephemeral_5m_input_tokens")))
    details = _object(usage.get("output_tokens_details"))
    return Usage(
        # What was read from a cache or written to one is told beside the input.
        input_tokens=min(_count(usage.get("input_tokens")) + cached + written, MAX_TOKENS),
        output_tokens=_count(usage.get("output_tokens")),
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=an_hour,
        reasoning_tokens=_count(details.get("thinking_tokens")),
    )


def _count(value: object) -> int:
    """Return `value` as a count within what a column takes; 0 for what is no number."""
    if not isinstance(value, int | float) or not value > 0:  # a NaN is not above 0 either
        return 0
    return int(min(value, MAX_TOKENS))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
