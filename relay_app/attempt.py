"""One attempt: build the request, send it, read the answer. An `Answer` or a `Failure`.

Nothing of the answer is given away before it is known to be one: whole bodies are read
and judged, streams are opened up to their first meaningful event.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx

from channels_app.core.types import ChannelView, Failure, FailureClass
from relay_app.core.attempts import Step
from relay_app.core.classify import classify_response
from relay_app.core.limits import Limits
from relay_app.core.redact import redact
from relay_app.core.types import Call, Usage
from relay_app.dialects.base import Dialect
from relay_app.providers.registry import ADAPTERS
from relay_app.streaming import AnswerStream

EVENT_STREAM = "text/event-stream"
# Error texts are short; a slow or endless one must not hold up the next attempt.
MAX_ERROR_BYTES = 256 * 1024
ERROR_READ_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an upstream answered, good enough to be passed on: a body or a stream."""

    status: int
    content_type: str
    body: bytes | None = None
    stream: AnswerStream | None = None
    model: str = ""
    usage: Usage | None = None


async def send(
    call: Call,
    step: Step,
    *,
    transport: httpx.AsyncBaseTransport,
    dialect: Dialect,
    limits: Limits,
) -> Answer | Failure:
    """Return what came of sending `call` as `step` says; raises only if cancelled."""
    request = _build(call, step, limits)
    if isinstance(request, Failure):
        return request
    channel, sent_s = step.channel, time.monotonic()
    headers_s = limits.first_byte if call.is_stream else limits.response
    try:
        async with asyncio.timeout(limits.earliest(headers_s, limits.total)):
            response = await transport.handle_async_request(request)
    except TimeoutError:
        message = f"no answer within {limits.earliest(headers_s, limits.total):g} s"
        return Failure(failure_class=FailureClass.TIMEOUT, message=message)
    except httpx.TransportError as error:
        return _unreachable(error, channel)
    stream: AnswerStream | None = None
    try:
        if not 200 <= response.status_code <= 299:
            return await _read_error(response, channel)
        content_type = response.headers.get("content-type", "")
        if call.is_stream and content_type.lower().startswith(EVENT_STREAM):
            opening = AnswerStream(
                response,
                dialect,
                channel=channel,
                limits=limits,
                sent_s=sent_s,
                request_id=call.request_id,
            )
            failure = await opening.open()
            if failure is not None:
                return failure
            stream = opening
            return Answer(status=200, content_type=content_type, stream=stream, model=stream.model)
        return await _read_whole(
            response, channel=channel, dialect=dialect, limits=limits, sent_s=sent_s
        )
    finally:
        if stream is None:
            await response.stream.aclose()  # type: ignore[union-attr]  # always async


def _build(call: Call, step: Step, limits: Limits) -> httpx.Request | Failure:
    """Return the request, or the channel error that keeps it from being built."""
    channel = step.channel
    adapter = ADAPTERS.get(channel.provider)
    if adapter is None:
        return _misconfigured("channel:unknown_type", f"type {channel.provider!r}")
    if step.key is None and adapter.needs_key:
        return _misconfigured("channel:no_available_key", "no enabled key")
    try:
        request = adapter.build(call, channel=channel, key=step.key)
    except UnicodeError:
        return _misconfigured("channel:invalid_key", "the key is not plain ASCII")
    except (httpx.InvalidURL, ValueError) as error:
        message = redact(str(error), channel.secrets)
        return _misconfigured("channel:invalid_base_url", message)
    request.extensions["timeout"] = {"connect": limits.connect or None}
    return request


def _misconfigured(code: str, message: str) -> Failure:
    return Failure(failure_class=FailureClass.CHANNEL_CONFIG, code=code, message=message)


def _unreachable(error: httpx.TransportError, channel: ChannelView) -> Failure:
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
    *,
    channel: ChannelView,
    dialect: Dialect,
    limits: Limits,
    sent_s: float,
) -> Answer | Failure:
    """Return the answer once its body is whole and says that it is one."""
    limit_s = limits.earliest(limits.response, limits.total)
    left_s = None if limit_s is None else max(0.0, sent_s + limit_s - time.monotonic())
    try:
        async with asyncio.timeout(left_s):
            body = await response.aread()
    except TimeoutError:
        message = f"the answer was not whole within {limit_s:g} s"
        return Failure(failure_class=FailureClass.TIMEOUT, message=message)
    except httpx.RequestError as error:
        return Failure(
            failure_class=FailureClass.TRANSPORT,
            message=redact(f"{type(error).__name__}: {error}", channel.secrets),
        )
    facts = dialect.read_answer(body)
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
        )
    return Answer(
        status=response.status_code,
        content_type=response.headers.get("content-type", "application/json"),
        body=body,
        model=facts.model,
        usage=facts.usage,
    )
