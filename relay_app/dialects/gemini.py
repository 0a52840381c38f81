"""The Gemini dialect: requests, answers, stream events, errors.

Streams are read as events; `gemini_framing` writes them as the client asked for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any
from urllib.parse import unquote_plus

import msgspec
import orjson

from billing_app.core.usage import merged
from relay_app.core.error_body import read_error
from relay_app.core.json_edit import join_fields, split_fields, split_items
from relay_app.core.types import AnswerFacts, Call, EventFacts
from relay_app.dialects.base import (
    BodyError,
    Envelope,
    ErrorParts,
    Incoming,
    count_in,
    decode_envelope,
)
from relay_app.dialects.gemini_framing import ArrayFraming, EventFraming
from relay_app.dialects.gemini_usage import read_usage
from relay_app.dialects.openai_base import dumped, read_object, text_in
from relay_app.dialects.openai_usage import object_in
from relay_app.dialects.written import written_bytes

# gRPC's names for HTTP statuses (google.rpc.Code); others are INTERNAL or, below 500,
# INVALID_ARGUMENT.
STATUSES = {
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}
# Names of an upstream that are kept; any other is told by its status.
KNOWN_STATUSES = frozenset(
    {
        *STATUSES.values(),
        "ALREADY_EXISTS",
        "DATA_LOSS",
        "INTERNAL",
        "INVALID_ARGUMENT",
        "OUT_OF_RANGE",
        "UNKNOWN",
    }
)
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"

# An end for one of these reasons is an answer even without content. Vertex tells them as
# numbers if asked to (`enum-encoding=int`); these mean the same in both APIs.
CUT_SHORT = frozenset(
    {
        *("MAX_TOKENS", "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT"),
        *("SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR"),
        *(2, 3, 4, 6, 7, 8),
    }
)
# The value of a reason that is not given.
UNSPECIFIED = re.compile(r"(?:\w+_)?REASON_UNSPECIFIED")

# Methods of models that this relay serves.
METHODS = (
    "generateContent",
    "streamGenerateContent",
    "countTokens",
    "embedContent",
    "batchEmbedContents",
)
# What names of resources begin with; a bare name is one of models.
COLLECTIONS = ("models/", "tunedModels/")
# Fields of a request that hold requests.
NESTED = ("requests", "generateContentRequest", "generate_content_request")


class _Request(msgspec.Struct):
    """Field names are read in both spellings, as the API does."""

    camel_config: msgspec.Raw = msgspec.field(name="generationConfig", default=msgspec.Raw(b""))
    snake_config: msgspec.Raw = msgspec.field(name="generation_config", default=msgspec.Raw(b""))

    def limits(self) -> tuple[int, int]:
        """Return the most tokens of an answer and the number of answers; 0: not said."""
        config = bytes(self.camel_config) or bytes(self.snake_config) or b"{}"
        try:
            fields = split_fields(config)
        except ValueError:
            return 0, 0
        tokens = fields.get("maxOutputTokens", fields.get("max_output_tokens"))
        answers = fields.get("candidateCount", fields.get("candidate_count"))
        return _count_in(tokens), _count_in(answers)


def _count_in(raw: Any) -> int:
    """Return the count in a field; the API takes numbers in quotes as well."""
    if not isinstance(raw, msgspec.Raw):
        return 0
    digits = bytes(raw).strip(b'"')
    return count_in(msgspec.Raw(digits) if digits.isdigit() else raw)


_decode_request = msgspec.json.Decoder(_Request)


class GeminiDialect:
    """Base of the Gemini dialects; by itself that of endpoints without a stream."""

    family = "gemini"
    stream_end = b""
    ends_cleanly = False
    request_id_header = ""

    def read_request(self, incoming: Incoming) -> Envelope:
        decode_envelope(_decode_request, incoming.body)
        return Envelope(model=_model_in(incoming), is_stream=False)

    def with_model(self, call: Call, model: str) -> Call:
        return replace(call, model=model, body=_named(call.body, resource_name(model)))

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        answer = read_object(body)
        is_error = read_error(body).is_error
        if answer is None or is_error:
            return AnswerFacts(is_readable=answer is not None, is_error=is_error)
        return AnswerFacts(usage=read_usage(answer))

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        return EventFacts()

    def model_list(self, names: Sequence[str]) -> bytes:
        return orjson.dumps({"models": [_card(name) for name in names]})

    def model_card(self, name: str) -> bytes:
        """Return the JSON body that describes one model."""
        return orjson.dumps(_card(name))

    def error_body(self, parts: ErrorParts) -> bytes:
        problem: dict[str, object] = {
            "code": parts.status,
            "message": parts.message,
            "status": _status_of(parts),
        }
        if reason := _reason(parts.code):
            problem["details"] = [{"@type": ERROR_INFO, "reason": reason, "domain": "relay"}]
        return dumped({"error": problem})

    def error_event(self, parts: ErrorParts) -> bytes:
        return b"data: " + self.error_body(parts) + b"\n\n"


class GeminiContent(GeminiDialect):
    """POST …:generateContent and …:streamGenerateContent."""

    def read_request(self, incoming: Incoming) -> Envelope:
        request: _Request = decode_envelope(_decode_request, incoming.body)
        wants_events = _wants_events(incoming.query)
        is_stream = wants_events or incoming.path.get("method") == "streamGenerateContent"
        framing = EventFraming if wants_events else ArrayFraming
        output_limit, answer_count = request.limits()
        return Envelope(
            model=_model_in(incoming),
            is_stream=is_stream,
            max_output_tokens=output_limit,
            answer_count=answer_count,
            framing=framing if is_stream else None,
        )

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        chunks = _read_chunks(body)
        if chunks is None:
            return AnswerFacts(is_readable=False, is_error=read_error(body).is_error)
        facts = [_read_chunk(chunk) for chunk in chunks]
        is_stream = body.lstrip().startswith(b"[")
        is_answer = any(fact.is_meaningful or not fact.is_normal_finish for fact in facts)
        if any(fact.is_error for fact in facts) and (is_stream or not is_answer):
            return AnswerFacts(is_error=True)
        if is_stream and not any(fact.is_finish for fact in facts):
            return AnswerFacts(is_readable=False)  # broken off
        usage = reduce(merged, [fact.usage for fact in facts], None)
        is_spent = usage is not None and usage.output_tokens > 0
        return AnswerFacts(
            is_empty=not (is_answer or is_spent),
            model=next((fact.model for fact in facts if fact.model), ""),
            usage=usage,
            output_bytes=sum(fact.output_bytes for fact in facts) if usage is None else 0,
            images=sum(fact.images for fact in facts),
        )

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        if data is None:
            return EventFacts()
        chunk = read_object(data)
        if chunk is None:
            is_error = name == b"error" or read_error(data).is_error
            return EventFacts(is_error=is_error, is_malformed=not is_error)
        if name == b"error":
            return EventFacts(is_error=True)
        return _read_chunk(chunk)


class GeminiEmbeddings(GeminiDialect):
    """POST …:embedContent and …:batchEmbedContents."""

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        facts = super().read_answer(body, content_type)
        if facts.is_error or not facts.is_readable:
            return facts
        answer = read_object(body) or {}
        is_filled = _is_filled(answer.get("embedding")) or _is_filled(answer.get("embeddings"))
        return replace(facts, is_empty=not is_filled)


def resource_name(model: str) -> str:
    """Return what the API calls `model`: `models/NAME`, unless it says where it belongs."""
    return model if model.startswith(COLLECTIONS) else f"models/{model}"


# -- requests --------------------------------------------------------------------------


def _model_in(incoming: Incoming) -> str:
    """Return the model that the path names; its own collection is not part of a name."""
    model = incoming.path.get("model", "").removeprefix("models/")
    if not model.strip():
        raise BodyError("the path names no model", param="model")
    if any(part in ("", ".", "..") for part in model.split("/")):
        raise BodyError("the model's name has empty, '.' or '..' parts", param="model")
    return model


def _wants_events(query: str) -> bool:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return any(
        unquote_plus(name) in ("alt", "$alt") and unquote_plus(value).partition(";")[0] == "sse"
        for name, _, value in pairs
    )


def _named(body: bytes, name: str) -> bytes:
    """Return a request with `name` wherever it names its model, in requests within it too."""
    if b'"model"' not in body:
        return body
    try:
        fields = split_fields(body)
    except ValueError:
        return body  # an item of a list that is no object: the upstream judges it
    changed: dict[str, Any] = {"model": name} if "model" in fields else {}
    for nested in NESTED:
        if nested in fields:
            changed[nested] = msgspec.Raw(_named_within(fields[nested], name))
    return join_fields({**fields, **changed}) if changed else body


def _named_within(value: Any, name: str) -> bytes:
    """Return the same for a field that holds a request or a list of them."""
    raw = bytes(value) if isinstance(value, msgspec.Raw) else json.dumps(value).encode()
    if not raw.lstrip().startswith(b"["):
        return _named(raw, name)
    return b"[" + b",".join(_named(item, name) for item in split_items(raw)) + b"]"


# -- answers ---------------------------------------------------------------------------


def _read_chunks(body: bytes) -> list[dict[str, Any]] | None:
    """Return the chunks of an answer: one, or all of a stream that came as an array.

    None when it is neither. The standard parser reads what the fast one refuses, such as
    lone surrogates.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None
    chunks = document if isinstance(document, list) else [document]
    return chunks if all(isinstance(chunk, dict) for chunk in chunks) else None


def _read_chunk(chunk: dict[str, Any]) -> EventFacts:
    """Return what one chunk of a stream says; a whole answer has the same form."""
    listed = chunk.get("candidates")
    candidates = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []
    parts = [part for candidate in candidates for part in _parts(candidate)]
    reasons = [c["finishReason"] for c in candidates if _is_reason(c.get("finishReason"))]
    is_blocked = _is_reason(object_in(chunk, "promptFeedback").get("blockReason"))
    return EventFacts(
        is_meaningful=any(map(_says_something, parts)),
        output_bytes=written_bytes(parts),
        images=sum(map(_is_picture, parts)),
        is_finish=bool(reasons) or is_blocked,
        is_normal_finish=not is_blocked and CUT_SHORT.isdisjoint(reasons),
        is_error=bool(chunk.get("error")),
        model=text_in(chunk, "modelVersion"),
        usage=read_usage(chunk),
    )


def _is_reason(value: object) -> bool:
    if isinstance(value, str):
        return bool(value) and not UNSPECIFIED.fullmatch(value)
    return isinstance(value, int) and value != 0


def _parts(candidate: dict[str, Any]) -> list[dict[str, Any]]:
    parts = object_in(candidate, "content").get("parts")
    listed = parts if isinstance(parts, list) else [parts]
    return [part for part in listed if isinstance(part, dict)]


def _says_something(part: dict[str, Any]) -> bool:
    """Return whether a part holds something: text, thoughts, calls, code, data, ..."""
    return any(value and name != "thought" for name, value in part.items())


def _is_picture(part: dict[str, Any]) -> bool:
    """Return whether a part is a picture that was made; what was drawn in thought is none."""
    data = part.get("inlineData") or part.get("inline_data")
    if not isinstance(data, dict) or part.get("thought"):
        return False
    kind = data.get("mimeType") or data.get("mime_type")
    return isinstance(kind, str) and kind.lower().startswith("image/")


def _is_filled(embedding: object) -> bool:
    """Return whether there is anything but empty lists and objects."""
    if isinstance(embedding, dict):
        embedding = list(embedding.values())
    if isinstance(embedding, list):
        return any(map(_is_filled, embedding))
    return embedding is not None


# -- errors and lists --------------------------------------------------------------------


def _status_of(parts: ErrorParts) -> str:
    if parts.type in KNOWN_STATUSES:
        return parts.type
    return STATUSES.get(parts.status, "INTERNAL" if parts.status >= 500 else "INVALID_ARGUMENT")


def _reason(code: str | None) -> str:
    """Return an error code as an ErrorInfo has it; empty where it only repeats a status."""
    if not code or code.isdigit():
        return ""
    return re.sub("[^A-Z0-9_]", "_", code.upper())[:63]


def _card(name: str) -> dict[str, object]:
    return {
        "name": resource_name(name),
        "displayName": name,
        "supportedGenerationMethods": METHODS,
    }
