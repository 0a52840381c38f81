"""What an upstream of the Anthropic dialect says, and what a client reads of an answer.

Actions are those of `upstream`.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.upstream import Action, answer


def message(text: str = "hello", *, model: str = "m-upstream", **fields: Any) -> dict[str, Any]:
    """A whole message."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
        **fields,
    }


def event(kind: str, **fields: Any) -> bytes:
    document = {"type": kind, **fields}
    return f"event: {kind}\ndata: {json.dumps(document)}\n\n".encode()


def start(*, model: str = "m-upstream", **usage: Any) -> bytes:
    """The first event; its output tokens are a placeholder, as the real one's are."""
    counts = {"input_tokens": 3, "output_tokens": 1, **usage}
    beginning = message(model=model, content=[], stop_reason=None, usage=counts)
    return event("message_start", message=beginning)


def block(index: int = 0, **content: Any) -> bytes:
    content = content or {"type": "text", "text": ""}
    return event("content_block_start", index=index, content_block=content)


def text(words: str, *, index: int = 0) -> bytes:
    return event("content_block_delta", index=index, delta={"type": "text_delta", "text": words})


def arguments(part: str, *, index: int = 0) -> bytes:
    delta = {"type": "input_json_delta", "partial_json": part}
    return event("content_block_delta", index=index, delta=delta)


def block_stop(index: int = 0) -> bytes:
    return event("content_block_stop", index=index)


def finish(reason: str | None = "end_turn", *, output_tokens: int = 2, **usage: Any) -> bytes:
    end = {"stop_reason": reason, "stop_sequence": None}
    return event("message_delta", delta=end, usage={"output_tokens": output_tokens, **usage})


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STOP = event("message_stop")


def whole_stream(*texts: str) -> list[bytes]:
    """The events of a complete streamed answer."""
    return [start(), block(), PING, *map(text, texts), block_stop(), finish(), STOP]


def problem(message: str = "fault", *, type_: str = "api_error", **fields: Any) -> dict[str, Any]:
    """An error as Anthropic writes it."""
    return {
        "type": "error",
        "error": {"type": type_, "message": message, **fields},
        "request_id": "req_of_the_upstream",
    }


def error(
    status: int,
    message: str = "fault",
    *,
    type_: str = "api_error",
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Action:
    return answer(status, problem(message, type_=type_, **fields), headers=headers)


def error_event(message: str = "Overloaded", *, type_: str = "overloaded_error") -> bytes:
    return f"event: error\ndata: {json.dumps(problem(message, type_=type_))}\n\n".encode()


# -- what a client reads ------------------------------------------------------------------


def events_of(response: httpx.Response) -> list[tuple[str, Any]]:
    """Return the (name, document) of each event, read apart from the relay's own code."""
    found = []
    for part in response.text.split("\n\n"):
        rows = dict(line.split(": ", 1) for line in part.split("\n") if line)
        if rows:
            found.append((rows["event"], json.loads(rows["data"])))
    return found


def assert_told(response: httpx.Response, status: int, type_: str, code: str | None = None) -> str:
    """Check that the answer is this error in the dialect's form; return its message."""
    document = response.json()
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert document["type"] == "error"
    assert document["error"]["type"] == type_
    assert document["error"].get("details", {}).get("error_code") == code
    assert document.keys() == {"type", "error", "request_id"}
    request_id = response.headers["request-id"]
    assert request_id == document["request_id"] == response.headers["x-request-id"]
    message: str = document["error"]["message"]
    return message.removesuffix(f" (request id: {request_id})")
