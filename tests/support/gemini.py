"""What an upstream of the Gemini dialect says, and what a client reads of an answer.

Actions are those of `upstream`.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx

from tests.support.upstream import Action, answer

USAGE = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}


def content(text: str = "hello", *, model: str = "m-upstream", **fields: Any) -> dict[str, Any]:
    """A whole answer; its end and usage included."""
    return {
        "candidates": [
            {
                "content": {"parts": [{"text": text}], "role": "model"},
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": USAGE,
        "modelVersion": model,
        "responseId": "r",
        **fields,
    }


def said(*parts: Any, reason: str | int | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with these parts, without usage."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], "modelVersion": "m-upstream", **fields}


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\r\n\r\n"


def text(words: str) -> bytes:
    return event(said({"text": words}))


def finish(reason: str = "STOP", *parts: Any, **fields: Any) -> bytes:
    return event(
        said(*(parts or [{"text": ""}]), reason=reason, **{"usageMetadata": USAGE} | fields)
    )


def whole_stream(*texts: str) -> list[bytes]:
    """The events of a complete streamed answer."""
    return [*map(text, texts), finish()]


def array(pieces: list[bytes]) -> bytes:
    """The same events as the API writes them in an array."""
    documents = [piece.removeprefix(b"data: ").removesuffix(b"\r\n\r\n") for piece in pieces]
    return b"[" + b"\n,\r\n".join(documents) + b"\n]"


def problem(
    status: int = 500,
    message: str = "fault",
    *,
    name: str = "INTERNAL",
    reason: str = "",
    wait: str = "",
) -> dict[str, Any]:
    """An error as Google writes it."""
    told: dict[str, Any] = {"code": status, "message": message, "status": name}
    kind = "type.googleapis.com/google.rpc."
    details = []
    if reason:
        details.append({"@type": kind + "ErrorInfo", "reason": reason, "domain": "googleapis.com"})
    if wait:
        details.append({"@type": kind + "RetryInfo", "retryDelay": wait})
    if details:
        told["details"] = details
    return {"error": told}


def error(status: int, message: str = "fault", **fields: Any) -> Action:
    return answer(status, problem(status, message, **fields))


# -- what a client reads ------------------------------------------------------------------


def chunks_of(response: httpx.Response) -> list[Any]:
    """Return the documents of a stream, in either form, read apart from the relay's own code."""
    if response.headers["content-type"].startswith("application/json"):
        found: list[Any] = json.loads(response.content)
        return found
    parts = response.text.replace("\r\n", "\n").split("\n\n")
    assert parts.pop() == ""  # the last event ends in a blank line too
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def assert_told(response: httpx.Response, status: int, name: str, reason: str = "") -> str:
    """Check that the answer is this error in the dialect's form; return its message."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    request_id = response.headers["x-request-id"]
    return assert_error(response.json(), status, name, reason, request_id=request_id)


def assert_error(
    document: Any, status: int, name: str, reason: str = "", *, request_id: str
) -> str:
    told = document["error"]
    assert document.keys() == {"error"}
    assert (told["code"], told["status"]) == (status, name)
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    details = [{"@type": kind, "reason": reason, "domain": "relay"}] if reason else None
    assert told.get("details") == details
    message: str = told["message"]
    assert message.endswith(f" (request id: {request_id})")
    return message.removesuffix(f" (request id: {request_id})")


# -- recorded traffic ----------------------------------------------------------------------


def recorded(path: Path) -> bytes:
    """Return the body of a recorded answer; one is stored in base64 without saying so."""
    body: str = json.loads(path.read_text())["response"]["body"]
    return body.encode() if body.startswith(("data:", "{", "[")) else base64.b64decode(body)
