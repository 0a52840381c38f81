"""The OpenAI chat completions dialect: requests, answers, stream events, errors."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from billing_app.core.usage import Usage
from relay_app.core.error_body import read_error
from relay_app.core.json_edit import set_fields
from relay_app.core.types import AnswerFacts, EventFacts
from relay_app.dialects.base import Envelope, Incoming, count_in, decode_envelope
from relay_app.dialects.openai_base import OpenAIDialect, checked_model, read_json, read_object
from relay_app.dialects.openai_usage import read_usage
from relay_app.dialects.written import written_bytes

# An end for one of these reasons is an answer even without content.
CUT_SHORT = {"length", "content_filter"}

# What some providers write when the answer broke.
FAILED = "error"

# Raw values that carry nothing.
_NOTHING = (b"", b"null", b'""', b"[]", b"{}")
_QUOTE = ord('"')
# A field that is not there; told by identity, for most are not.
_ABSENT = msgspec.Raw(b"")


class _Request(msgspec.Struct):
    model: str
    messages: list[msgspec.Raw]
    stream: bool | None = None
    max_tokens: msgspec.Raw = msgspec.Raw(b"")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"")
    stream_options: msgspec.Raw = msgspec.Raw(b"")

    @property
    def output_limit(self) -> int:
        return count_in(self.max_completion_tokens) or count_in(self.max_tokens)


class _Delta(msgspec.Struct):
    """The fields that carry an answer; raw, since providers disagree on their types."""

    content: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    reasoning_content: msgspec.Raw = _ABSENT
    reasoning: msgspec.Raw = _ABSENT
    reasoning_details: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    refusal: msgspec.Raw = _ABSENT
    audio: msgspec.Raw = _ABSENT

    def says_something(self) -> bool:
        return (
            _says(self.content)
            or _says(self.tool_calls)
            or _says(self.reasoning_content)
            or _says(self.reasoning)
            or _says(self.reasoning_details)
            or _says(self.function_call)
            or _says(self.refusal)
            or _says(self.audio)
        )

    def written(self) -> int:
        """Return the bytes that the model wrote in it."""
        thoughts = _written(self.reasoning_content) or _written(self.reasoning)
        return (
            _written(self.content)
            + _written(self.tool_calls)
            + (thoughts or _written(self.reasoning_details))
            + _written(self.function_call)
            + _written(self.refusal)
            + _written(self.audio)
        )


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: msgspec.Raw = _ABSENT
    index: int | None = 0
    finish_reason: str | None = None

    def says_something(self) -> bool:
        part = self.delta or self.message
        return (part is not None and part.says_something()) or _says(self.text)

    def written(self) -> int:
        part = self.delta or self.message
        return (part.written() if part is not None else 0) + _written(self.text)


class _Answer(msgspec.Struct):
    """A chunk of a stream, or a whole answer: they differ in `delta` and `message`."""

    choices: list[_Choice] | None = None
    error: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    model: str | None = None


_decode_request = msgspec.json.Decoder(_Request)
_decode_answer = msgspec.json.Decoder(_Answer)


class OpenAIChat(OpenAIDialect):
    """POST /v1/chat/completions and whatever is compatible with it."""

    stream_end = b"data: [DONE]\n\n"

    def read_request(self, incoming: Incoming) -> Envelope:
        request: _Request = decode_envelope(_decode_request, incoming.body)
        return Envelope(
            model=checked_model(request.model),
            is_stream=bool(request.stream),
            max_output_tokens=request.output_limit,
            body_asking_usage=asking_usage(incoming.body, request) if request.stream else None,
        )

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        answer = _read(body)
        if answer is None:
            error = read_error(body)
            return AnswerFacts(is_readable=False, is_error=error.is_error)
        if not answer.choices and _is_error(answer, body):
            return AnswerFacts(is_error=True)
        usage = _usage(answer)
        return AnswerFacts(
            is_empty=_is_empty(answer, usage),
            model=answer.model or "",
            usage=usage,
            output_bytes=_written_in(answer.choices or []) if usage is None else 0,
        )

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        if data is None:
            return EventFacts()
        if data.strip() == b"[DONE]":
            return EventFacts(is_last=True)
        if not (data.isascii() or is_utf8(data)):  # the decoder does not look into all of it
            return EventFacts(is_malformed=True)
        answer = _read(data)
        if answer is None:
            is_error = name == b"error" or read_error(data).is_error
            return EventFacts(is_error=is_error, is_malformed=not is_error)
        if name == b"error" or _says(answer.error):
            return EventFacts(is_error=True)
        choices = answer.choices or []
        if len(choices) == 1 and choices[0].finish_reason is None and not _tells(answer.usage):
            choice = choices[0]
            size = choice.written()
            is_meaningful = size > 0 or choice.says_something()
            return _plain_facts(size, is_meaningful, answer.model or "", choice.index or 0)
        reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
        if FAILED in reasons:
            return EventFacts(is_error=True)
        return EventFacts(
            is_meaningful=any(choice.says_something() for choice in choices),
            output_bytes=_written_in(choices),
            is_finish=bool(reasons),
            choices=tuple(choice.index or 0 for choice in choices),
            ended=tuple(choice.index or 0 for choice in choices if choice.finish_reason),
            is_normal_finish=not CUT_SHORT.intersection(reasons),
            model=answer.model or "",
            usage=_usage(answer),
            is_usage_only=not choices and _tells(answer.usage),
        )


class HasStreamOptions(Protocol):
    """A request of which the options of its stream are known."""

    stream_options: msgspec.Raw


def asking_usage(body: bytes, request: HasStreamOptions) -> bytes | None:
    """Return the body of a stream request with its usage asked for; None if it is already, or
    if the options are none: the upstream refuses them better."""
    raw = bytes(request.stream_options)
    options = json.loads(raw) if raw not in _NOTHING else {}
    if not isinstance(options, dict) or options.get("include_usage") is True:
        return None
    return set_fields(body, {"stream_options": {**options, "include_usage": True}})


@lru_cache(maxsize=1024)
def _plain_facts(size: int, is_meaningful: bool, model: str, choice: int) -> EventFacts:
    """Return the facts of most chunks, made once for each model and size."""
    return EventFacts(
        is_meaningful=is_meaningful, output_bytes=size, model=model, choices=(choice,)
    )


def is_utf8(data: bytes) -> bool:
    """Return whether `data` is text."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _says(raw: msgspec.Raw) -> bool:
    return raw is not _ABSENT and bytes(raw) not in _NOTHING


def _written_in(choices: list[_Choice]) -> int:
    return sum(choice.written() for choice in choices)


def _written(raw: msgspec.Raw) -> int:
    """Return the bytes that the model wrote in a raw value: mostly a text as it stands."""
    if raw is _ABSENT:
        return 0
    value = bytes(raw)
    if value in _NOTHING:
        return 0
    if value[0] == _QUOTE and b"\\" not in value:
        return len(value) - 2
    return written_bytes(read_json(value))


def _read(data: bytes) -> _Answer | None:
    """Return the chunk or answer, or None when it is not a JSON object of that form."""
    try:
        return _decode_answer.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return _tolerant(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _tolerant(document: Any) -> _Answer | None:
    """Return what can be told of an object that strict reading refused.

    Providers send lone surrogates, floats for counts and the like; such an answer is
    still an answer.
    """
    if not isinstance(document, dict):
        return None
    choices = []
    listed = document.get("choices")
    for raw in listed if isinstance(listed, list) else []:
        if isinstance(raw, dict):
            part = raw.get("delta") or raw.get("message")
            fields = part if isinstance(part, dict) else {}
            known = {k: _raw(v) for k, v in fields.items() if k in _Delta.__struct_fields__}
            reason = raw.get("finish_reason")
            choices.append(
                _Choice(
                    delta=_Delta(**known),
                    text=_raw(raw.get("text")),
                    index=raw["index"] if isinstance(raw.get("index"), int) else 0,
                    finish_reason=reason if isinstance(reason, str) else None,
                )
            )
    model, usage = document.get("model"), document.get("usage")
    return _Answer(
        choices=choices,
        error=_raw(document.get("error")),
        usage=_raw(usage) if isinstance(usage, dict) else _ABSENT,
        model=model if isinstance(model, str) else None,
    )


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def _is_error(answer: _Answer, body: bytes) -> bool:
    return _says(answer.error) or read_error(body).is_error


def _is_empty(answer: _Answer, usage: Usage | None) -> bool:
    """Return whether the answer ended normally and carries nothing at all."""
    choices = answer.choices or []
    if any(c.says_something() or c.finish_reason in CUT_SHORT for c in choices):
        return False
    return usage is None or not usage.output_tokens


def _tells(usage: msgspec.Raw) -> bool:
    """Return whether there is a usage object; most chunks have none, or null."""
    return usage is not _ABSENT and bytes(usage) != b"null"


def _usage(answer: _Answer) -> Usage | None:
    """Return the usage that the answer tells, in whatever form; None if it tells none."""
    if not _tells(answer.usage):
        return None
    usage = read_object(bytes(answer.usage))
    return None if usage is None else read_usage(usage)
