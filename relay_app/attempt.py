"""One attempt: build the request, send it, read the answer. An `Answer` or a `Failure`.

Nothing of the answer is given away before it is known to be one: whole bodies are read
and judged, streams are opened up to their first meaningful event.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import httpx

from billing_app.core.usage import Usage
from channels_app.core.types import ChannelView, Failure, FailureClass
from relay_app.connectors import AddressNotAllowed
from relay_app.core.attempts import Step
from relay_app.core.classify import classify_response, request_id_of
from relay_app.core.limits import Limits
from relay_app.core.proxies import read_proxy
from relay_app.core.redact import redact
from relay_app.core.types import Call
from relay_app.dialects.base import Dialect
from relay_app.providers.registry import ADAPTERS
from relay_app.shaping import channel_error, shape
from relay_app.streaming import AnswerStream

EVENT_STREAM = "text/event-stream"
# Error texts are short; a slow or endless one must not hold up the next attempt.
MAX_ERROR_BYTES = 256 * 1024
ERROR_READ_S = 10.0
# Generous for images in base64; a compressed bomb or an endless body ends here.
MAX_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an upstream answered, good enough to be passed on: a body or a stream."""

    status: int
    content_type: str
    body: bytes | None = None
    stream: AnswerStream | None = None
    model: str = ""
    usage: Usage | None = None
    output_bytes: int = 0  # that the model wrote, where no usage is told
    images: int = 0
    seconds: int = 0
    response_id: str = ""
    upstream_request_id: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether it is no stream of events."""
        return self.stream is None and not self.content_type.startswith(EVENT_STREAM)


async def send(
    call: Call,
    step: Step,
    *,
    transport: httpx.AsyncBaseTransport,
    dialect: Dialect,
    limits: Limits,
    last_failure: Failure | None = None,
) -> Answer | Failure:
    """Return what came of sending `call` as `step` says; raises only if cancelled.

    `last_failure` is that of the attempt before, which overrides of the channel may look at.
    """
    request = _build(call, step, limits=limits, dialect=dialect, last_failure=last_failure)
    if isinstance(request, Failure):
        return request
    channel, sent_s = step.channel, time.monotonic()
    headers_s = limits.earliest(
        limits.first_byte if call.is_stream else limits.response, limits.total
    )
    try:
        async with asyncio.timeout(headers_s):
            response = await transport.handle_async_request(request)
    except TimeoutError:
        message = f"no answer within {headers_s:g} s"
        return Failure(failure_class=FailureClass.TIMEOUT, message=message)
    except httpx.TransportError as error:
        return _unreachable(error, channel)
    common: Any = {"channel": channel, "limits": limits, "sent_s": sent_s}
    answer: Answer | Failure | None = None
    try:
        if not 200 <= response.status_code <= 299:
            answer = await _read_error(response, channel)
        elif call.is_stream and _content_type(response).lower().startswith(EVENT_STREAM):
            stream = AnswerStream(
                response,
                dialect,
                request_id=call.request_id,
                hides_usage=call.hides_usage,
                **common,
            )
            answer = await _open_stream(stream, response)
        else:
            answer = await _read_whole(response, dialect, **common)
    finally:
        if not (isinstance(answer, Answer) and answer.stream):
            await response.stream.aclose()  # type: ignore[union-attr]  # always async
    return replace(answer, upstream_request_id=request_id_of(response.headers, channel.secrets))


async def _open_stream(stream: AnswerStream, response: httpx.Response) -> Answer | Failure:
    """Return the stream once it is past its commit point."""
    failure = await stream.open()
    if failure is not None:
        return failure
    return Answer(
        status=200, content_type=_content_type(response), stream=stream, model=stream.model
    )


def _content_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "application/json"))


def _build(
    call: Call, step: Step, *, limits: Limits, dialect: Dialect, last_failure: Failure | None
) -> httpx.Request | Failure:
    """Return the request, or the channel error that keeps it from being built."""
    channel = step.channel
    adapter = ADAPTERS.get(channel.provider)
    if adapter is None:
        return channel_error("channel:unknown_type", f"type {channel.provider!r}")
    if step.key is None and adapter.needs_key:
        return channel_error("channel:no_available_key", "no enabled key")
    shaped = shape(
        call,
        channel=channel,
        key=step.key,
        dialect=dialect,
        model=step.model or call.model,
        retry_index=step.number - 1,
        last_failure=last_failure,
    )
    if isinstance(shaped, Failure):
        return replace(shaped, message=redact(shaped.message, channel.secrets))
    try:
        request = adapter.build(shaped, channel=channel, key=step.key)
    except UnicodeError:
        return channel_error("channel:invalid_key", "the key is not plain ASCII")
    except (httpx.InvalidURL, ValueError) as error:
        message = redact(str(error), channel.secrets)
        return channel_error("channel:invalid_base_url", message)
    if shaped.header_override:
        request.headers.update(httpx.Headers(shaped.header_override, encoding="latin-1"))
    request.extensions["wants_fresh"] = step.is_repeat
    request.extensions["timeout"] = {"connect": limits.connect or None}
    if channel.proxy:
        try:
            request.extensions["proxy"] = read_proxy(channel.proxy)
        except ValueError as error:  # its text never holds what was written
            return channel_error("channel:proxy_invalid", str(error))
    return request


def _unreachable(error: httpx.TransportError, channel: ChannelView) -> Failure:
    if isinstance(error, AddressNotAllowed):
        message = redact(str(error), channel.secrets)
        return channel_error("channel:address_not_allowed", message)
    is_timeout = isinstance(error, httpx.TimeoutException)
    return Failure(
        failure_class=FailureClass.TIMEOUT if is_timeout else FailureClass.TRANSPORT,
        message=redact(f"{type(error).__name__}: {error}", channel.secrets),
    )


async def _read_error(response: httpx.Response, channel: ChannelView) -> Failure:
    body = b""
    try:
        async with asyncio.timeout(ERROR_READ_S):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ERROR_BYTES:
                    break
    except (TimeoutError, httpx.RequestError):
        pass  # the status alone says enough
    return classify_response(
        status=response.status_code,
        headers=response.headers,
        body=body,
        provider=channel.provider,
        secrets=channel.secrets,
    )


async def _read_whole(
    response: httpx.Response,
    dialect: Dialect,
    *,
    channel: ChannelView,
    limits: Limits,
    sent_s: float,
) -> Answer | Failure:
    """Return the answer once its body is whole and says that it is one."""
    limit_s = limits.earliest(limits.response, limits.total)
    left_s = None if limit_s is None else max(0.0, sent_s + limit_s - time.monotonic())
    try:
        async with asyncio.timeout(left_s):
            body = await _read_body(response)
    except TimeoutError:
        message = f"the answer was not whole within {limit_s:g} s"
        return Failure(failure_class=FailureClass.TIMEOUT, message=message)
    except httpx.RequestError as error:
        return Failure(
            failure_class=FailureClass.TRANSPORT,
            message=redact(f"{type(error).__name__}: {error}", channel.secrets),
        )
    if body is None:
        message = f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB"
        return Failure(
            failure_class=FailureClass.SERVER, message=message, status=502, seen_status=502
        )
    return _judge(response, body, channel=channel, dialect=dialect)


async def _read_body(response: httpx.Response) -> bytes | None:
    """Return the whole body, decompressed; None when it is too large to be an answer."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def _judge(
    response: httpx.Response, body: bytes, *, channel: ChannelView, dialect: Dialect
) -> Answer | Failure:
    """Return what a whole 2xx body is: an answer, an error object, nothing, or noise."""
    facts = dialect.read_answer(body, _content_type(response))
    if facts.is_error:
        return classify_response(
            status=response.status_code,
            headers=response.headers,
            body=body,
            provider=channel.provider,
            secrets=channel.secrets,
        )
    if not facts.is_readable:
        return Failure(
            failure_class=FailureClass.SERVER,
            message="the upstream answered with something other than JSON",
            status=502,
            seen_status=502,
        )
    if facts.is_empty:
        return Failure(
            failure_class=FailureClass.EMPTY_RESPONSE,
            message="the answer is empty",
            status=response.status_code,
            empty_answer=body,
            empty_answer_type=_content_type(response),
        )
    return Answer(
        status=response.status_code,
        content_type=_content_type(response),
        body=body,
        model=facts.model,
        usage=facts.usage,
        output_bytes=facts.output_bytes,
        images=facts.images,
        seconds=facts.seconds,
        response_id=facts.response_id,
    )
