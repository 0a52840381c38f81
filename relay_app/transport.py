"""Upstream sockets: httpx's transport interface over one aiohttp session.

httpx gives the types, the errors and `MockTransport`; its own connection pool costs
more than the rest of a request, so the transport is called directly and the pool is
aiohttp's. HTTP/1.1 only: cancelling there closes the connection, which is how an
upstream learns that nobody listens any more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import aiohttp
import httpx
import yarl
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tracing import Trace

# Providers send rate-limit and policy headers of many kilobytes.
MAX_HEADER_BYTES = 64 * 1024
# Idle connections are closed before most providers close them (nginx: 60 s or 75 s).
KEEPALIVE_S = 50.0
DNS_CACHE_S = 30

# Whether the connection of the running send had served an earlier request.
_is_reused: ContextVar[bool] = ContextVar("is_reused", default=False)


class _Protocol(ResponseHandler):
    """aiohttp's connection, with two things it lacks: whether it served before, and bad framing
    in the middle of a body told to whoever reads that body (it would wait for ever)."""

    has_served = False

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError) and self._payload is not None:
            text = f"the answer is not framed as HTTP: {exc.message}"
            self._payload.set_exception(aiohttp.ClientPayloadError(text))


class _Connector(aiohttp.TCPConnector):
    """A connector of such connections that tells whether it handed out a used one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(_Protocol, loop=self._loop)

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        if isinstance(protocol, _Protocol):
            _is_reused.set(protocol.has_served)
            protocol.has_served = True
        return connection


class _Stream(httpx.AsyncByteStream):
    """The body of an answer, in the pieces in which it arrives."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        broken: httpx.TransportError | None = None
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except TimeoutError as error:
            broken = httpx.ReadTimeout(_text(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            broken = httpx.ReadError(_text(error))
        if broken is not None:
            # Behind a slow client bytes wait here, and aiohttp raises before it gives them.
            rest = self._response.content._read_nowait(-1)  # noqa: SLF001  # no public way
            if rest:
                yield rest
            raise broken

    async def aclose(self) -> None:
        """Give a finished connection back to the pool; close any other at once."""
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Sends httpx requests through aiohttp and raises httpx's errors only.

    A request on a pooled connection that breaks before a byte of the answer is sent once
    more on a fresh one. Nearly always the peer had closed the idle connection and never
    saw the request; that it broke while it worked on it can't be told apart.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the session, made on first use: it belongs to the running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_Connector(
                    limit=0,
                    keepalive_timeout=KEEPALIVE_S,
                    ttl_dns_cache=DNS_CACHE_S,
                    ssl=ssl.create_default_context(),
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                skip_auto_headers=(
                    "User-Agent",
                    "Accept",
                    "Accept-Encoding",
                    "Content-Type",
                ),
                timeout=aiohttp.ClientTimeout(total=None),
                max_field_size=MAX_HEADER_BYTES,
                max_line_size=MAX_HEADER_BYTES,
            )
        return self._session

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _is_reused.set(False)
        try:
            return await self._send(request)
        except (httpx.RemoteProtocolError, httpx.WriteError):
            if not _is_reused.get():
                raise
        return await self._send(request)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        limits = request.extensions.get("timeout", {})
        try:
            response = await self._open_session().request(
                request.method,
                _url(str(request.url)),
                headers=request.headers.multi_items(),
                data=request.content or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.get("connect")),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _as_httpx(error, request) from error
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Stream(response),
            request=request,
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


def _as_httpx(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """Return httpx's name for an aiohttp error, most specific first."""
    text = _text(error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return httpx.ConnectTimeout(text, request=request)
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx.ConnectError(text, request=request)
    if isinstance(error, asyncio.TimeoutError):
        return httpx.ReadTimeout(text, request=request)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return httpx.RemoteProtocolError(text, request=request)
    if isinstance(error, aiohttp.ClientOSError | ConnectionError):
        return httpx.WriteError(text, request=request)
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return httpx.UnsupportedProtocol(text, request=request)
    return httpx.ReadError(text, request=request)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


@lru_cache(maxsize=4096)
def _url(url: str) -> yarl.URL:
    return yarl.URL(url, encoded=True)
