"""What the relay needs of a client dialect. Implementations are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from relay_app.core.json_edit import set_fields
from relay_app.core.json_names import repeated_name
from relay_app.core.redact import cut
from relay_app.core.types import AnswerFacts, Call, EventFacts

# No answer has more tokens; whoever asks for more asks for as many as there may be.
MAX_COUNT = 2**31 - 1
TOO_DEEP = "the request body is nested too deeply"


class BodyError(ValueError):
    """A request body that the dialect can't read; the text says why and where."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """What a client sent, before it is understood. `path`: what the path named."""

    body: bytes
    content_type: str = "application/json"
    query: str = ""
    path: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class Framing(Protocol):
    """How one client's stream is written, where a dialect knows several ways."""

    content_type: str

    def feed(self, events: bytes) -> bytes:
        """Return what the client gets for these events; may be nothing."""

    def end(self) -> bytes:
        """Return what it gets at the end."""

    def whole(self, body: bytes, content_type: str) -> bytes:
        """Return an answer that came whole, though a stream was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The part of a request that routing and limits need; `max_output_tokens` 0: not said.
    `answer_count`: how many answers it asks for; 0: its field `n` says so, if anything does.

    `framing` makes one for this request; None: streams go out as they come.
    """

    model: str
    is_stream: bool
    max_output_tokens: int = 0
    answer_count: int = 0
    previous_response_id: str = ""
    framing: Callable[[], Framing] | None = None
    # The body with usage asked for, where a stream tells it only then and the client did not
    # ask; its event is then kept from the client.
    body_asking_usage: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorParts:
    """An error before a dialect gives it its form; `type` None: by the status."""

    status: int
    message: str
    type: str | None
    code: str | None
    param: str | None = None
    request_id: str = ""


class Dialect(Protocol):
    """One way of speaking with clients, at one kind of endpoint."""

    # openai, anthropic or gemini: what its errors and lists look like.
    family: str
    # What a stream ends with when the upstream left its last event out; may be empty.
    stream_end: bytes
    # Whether a proper end counts only with the last event or a clean end of the stream behind it;
    # the last event is a proper end by itself then. Else it is a mark that says nothing.
    ends_cleanly: bool
    # Where its SDKs look for the id of a request, beside X-Request-Id; may be empty.
    request_id_header: str

    def read_request(self, incoming: Incoming) -> Envelope:
        """Return what routing needs; raise BodyError."""

    def with_model(self, call: Call, model: str) -> Call:
        """Return `call` asking for `model` instead, all else in it untouched."""

    def read_answer(self, body: bytes, content_type: str = "application/json") -> AnswerFacts:
        """Return what a whole 2xx answer says."""

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        """Return what one event of a stream says; `data` None: only comments."""

    def model_list(self, names: Sequence[str]) -> bytes:
        """Return the JSON body that lists models."""

    def model_card(self, name: str) -> bytes:
        """Return the JSON body that describes one model."""

    def error_body(self, parts: ErrorParts) -> bytes:
        """Return the JSON body of an error answer."""

    def error_event(self, parts: ErrorParts) -> bytes:
        """Return the event that ends a broken stream, its blank line included."""


def with_model_field(call: Call, model: str) -> Call:
    """Return `call` with another name in the `model` field of its JSON body."""
    return replace(call, model=model, body=set_fields(call.body, {"model": model}))


def decode_envelope(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return `body` as the decoder's struct; raise BodyError with what and where.

    A body that gives a field twice is refused: the upstream might read the other one.
    """
    envelope = _decoded(decoder, body)
    try:
        repeated = repeated_name(body)
    except RecursionError:
        raise BodyError(TOO_DEEP) from None
    if repeated is not None:
        name, count = cut(repeated[0], 60), repeated[1]
        raise BodyError(f"{name} is given {count} times; send it once", param=name)
    return envelope


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return `body` as the decoder's struct; raise BodyError.

    The fast parser refuses lone surrogates, which clients do send and the standard one
    reads, so that one is asked before the client is told no.
    """
    if not body.strip():
        raise BodyError("the request body is empty; send a JSON object")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None
    except RecursionError:
        raise BodyError(TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fast_parser_says = error
    try:
        return decoder.decode(_without_surrogates(body))
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None
    except RecursionError:
        raise BodyError(TOO_DEEP) from None
    except ValueError:
        raise BodyError(f"the request body is not valid JSON: {fast_parser_says}") from None


def count_in(raw: msgspec.Raw) -> int:
    """Return the count that a raw field holds, MAX_COUNT for larger ones; 0 when it is none: the
    upstream judges it."""
    try:
        count = float(bytes(raw))
    except ValueError:
        return 0
    return int(min(max(count, 0), MAX_COUNT))


def _without_surrogates(body: bytes) -> bytes:
    """Return the same JSON with `?` for each lone surrogate; raise ValueError if it is none.

    NaN and infinities, which the standard parser adds to JSON, are still refused.
    """
    document = json.loads(body.decode("utf-8-sig"))
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def _wrong_type(error: msgspec.ValidationError) -> BodyError:
    """Return msgspec's complaint in words for people who never heard of it."""
    reason, _, path = str(error).partition(" - at `$")
    param = path.strip("`.") or None
    if missing := re.search(r"missing required field `(\w+)`", reason):
        return BodyError(f"{missing[1]} is missing", param=missing[1])
    reason = reason[:1].lower() + reason[1:].replace("`", "")
    what = param or "the request body"
    return BodyError(f"{what} has the wrong type: {reason}", param=param)
