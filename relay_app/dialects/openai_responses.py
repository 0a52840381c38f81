"""The OpenAI Responses dialect: requests, answers, stream events, errors."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec

from relay_app.core.error_body import read_error
from relay_app.core.types import AnswerFacts, EventFacts
from relay_app.dialects.base import (
    BodyError,
    Envelope,
    ErrorParts,
    Incoming,
    count_in,
    decode_envelope,
)
from relay_app.dialects.openai_base import (
    OpenAIDialect,
    checked_model,
    dumped,
    error_object,
    read_object,
    text_in,
)
from relay_app.dialects.openai_usage import object_in, usage_in
from relay_app.dialects.written import text_bytes, written_bytes

FAILED = frozenset({"error", "response.failed"})
FINISHED = frozenset({"response.completed", "response.incomplete"})
# Fields of events that carry a part of the answer, a whole part, or a piece of an image.
CARRIERS = ("delta", "text", "refusal", "arguments", "input", "code", "partial_image_b64")
# Its deltas are no text but the data of a file.
SOUND = "response.audio.delta"
# Fields of items and their parts that do.
ITEM_CARRIERS = ("name", "content", "summary", "text", "refusal", "arguments", "input", "code")
# Items of these kinds say nothing until something is in them.
FILLED_LATER = frozenset({"message", "reasoning"})

NOTHING = EventFacts()
A_PICTURE = EventFacts(is_meaningful=True, images=1)


class _Request(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"")
    previous_response_id: str | None = None


_decode_request = msgspec.json.Decoder(_Request)


class OpenAIResponses(OpenAIDialect):
    """POST /v1/responses. Its streams end in an event that only the upstream can write."""

    def read_request(self, incoming: Incoming) -> Envelope:
        request: _Request = decode_envelope(_decode_request, incoming.body)
        if request.model is None:
            raise BodyError(
                "model is missing; the relay routes by it, so send it also beside a prompt or"
                " previous_response_id",
                param="model",
            )
        return Envelope(
            model=checked_model(request.model),
            is_stream=bool(request.stream),
            max_output_tokens=count_in(request.max_output_tokens),
            previous_response_id=request.previous_response_id or "",
        )

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        answer = read_object(body)
        if answer is None:
            return AnswerFacts(is_readable=False, is_error=read_error(body).is_error)
        status, says_something = text_in(answer, "status"), _has_output(answer)
        is_told = bool(answer.get("error")) or read_error(body).is_error
        if status == "failed" or (is_told and not says_something):
            return AnswerFacts(is_error=True)
        usage = usage_in(answer)
        is_spent = usage is not None and usage.output_tokens > 0
        # Other statuses are answers without output: queued in the background, cut short.
        is_empty = status in ("", "completed") and not says_something and not is_spent
        return AnswerFacts(
            is_empty=is_empty,
            model=text_in(answer, "model"),
            usage=usage,
            output_bytes=written_bytes(answer.get("output")) if usage is None else 0,
            images=_pictures_in(answer),
            response_id=text_in(answer, "id"),
        )

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        if data is None:
            return NOTHING
        if data.strip() == b"[DONE]":  # not OpenAI's own, but that of some compatible servers
            return EventFacts(is_last=True)
        event = read_object(data)
        if event is None:
            is_error = name == b"error" or read_error(data).is_error
            return EventFacts(is_error=is_error, is_malformed=not is_error)
        kind = text_in(event, "type") or name.decode("ascii", "replace")
        if kind in FAILED or name == b"error":
            return EventFacts(is_error=True, is_last=kind == "response.failed")
        if kind in FINISHED:
            return _end(event, is_normal=kind == "response.completed")
        if kind.startswith("response.output_item."):
            return _item(event.get("item"), is_done=kind.endswith(".done"))
        if any(event.get(field) for field in CARRIERS) or _is_filled(event.get("part")):
            text = "" if kind == SOUND else text_in(event, "delta")
            return _something(text_bytes(text))
        is_error = not kind.startswith("response.") and read_error(data).is_error
        model = text_in(object_in(event, "response"), "model")
        return EventFacts(is_error=is_error, model=model) if is_error or model else NOTHING

    def error_event(self, parts: ErrorParts) -> bytes:
        """Return it in both forms there are: documented flat, sent (and read) nested."""
        problem = error_object(parts)
        document = {
            "type": "error",
            "code": problem["code"],
            "message": problem["message"],
            "param": problem["param"],
            "sequence_number": 0,  # the number of the last event is not known here
            "error": problem,
        }
        return b"event: error\ndata: " + dumped(document) + b"\n\n"


@lru_cache(maxsize=1024)
def _something(size: int) -> EventFacts:
    return EventFacts(is_meaningful=True, output_bytes=size)


def _item(item: object, *, is_done: bool) -> EventFacts:
    if is_done and _is_picture(item):
        return A_PICTURE
    if not _is_said(item, is_done=is_done):
        return NOTHING
    return _something(_told_nowhere_else(item, is_done=is_done) if isinstance(item, dict) else 0)


def _told_nowhere_else(item: dict[str, Any], *, is_done: bool) -> int:
    """Return the bytes of what has no events of its own: a tool's name at the beginning of its
    item, and arguments at its end that are no text."""
    if not is_done:
        return text_bytes(text_in(item, "name"))
    return written_bytes({"arguments": object_in(item, "arguments")})


def _end(event: dict[str, Any], *, is_normal: bool) -> EventFacts:
    """Return what the last event says; its response holds the whole answer once more."""
    response = object_in(event, "response")
    usage, images = usage_in(response), _pictures_in(response)
    if usage is not None and images:
        usage = replace(usage, images=images)
    return EventFacts(
        is_meaningful=_has_output(response),
        is_finish=True,
        is_normal_finish=is_normal,
        is_complete=True,
        response_id=text_in(response, "id"),
        model=text_in(response, "model"),
        usage=usage,
    )


def _has_output(response: dict[str, Any]) -> bool:
    output = response.get("output")
    if isinstance(output, list):
        return any(_is_said(item, is_done=True) for item in output)
    return bool(output)


def _pictures_in(response: dict[str, Any]) -> int:
    output = response.get("output")
    return sum(map(_is_picture, output)) if isinstance(output, list) else 0


def _is_picture(item: object) -> bool:
    """Return whether an output item is a picture that was made; some that are made say so by
    nothing but their content."""
    if not isinstance(item, dict) or item.get("type") != "image_generation_call":
        return False
    return item.get("status") == "completed" or bool(item.get("result"))


def _is_said(item: object, *, is_done: bool) -> bool:
    """Return whether an output item carries a part of the answer as it stands.

    The upstream's own tools say nothing before they are done, nor does reasoning that is
    encrypted from its beginning: what follows may take as long as the first word.
    """
    if not isinstance(item, dict):
        return bool(item)
    if _is_filled(item):
        return True
    if item.get("type") in FILLED_LATER:
        return is_done and bool(item.get("encrypted_content"))
    return is_done


def _is_filled(part: object) -> bool:
    """Return whether an item, or a part of one, holds something."""
    if not isinstance(part, dict):
        return False
    for name in ITEM_CARRIERS:
        value = part.get(name)
        if isinstance(value, list):
            if any(_is_filled(inner) or isinstance(inner, str) for inner in value):
                return True
        elif value:
            return True
    return False
