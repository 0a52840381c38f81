"""How connections are opened: guarded addresses, SOCKS proxies, and what aiohttp lacks.

The guard looks at the addresses that a name resolved to, right before one of them is
connected to, so a name that changes its mind in between gains nothing. Pooled connections
are not looked at again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import aiohttp
import httpx
from aiohttp.abc import ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tracing import Trace
from python_socks import ProxyConnectionError, ProxyError, ProxyTimeoutError, ProxyType
from python_socks.async_.asyncio import Proxy as SocksClient

from relay_app.core.addresses import address_fault
from relay_app.core.proxies import Proxy

# What one read of a socket takes at most; the event loop's own 250 KiB, times the streams of slow
# clients, would fill memory.
READ_BYTES = 32 * 1024
# Each read is copied out before the next begins, so all connections of a process share it.
_read_buffer = memoryview(bytearray(READ_BYTES))

PROXY_TOO_SLOW = "no connection through the proxy in time"

# Whether the connection of the running send had served an earlier request.
is_reused: ContextVar[bool] = ContextVar("is_reused", default=False)
# Whether it must be a new one.
wants_fresh: ContextVar[bool] = ContextVar("wants_fresh", default=False)


class AddressNotAllowed(httpx.ConnectError):
    """The relay may not connect there; the text says why and which option would allow it."""


class Protocol(ResponseHandler):
    """aiohttp's connection, with two things it lacks: whether it served before, and bad framing
    in the middle of a body told to whoever reads that body (it would wait for ever)."""

    has_served = False

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError) and self._payload is not None:
            text = f"the answer is not framed as HTTP: {exc.message}"
            self._payload.set_exception(aiohttp.ClientPayloadError(text))


class SmallReads(asyncio.BufferedProtocol):
    """Between a socket and aiohttp: reads no more than `READ_BYTES` at once."""

    def __init__(self, protocol: ResponseHandler) -> None:
        self._take = protocol.data_received
        # What the event loop calls besides; aiohttp has the transport already.
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the event loop puts what it reads."""
        return _read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        self._take(bytes(_read_buffer[:nbytes]))


class Connector(aiohttp.TCPConnector):
    """Connects to allowed addresses only, and tells whether it handed out a used connection."""

    def __init__(self, *, allows_private: Callable[[], bool], **options: Any) -> None:
        super().__init__(**options)
        self._allows_private = allows_private
        self._factory: Any = partial(Protocol, loop=self._loop)

    @property
    def is_busy(self) -> bool:
        """Return whether a request is under way on one of its connections."""
        return bool(self._acquired)

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        if isinstance(protocol, Protocol):
            is_reused.set(protocol.has_served)
            protocol.has_served = True
        return connection

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        """Return an idle connection of the pool, if there is one and it will do."""
        return None if wants_fresh.get() else await super()._get(key, traces)

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        """Open a connection within the time limit, which aiohttp forgets for a proxy's answer."""
        if req.proxy is None:
            return _reading_little(await super()._create_connection(req, traces, timeout))
        try:
            async with asyncio.timeout(timeout.sock_connect):
                return _reading_little(await super()._create_connection(req, traces, timeout))
        except TimeoutError:
            raise httpx.ConnectTimeout(PROXY_TOO_SLOW) from None

    def check_host(self, host: str) -> None:
        """Raise AddressNotAllowed if `host` as it is written must not be connected to."""
        fault = address_fault(host, allows_private=self._allows_private())
        if fault is not None:
            raise AddressNotAllowed(fault)

    async def _resolve_host(
        self, host: str, port: int, traces: Sequence[Trace] | None = None
    ) -> list[ResolveResult]:
        """Return those addresses of `host` that may be connected to."""
        self.check_host(host)
        found = await super()._resolve_host(host, port, traces)
        allows_private = self._allows_private()
        faults = [address_fault(one["host"], allows_private=allows_private) for one in found]
        allowed = [one for one, fault in zip(found, faults, strict=True) if fault is None]
        if found and not allowed:
            raise AddressNotAllowed(f"{host}: {faults[0]}")
        return allowed


def _reading_little(protocol: ResponseHandler) -> ResponseHandler:
    """Return `protocol`, with `SmallReads` between it and its socket."""
    if protocol.transport is not None:  # else it broke already
        protocol.transport.set_protocol(SmallReads(protocol))
    return protocol


class SocksConnector(Connector):
    """Connects through one SOCKS5 proxy, which resolves the names of upstreams itself."""

    def __init__(self, proxy: Proxy, **options: Any) -> None:
        super().__init__(**options)
        self._proxy = proxy

    async def _resolve_host(
        self, host: str, port: int, traces: Sequence[Trace] | None = None
    ) -> list[ResolveResult]:
        """Return `host` as it is written, if it may be asked for."""
        self.check_host(host)
        return [
            ResolveResult(hostname=host, host=host, port=port, family=0, proto=0, flags=0),
        ]

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: list[Any],
        req: ClientRequest,
        timeout: aiohttp.ClientTimeout,
        client_error: type[Exception] = aiohttp.ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        host, port = addr_infos[0][4][:2]
        try:
            async with asyncio.timeout(timeout.sock_connect):
                sock = await self._through_proxy(host, port)
                return await self._loop.create_connection(*args, **kwargs, sock=sock)
        except TimeoutError:
            raise httpx.ConnectTimeout(PROXY_TOO_SLOW) from None
        except OSError as error:  # of TLS with the upstream, too
            raise client_error(req.connection_key, error) from error

    async def _through_proxy(self, host: str, port: int) -> socket.socket:
        """Return a socket that the proxy has connected to `host`; raise httpx's errors."""
        proxy = self._proxy
        failed: ProxyConnectionError | None = None
        for one in await super()._resolve_host(proxy.host, proxy.port):
            client = SocksClient(
                ProxyType.SOCKS5,
                one["host"],
                proxy.port,
                proxy.user or None,
                proxy.password or None,
                rdns=True,
                loop=self._loop,
            )
            try:
                return await client.connect(host, port)
            except ProxyConnectionError as error:
                failed = error  # its next address may be the right one
            except ProxyTimeoutError:
                raise httpx.ConnectTimeout(PROXY_TOO_SLOW) from None
            except ProxyError as error:
                raise httpx.ProxyError(f"the proxy refused: {error}") from error
        raise httpx.ProxyError(f"the proxy can't be reached: {failed}") from failed
