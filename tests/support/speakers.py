"""The four chat dialects as a client and an upstream speak them, in one form for all.

A `Speaker` makes what an upstream sends and reads what a client got, so that one scenario
can be told in every dialect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from tests.support.relay import Client
from tests.support.upstream import answer


def data(document: Any, *, event: str = "") -> bytes:
    """One event, named if `event` says so."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def documents(body: bytes) -> list[dict[str, Any]]:
    """The JSON of all events of a stream, whatever its line ends."""
    lines = body.replace(b"\r\n", b"\n").decode().split("\n")
    return [json.loads(line[5:]) for line in lines if line.startswith("data:") and "{" in line]


class Speaker:
    """One dialect. `provider`: the channel type that takes it as it is."""

    name = ""
    provider = "openai"
    path = ""
    # Whether a stream without its very last event is whole all the same.
    may_lack_end = True

    def ask(self, client: Client, *, is_stream: bool = True) -> httpx.Response:
        return client.http.post(self.url(is_stream=is_stream), json=self.body(is_stream=is_stream))

    def url(self, *, is_stream: bool) -> str:
        return self.path

    def body(self, *, is_stream: bool) -> dict[str, Any]:
        return {"model": "m", "stream": is_stream}

    def begin(self, model: str) -> list[bytes]:
        """The events before any content."""
        raise NotImplementedError

    def text(self, words: str) -> bytes:
        raise NotImplementedError

    def finish(self, model: str) -> list[bytes]:
        """The proper end, without the very last event."""
        raise NotImplementedError

    def last(self) -> list[bytes]:
        return []

    def error_event(self, message: str) -> bytes:
        raise NotImplementedError

    def whole(self, text: str, model: str) -> dict[str, Any]:
        raise NotImplementedError

    def error(self, status: int, message: str, code: str | None = None) -> Any:
        problem = {"message": message, "type": "upstream_type", "param": None, "code": code}
        return answer(status, {"error": problem})

    def read(self, body: bytes) -> str:
        """The text that a streamed answer adds up to."""
        raise NotImplementedError

    def is_success(self, body: bytes) -> bool:
        """Whether a client would take the stream for a whole answer."""
        raise NotImplementedError

    def is_error(self, body: bytes) -> bool:
        """Whether a client would find an error event at the end of the stream."""
        return any("error" in document for document in documents(body)[-1:])

    def stream(self, *texts: str, model: str = "m-upstream") -> list[bytes]:
        parts: Sequence[bytes] = [self.text(text) for text in texts]
        return [*self.begin(model), *parts, *self.finish(model), *self.last()]

    def empty(self, model: str = "m-upstream") -> list[bytes]:
        return self.stream(model=model)


class OpenAI(Speaker):
    name = "openai"
    path = "/v1/chat/completions"

    def body(self, *, is_stream: bool) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": is_stream}

    def _chunk(self, model: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return data(
            {"id": "c", "object": "chat.completion.chunk", "model": model, "choices": [choice]}
        )

    def begin(self, model: str) -> list[bytes]:
        return [self._chunk(model, {"role": "assistant", "content": ""})]

    def text(self, words: str) -> bytes:
        return self._chunk("m-upstream", {"content": words})

    def finish(self, model: str) -> list[bytes]:
        return [self._chunk(model, {}, "stop")]

    def last(self) -> list[bytes]:
        return [b"data: [DONE]\n\n"]

    def error_event(self, message: str) -> bytes:
        return data({"error": {"message": message, "type": "server_error", "code": None}})

    def whole(self, text: str, model: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {
            "id": "c",
            "object": "chat.completion",
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": len(text), "total_tokens": 9},
        }

    def read(self, body: bytes) -> str:
        return "".join(
            choice["delta"].get("content") or ""
            for document in documents(body)
            for choice in document.get("choices", [])
        )

    def is_success(self, body: bytes) -> bool:
        return b"[DONE]" in body or b'"stop"' in body


class Anthropic(Speaker):
    name = "anthropic"
    provider = "anthropic"
    path = "/v1/messages"

    def body(self, *, is_stream: bool) -> dict[str, Any]:
        messages = [{"role": "user", "content": "hi"}]
        return {"model": "m", "max_tokens": 99, "messages": messages, "stream": is_stream}

    def _event(self, kind: str, **fields: Any) -> bytes:
        return data({"type": kind, **fields}, event=kind)

    def begin(self, model: str) -> list[bytes]:
        message = {**self.whole("", model), "content": [], "stop_reason": None}
        block = {"type": "text", "text": ""}
        return [
            self._event("message_start", message=message),
            self._event("content_block_start", index=0, content_block=block),
            self._event("ping"),
        ]

    def text(self, words: str) -> bytes:
        delta = {"type": "text_delta", "text": words}
        return self._event("content_block_delta", index=0, delta=delta)

    def finish(self, model: str) -> list[bytes]:
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        return [
            self._event("content_block_stop", index=0),
            self._event("message_delta", delta=delta, usage={"output_tokens": 0}),
        ]

    def last(self) -> list[bytes]:
        return [self._event("message_stop")]

    def error_event(self, message: str) -> bytes:
        return self._event("error", error={"type": "api_error", "message": message})

    def whole(self, text: str, model: str) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 3, "output_tokens": len(text)},
        }

    def error(self, status: int, message: str, code: str | None = None) -> Any:
        problem = {"type": code or "api_error", "message": message}
        return answer(status, {"type": "error", "error": problem})

    def read(self, body: bytes) -> str:
        deltas = [d for d in documents(body) if d.get("type") == "content_block_delta"]
        return "".join(d["delta"].get("text", "") for d in deltas)

    def is_success(self, body: bytes) -> bool:
        return b"message_stop" in body or b"end_turn" in body


class Responses(Speaker):
    name = "responses"
    path = "/v1/responses"
    may_lack_end = False

    def body(self, *, is_stream: bool) -> dict[str, Any]:
        return {"model": "m", "input": "hi", "stream": is_stream}

    def _event(self, kind: str, **fields: Any) -> bytes:
        return data({"type": kind, "sequence_number": 0, **fields}, event=kind)

    def begin(self, model: str) -> list[bytes]:
        response = {**self.whole("", model), "status": "in_progress", "output": [], "usage": None}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        where = {"item_id": "msg_1", "output_index": 0}
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **where, content_index=0, part=part),
        ]

    def text(self, words: str) -> bytes:
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        return self._event("response.output_text.delta", **where, delta=words, logprobs=[])

    def finish(self, model: str) -> list[bytes]:
        return [self._event("response.completed", response=self.whole("", model))]

    def error_event(self, message: str) -> bytes:
        return self._event("error", code="server_error", message=message, param=None)

    def whole(self, text: str, model: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [{**item, "status": "completed"}] if text else [],
            "usage": {"input_tokens": 3, "output_tokens": len(text), "total_tokens": 9},
        }

    def read(self, body: bytes) -> str:
        deltas = [d for d in documents(body) if d.get("type") == "response.output_text.delta"]
        return "".join(d["delta"] for d in deltas)

    def is_success(self, body: bytes) -> bool:
        return b"response.completed" in body

    def is_error(self, body: bytes) -> bool:
        return any(d.get("type") == "error" for d in documents(body)[-1:])


class Gemini(Speaker):
    name = "gemini"
    provider = "gemini"

    def url(self, *, is_stream: bool) -> str:
        action = "streamGenerateContent?alt=sse" if is_stream else "generateContent"
        return f"/v1beta/models/m:{action}"

    def body(self, *, is_stream: bool) -> dict[str, Any]:
        return {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}

    def begin(self, model: str) -> list[bytes]:
        return []

    def _part(self, text: str, finish: str | None, model: str) -> dict[str, Any]:
        candidate: dict[str, Any] = {
            "index": 0,
            "content": {"role": "model", "parts": [{"text": text}] if text else []},
        }
        if finish:
            candidate["finishReason"] = finish
        usage = {"promptTokenCount": 3, "candidatesTokenCount": len(text), "totalTokenCount": 9}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}

    def text(self, words: str) -> bytes:
        return data(self._part(words, None, "m-upstream"))

    def finish(self, model: str) -> list[bytes]:
        return [data(self._part("", "STOP", model))]

    def error_event(self, message: str) -> bytes:
        return data({"error": {"code": 500, "message": message, "status": "INTERNAL"}})

    def whole(self, text: str, model: str) -> dict[str, Any]:
        return self._part(text, "STOP", model)

    def error(self, status: int, message: str, code: str | None = None) -> Any:
        problem = {"code": status, "message": message, "status": code or "INTERNAL"}
        return answer(status, {"error": problem})

    def read(self, body: bytes) -> str:
        return "".join(
            part.get("text", "")
            for document in documents(body)
            for candidate in document.get("candidates", [])
            for part in candidate.get("content", {}).get("parts", [])
        )

    def is_success(self, body: bytes) -> bool:
        return b'"STOP"' in body


SPEAKERS = (OpenAI(), Anthropic(), Responses(), Gemini())
