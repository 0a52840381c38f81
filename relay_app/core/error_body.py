"""Read the error object out of whatever an upstream sends. Never raises."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

# Larger bodies are no error objects; reading them would only cost time.
MAX_ERROR_BYTES = 256 * 1024
# Characters shown of a message that is no text made for people.
RAW_MESSAGE_CHARS = 2000
_MESSAGE_KEYS = ("message", "error_msg", "detail", "msg", "error_description")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """The parts of an error object; empty where the upstream left them out.

    `status` is the HTTP status that the object itself names; `is_error` says whether
    there was an error object at all. Texts are whole: one that is cut before its secrets are
    taken out may keep a part of one. `message_chars`: as much of the message is worth showing.
    """

    is_error: bool = False
    message: str = ""
    type: str = ""
    code: str = ""
    param: str | None = None
    status: int | None = None
    retry_after_s: float | None = None
    message_chars: int = MAX_ERROR_BYTES


def load_json(body: bytes) -> Any:
    """Return the parsed body, or None when it is not JSON."""
    if len(body) > MAX_ERROR_BYTES:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def read_error(body: bytes) -> ErrorInfo:
    """Return what `body` says went wrong; plain text becomes the message."""
    document = load_json(body)
    if isinstance(document, list) and document:  # Gemini and Vertex: the items of a stream
        errors = (item for item in document if isinstance(item, dict) and item.get("error"))
        document = next(errors, document[0])
    if isinstance(document, dict):
        return _from_document(document)
    text = body[:MAX_ERROR_BYTES].decode("utf-8", "replace").strip()
    is_page = text[:1] == "<"
    return ErrorInfo(message="" if is_page else text, message_chars=RAW_MESSAGE_CHARS)


def _from_document(document: dict[str, Any]) -> ErrorInfo:
    response = document.get("response")  # OpenAI's `response.failed` holds the error in there
    if isinstance(response, dict) and response.get("error"):
        document = response
    error = document.get("error")
    if isinstance(error, dict):
        source = error
    elif isinstance(error, str):
        source = {**document, "message": error}
    else:
        source = document
    message = next((source[k] for k in _MESSAGE_KEYS if source.get(k)), "")
    is_text = isinstance(message, str)
    code = _text(source.get("code", source.get("error_code")))
    reason, retry_after_s = _google_details(source)
    return ErrorInfo(
        is_error=bool(error) or _looks_like_error(document),
        message=message if is_text else json.dumps(message),
        message_chars=MAX_ERROR_BYTES if is_text else RAW_MESSAGE_CHARS,
        type=_text(source.get("type", source.get("error_type", source.get("status")))),
        code=reason or code or _code_in_details(source),
        param=source["param"] if isinstance(source.get("param"), str) else None,
        status=_status(source.get("status_code"), source.get("http_code"), code),
        retry_after_s=retry_after_s,
    )


def _code_in_details(source: dict[str, Any]) -> str:
    """Return Anthropic's stable code, which it keeps one level down since 2026-10-21."""
    details = source.get("details")
    return _text(details.get("error_code")) if isinstance(details, dict) else ""


def _google_details(source: dict[str, Any]) -> tuple[str, float | None]:
    """Return the reason and the wait in seconds that Google keeps in details of these types."""
    reason, wait_s = "", None
    details = source.get("details")
    for detail in details if isinstance(details, list) else []:
        kind = str(detail.get("@type")) if isinstance(detail, dict) else ""
        if kind.endswith("google.rpc.ErrorInfo"):
            reason = _text(detail.get("reason"))
        elif kind.endswith("google.rpc.RetryInfo"):
            wait_s = _duration_s(detail.get("retryDelay"))
    return reason, wait_s


def _duration_s(value: object) -> float | None:
    """Return the seconds of a duration in protobuf's JSON form, e.g. `34.4s`; None if none."""
    found = (
        re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s", value) if isinstance(value, str) else None
    )
    return (float(found[1]) or None) if found else None


def _looks_like_error(document: dict[str, Any]) -> bool:
    return (
        document.get("type") == "error"
        or document.get("object") == "error"
        or ("error_code" in document and "error_msg" in document)
    )


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _status(*candidates: object) -> int | None:
    """Return the first candidate that is an HTTP status, but none of success."""
    for value in candidates:
        if isinstance(value, int) or (isinstance(value, str) and value.isascii()):
            text = str(value)
            if len(text) == 3 and text.isdigit() and 100 <= int(text) <= 599 and text[0] != "2":
                return int(text)
    return None
