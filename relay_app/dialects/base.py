"""What the relay needs of a client dialect. Implementations are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from relay_app.core.types import AnswerFacts, EventFacts

TOO_DEEP = "the request body is nested too deeply"


class BodyError(ValueError):
    """A request body that the dialect can't read; the text says why and where."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The part of a request that routing needs."""

    model: str
    is_stream: bool


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
    """One way of speaking with clients."""

    # What a stream ends with when the upstream left its last event out; may be empty.
    stream_end: bytes
    # Where its SDKs look for the id of a request, beside X-Request-Id; may be empty.
    request_id_header: str

    def read_request(self, body: bytes) -> Envelope:
        """Return what routing needs; raise BodyError."""

    def read_answer(self, body: bytes) -> AnswerFacts:
        """Return what a whole 2xx answer says."""

    def read_event(self, data: bytes | None, name: bytes) -> EventFacts:
        """Return what one event of a stream says; `data` None: only comments."""

    def model_list(self, names: Sequence[str]) -> bytes:
        """Return the JSON body that lists models."""

    def error_body(self, parts: ErrorParts) -> bytes:
        """Return the JSON body of an error answer."""

    def error_event(self, parts: ErrorParts) -> bytes:
        """Return the event that ends a broken stream, its blank line included."""


def decode_envelope(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return `body` as the decoder's struct; raise BodyError with what and where.

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
