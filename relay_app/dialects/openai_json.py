"""The OpenAI endpoints without a conversation: embeddings, images, audio, moderations, rerank.

JSON or a form in; JSON, text, sound or events out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from billing_app.core.usage import MAX_TOKENS
from relay_app.core.error_body import read_error
from relay_app.core.multipart import FormError, is_form, read_fields, set_fields
from relay_app.core.types import AnswerFacts, Call, EventFacts
from relay_app.dialects.base import BodyError, Envelope, Incoming, decode_envelope
from relay_app.dialects.openai_base import OpenAIDialect, checked_model, read_object, text_in
from relay_app.dialects.openai_usage import object_in, usage_in
from relay_app.dialects.written import text_bytes

# Fields that hold what was asked for; the first two are lists that may not be empty.
LISTS = ("data", "results")
PAYLOADS = (*LISTS, "text", "segments", "audio_data")
# Fields of events that carry a piece of it.
CARRIERS = ("delta", "text", "audio", "b64_json", "url")
# The last words of event types that end an answer.
ENDS = frozenset({"done", "completed"})
# Types of events that end a picture.
PICTURES = frozenset({"image_generation.completed", "image_edit.completed"})
TRUE = frozenset({"true", "1"})


class _Request(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_format: msgspec.Raw = msgspec.Raw(b"")


_decode_request = msgspec.json.Decoder(_Request)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIJson(OpenAIDialect):
    """An endpoint that takes a JSON object.

    `default_model`: what the API uses if the client names none; empty: it must. `can_stream`:
    whether it knows streams. `has_any_type`: whether answers may be other than JSON.
    """

    default_model: str = ""
    can_stream: bool = False
    has_any_type: bool = False

    def read_request(self, incoming: Incoming) -> Envelope:
        request: _Request = decode_envelope(_decode_request, incoming.body)
        is_stream = bool(request.stream) or bytes(request.stream_format) == b'"sse"'
        return Envelope(
            model=checked_model(request.model, default=self.default_model),
            is_stream=self.can_stream and is_stream,
        )

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        is_other = self.has_any_type and not _is_json(content_type)
        may_be_json = not is_other or body.lstrip()[:1] == b"{"
        answer = read_object(body) if may_be_json else None
        if answer is not None:
            return _read_json(answer, body)
        if is_other:
            kind = content_type.lower()
            return AnswerFacts(
                is_empty=not body,
                is_readable=not kind.startswith("text/html"),
                output_bytes=len(body) if kind.startswith("text/") else 0,
            )
        return AnswerFacts(is_readable=False, is_error=read_error(body).is_error)

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        if data is None:
            return EventFacts()
        if data.strip() == b"[DONE]":
            return EventFacts(is_last=True, is_finish=True)
        event = read_object(data)
        if event is None:
            is_error = name == b"error" or read_error(data).is_error
            return EventFacts(is_error=is_error, is_malformed=not is_error)
        if name == b"error" or event.get("error") or text_in(event, "type") == "error":
            return EventFacts(is_error=True)
        kind = text_in(event, "type") or name.decode("ascii", "replace")
        is_finish = kind.rpartition(".")[2] in ENDS
        return EventFacts(
            is_meaningful=any(event.get(field) for field in CARRIERS),
            is_finish=is_finish,
            # Silence is written down as nothing.
            is_normal_finish=not kind.startswith("transcri"),
            # Each of several images has an end of its own.
            is_complete=is_finish and not kind.startswith("image"),
            output_bytes=text_bytes(text_in(event, "delta")),
            images=1 if kind in PICTURES else 0,
            seconds=_seconds_in(event),
            model=text_in(event, "model"),
            usage=usage_in(event),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIForm(OpenAIJson):
    """An endpoint that takes a multipart form with files, or JSON that says the same."""

    def read_request(self, incoming: Incoming) -> Envelope:
        if _is_json(incoming.content_type):
            return super(OpenAIForm, self).read_request(incoming)
        try:
            fields = read_fields(incoming.body, incoming.content_type)
        except FormError as error:
            raise BodyError(str(error)) from None
        model, stream = _one(fields, "model"), _one(fields, "stream")
        return Envelope(
            model=checked_model(model, default=self.default_model),
            is_stream=self.can_stream and (stream or "").lower() in TRUE,
        )

    def with_model(self, call: Call, model: str) -> Call:
        if not is_form(call.content_type):
            return super(OpenAIForm, self).with_model(call, model)
        body = set_fields(call.body, call.content_type, {"model": model})
        return replace(call, model=model, body=body)


def _one(fields: dict[str, list[str | None]], name: str) -> str | None:
    """Return the text of a field, None if there is none; of several, upstreams would read
    another one than the relay did."""
    values = fields.get(name, [])
    if len(values) > 1:
        raise BodyError(f"{name} is given {len(values)} times; send it once", param=name)
    if values and values[0] is None:
        raise BodyError(f"{name} is sent as a file; send it as a text field", param=name)
    return values[0] if values else None


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def _read_json(answer: dict[str, Any], body: bytes) -> AnswerFacts:
    if not any(answer.get(name) for name in PAYLOADS) and read_error(body).is_error:
        return AnswerFacts(is_error=True)
    usage = usage_in(answer)
    is_spent = usage is not None and usage.output_tokens > 0
    lists = [answer[name] for name in LISTS if name in answer]
    is_empty = not answer or (bool(lists) and not any(lists) and not is_spent)
    return AnswerFacts(
        is_empty=is_empty,
        model=text_in(answer, "model"),
        usage=usage,
        output_bytes=text_bytes(text_in(answer, "text")) if usage is None else 0,
        images=_pictures_in(answer),
        seconds=_seconds_in(answer),
    )


def _pictures_in(answer: dict[str, Any]) -> int:
    data = answer.get("data")
    return sum(
        isinstance(item, dict) and bool(item.get("b64_json") or item.get("url"))
        for item in (data if isinstance(data, list) else [])
    )


def _seconds_in(answer: dict[str, Any]) -> int:
    """Return how many seconds of sound were listened to, rounded up; 0: it is not told."""
    usage = object_in(answer, "usage")
    told = usage.get("seconds") or usage.get("prompt_audio_seconds") or answer.get("duration")
    if not isinstance(told, int | float) or not 0 < told < MAX_TOKENS:
        return 0
    return math.ceil(told)
