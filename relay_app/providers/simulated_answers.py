"""What the simulated upstream says, in the dialect of the request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

import orjson

from channels_app.core.types import ChannelView
from relay_app.core.json_edit import read_field, split_fields
from relay_app.core.types import Call

INPUT_TOKENS = 8
OVERLOADED = {
    "message": "simulated: overloaded",
    "type": "overloaded_error",
    "code": "overloaded",
}


class Answer(Protocol):
    """The parts of one answer; `words` are its text, each with its space."""

    words: list[str]

    def __init__(self, call: Call, channel: ChannelView) -> None: ...

    def whole(self, text: str, *, output_tokens: int) -> bytes:
        """Return the body of an answer that is not streamed."""

    def beginning(self) -> bytes:
        """Return the events before any content."""

    def piece(self, text: str) -> bytes:
        """Return the event that carries `text`."""

    def ending(self, *, output_tokens: int) -> bytes:
        """Return the events of a proper end."""

    def error(self, problem: Mapping[str, str]) -> bytes:
        """Return the body of an error answer."""

    def error_event(self, problem: Mapping[str, str]) -> bytes:
        """Return the event that says so inside a stream."""


class ChatAnswer:
    """An OpenAI chat completion."""

    def __init__(self, call: Call, channel: ChannelView) -> None:
        self.words = _words(channel)
        self._id = f"chatcmpl-{call.request_id}"
        self._model = call.model
        self._tells_usage = call.is_stream and _wants_usage(call.body)

    def whole(self, text: str, *, output_tokens: int) -> bytes:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return self._document("chat.completion", [choice], usage=_chat_usage(output_tokens))

    def beginning(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def ending(self, *, output_tokens: int) -> bytes:
        end = self._chunk({}, finish_reason="stop")
        if self._tells_usage:
            end += self._event([], usage=_chat_usage(output_tokens))
        return end + b"data: [DONE]\n\n"

    def error(self, problem: Mapping[str, str]) -> bytes:
        return orjson.dumps({"error": {"param": None, "code": None, **problem}})

    def error_event(self, problem: Mapping[str, str]) -> bytes:
        return b"data: " + self.error(problem) + b"\n\n"

    def _chunk(self, delta: object, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self._event([choice], **({"usage": None} if self._tells_usage else {}))

    def _event(self, choices: object, **more: object) -> bytes:
        return b"data: " + self._document("chat.completion.chunk", choices, **more) + b"\n\n"

    def _document(self, kind: str, choices: object, **more: object) -> bytes:
        fields = {"id": self._id, "object": kind, "created": int(time.time()), "model": self._model}
        return orjson.dumps({**fields, "choices": choices, **more})


class MessageAnswer:
    """An Anthropic message."""

    def __init__(self, call: Call, channel: ChannelView) -> None:
        self.words = _words(channel)
        self._id = f"msg_{call.request_id}"
        self._model = call.model

    def whole(self, text: str, *, output_tokens: int) -> bytes:
        content = [{"type": "text", "text": text}] if text else []
        return orjson.dumps(self._message(content, "end_turn", output_tokens))

    def beginning(self) -> bytes:
        return _event("message_start", message=self._message([], None, 1)) + _event(
            "content_block_start", index=0, content_block={"type": "text", "text": ""}
        )

    def piece(self, text: str) -> bytes:
        return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def ending(self, *, output_tokens: int) -> bytes:
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=end, usage={"output_tokens": output_tokens})
            + _event("message_stop")
        )

    def error(self, problem: Mapping[str, str]) -> bytes:
        told = {name: problem[name] for name in ("type", "message")}
        return orjson.dumps({"type": "error", "error": told})

    def error_event(self, problem: Mapping[str, str]) -> bytes:
        return b"event: error\ndata: " + self.error(problem) + b"\n\n"

    def _message(
        self, content: object, stop_reason: str | None, output_tokens: int
    ) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": output_tokens},
        }


class CountAnswer(MessageAnswer):
    """How long an Anthropic message would be."""

    def whole(self, text: str, *, output_tokens: int) -> bytes:
        return orjson.dumps({"input_tokens": INPUT_TOKENS})


class ContentAnswer:
    """Gemini content."""

    def __init__(self, call: Call, channel: ChannelView) -> None:
        self.words = _words(channel)
        self._id = call.request_id
        self._model = call.model

    def whole(self, text: str, *, output_tokens: int) -> bytes:
        return self._chunk(text, "STOP", output_tokens)

    def beginning(self) -> bytes:
        return b""

    def piece(self, text: str) -> bytes:
        return b"data: " + self._chunk(text) + b"\r\n\r\n"

    def ending(self, *, output_tokens: int) -> bytes:
        return b"data: " + self._chunk("", "STOP", output_tokens) + b"\r\n\r\n"

    def error(self, problem: Mapping[str, str]) -> bytes:
        return orjson.dumps({"error": {"message": problem["message"], "status": problem["type"]}})

    def error_event(self, problem: Mapping[str, str]) -> bytes:
        return b"data: " + self.error(problem) + b"\r\n\r\n"

    def _chunk(self, text: str, reason: str | None = None, output_tokens: int = 0) -> bytes:
        candidate: dict[str, object] = {"index": 0}
        candidate["content"] = {"role": "model", "parts": [{"text": text}] if text else []}
        usage = {"promptTokenCount": INPUT_TOKENS}
        if reason:
            candidate["finishReason"] = reason
            usage["candidatesTokenCount"] = output_tokens
            usage["totalTokenCount"] = INPUT_TOKENS + output_tokens
        fields = {"candidates": [candidate], "usageMetadata": usage}
        return orjson.dumps({**fields, "modelVersion": self._model, "responseId": self._id})


class ContentCountAnswer(ContentAnswer):
    """How long Gemini content would be."""

    def whole(self, text: str, *, output_tokens: int) -> bytes:
        return orjson.dumps({"totalTokens": INPUT_TOKENS})


# By the dialect of the request.
ANSWERS: Mapping[str, type[Answer]] = {
    "openai": ChatAnswer,
    "anthropic": MessageAnswer,
    "anthropic_count": CountAnswer,
    "gemini": ContentAnswer,
    "gemini_count": ContentCountAnswer,
}


def _words(channel: ChannelView) -> list[str]:
    return [word + " " for word in f"Hello from channel {channel.name}.".split()]


def _wants_usage(body: bytes) -> bool:
    options = read_field(split_fields(body).get("stream_options"))
    return isinstance(options, dict) and options.get("include_usage") is True


def _chat_usage(output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": output_tokens,
        "total_tokens": INPUT_TOKENS + output_tokens,
    }


def _event(kind: str, **fields: object) -> bytes:
    data = orjson.dumps({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
