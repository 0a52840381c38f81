"""Upstream sockets: httpx's transport interface over one aiohttp session.

httpx gives the types, the errors and `MockTransport`; its own connection pool costs
more than the rest of a request, so the transport is called directly and the pool is
aiohttp's. HTTP/1.1 only: cancelling there closes the connection, which is how an
upstream learns that nobody listens any more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from functools import cache, lru_cache
from io import BytesIO
from typing import Any

import aiohttp
import httpx
import yarl

from relay_app.connectors import Connector, SocksConnector, is_reused, wants_fresh
from relay_app.core.proxies import Proxy

# A slow client holds its upstream back, and this is what may wait for it meanwhile: what
# aiohttp keeps (it stops reading at twice this), and the pieces that are under way.
READ_BUFFER_BYTES = 16 * 1024
PIECE_BYTES = 16 * 1024
# Providers send rate-limit and policy headers of many kilobytes.
MAX_HEADER_BYTES = 64 * 1024
# Idle connections are closed before most providers close them (nginx: 60 s or 75 s).
KEEPALIVE_S = 50.0
DNS_CACHE_S = 30
# aiohttp writes larger bodies in one go, past all back-pressure, unless they come as a file.
LARGE_BODY_BYTES = 1024 * 1024
# Sessions of SOCKS proxies that are kept though nothing uses them; they soon hold no sockets.
MAX_SOCKS_SESSIONS = 64
PROXY_AUTHENTICATION_REQUIRED = 407


class _Stream(httpx.AsyncByteStream):
    """The body of an answer, in the pieces in which it arrives."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        broken: httpx.TransportError | None = None
        try:
            content = self._response.content
            while chunk := await content.read(PIECE_BYTES):
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
    more on a fresh one. Nearly always the peer had closed the idle connection and never saw
    the request; that it broke while it worked on it can't be told apart, so a request whose
    extension `wants_fresh` says that it was there before goes out on a fresh one, once.
    """

    def __init__(self, *, allows_private: Callable[[], bool]) -> None:
        self._allows_private = allows_private
        self._session: aiohttp.ClientSession | None = None
        # By the proxy's address, the one used last at the end.
        self._socks: dict[str, aiohttp.ClientSession] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        is_reused.set(False)
        wants_fresh.set(bool(request.extensions.get("wants_fresh")))
        try:
            return await self._send(request)
        except (httpx.RemoteProtocolError, httpx.WriteError):
            if not is_reused.get():
                raise
        wants_fresh.set(True)
        return await self._send(request)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        limits = request.extensions.get("timeout", {})
        proxy: Proxy | None = request.extensions.get("proxy")
        session = await self._session_for(proxy)
        through: dict[str, Any] = {}
        if proxy is not None:
            # The proxy connects, to whatever a name is to it; what is no name is known here.
            assert isinstance(session.connector, Connector)
            session.connector.check_host(request.url.host)
            through = {} if proxy.is_socks else {"proxy": _url(proxy.url)}
        try:
            response = await session.request(
                request.method,
                _url(str(request.url)),
                headers=request.headers.multi_items(),
                data=_body(request.content),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.get("connect")),
                **through,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _as_httpx(error, request) from error
        if through and response.status == PROXY_AUTHENTICATION_REQUIRED:
            response.close()
            raise httpx.ProxyError(_proxy_words(response.status), request=request)
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Stream(response),
            request=request,
        )

    async def _session_for(self, proxy: Proxy | None) -> aiohttp.ClientSession:
        """Return the session, made on first use: it belongs to the running loop.

        One serves all requests but those through SOCKS: aiohttp's pool tells HTTP proxies
        apart, and knows no other kind.
        """
        if proxy is not None and proxy.is_socks:
            return await self._socks_session(proxy)
        if self._session is None:
            self._session = _new_session(Connector(**self._pool_options()))
        return self._session

    async def _socks_session(self, proxy: Proxy) -> aiohttp.ClientSession:
        """Return the session of this proxy; of those that nothing uses, the oldest go."""
        known = self._socks.pop(proxy.url, None)
        session = known or _new_session(SocksConnector(proxy, **self._pool_options()))
        self._socks[proxy.url] = session
        if known is None and len(self._socks) > MAX_SOCKS_SESSIONS:
            idle = [url for url, one in self._socks.items() if not _is_busy(one) and one != session]
            for url in idle[: len(self._socks) - MAX_SOCKS_SESSIONS]:
                await self._socks.pop(url).close()
        return session

    def _pool_options(self) -> dict[str, Any]:
        return {
            "allows_private": self._allows_private,
            "limit": 0,
            "keepalive_timeout": KEEPALIVE_S,
            "ttl_dns_cache": DNS_CACHE_S,
            "ssl": _tls(),
        }

    async def aclose(self) -> None:
        for session in (self._session, *self._socks.values()):
            if session is not None:
                await session.close()


def _is_busy(session: aiohttp.ClientSession) -> bool:
    return isinstance(session.connector, Connector) and session.connector.is_busy


@cache
def _tls() -> ssl.SSLContext:
    """Return the one context of the process: reading the certificates takes a while."""
    return ssl.create_default_context()


def _new_session(connector: Connector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=READ_BUFFER_BYTES,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=aiohttp.ClientTimeout(total=None),
        max_field_size=MAX_HEADER_BYTES,
        max_line_size=MAX_HEADER_BYTES,
    )


def _as_httpx(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """Return httpx's name for an aiohttp error, most specific first."""
    text = _text(error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return httpx.ProxyError(_proxy_words(error.status), request=request)
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


def _proxy_words(status: int) -> str:
    wants = ": it wants another user or password" if status == PROXY_AUTHENTICATION_REQUIRED else ""
    return f"the proxy answered {status}{wants}"


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _body(content: bytes) -> bytes | BytesIO | None:
    """Return the body as aiohttp sends it best; None if there is none."""
    if len(content) > LARGE_BODY_BYTES:
        return BytesIO(content)
    return content or None


@lru_cache(maxsize=4096)
def _url(url: str) -> yarl.URL:
    return yarl.URL(url, encoded=True)
