"""One relay process: uvicorn on a socket that is already bound.

As a program it is a child of `serve --workers N`:
    python -m relayproject.server LISTEN_FD READY_FD
It inherits the listening socket and writes lines to READY_FD: `ready` once it answers, and
`stopping N` when it was told to stop with N requests in flight.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Connections the kernel holds while a process is busy; it caps this at net.core.somaxconn.
BACKLOG = 4096

# Bytes of a request's line and headers. Long cookies and traces fit; memory does not fill.
MAX_HEAD_BYTES = 128 * 1024
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 31\r\n\r\nthe request headers are too big"
)

# What may wait for a slow client before the answer is held back.
WRITE_BUFFER_BYTES = 16 * 1024

# Seconds an idle client connection stays open. Longer than the usual 60 s of proxies: the side
# that reuses connections must be the one to close them, or its next request meets a reset.
KEEP_ALIVE_S = 75

# Allocations between collections. Python's 700 means a collection every few requests; after
# start-up is frozen, what is left to find are rare cycles.
GC_THRESHOLD = (50_000, 20, 50)

LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# A repeated signal within this time is an echo of the first: make passes on what its whole
# process group got already.
ECHO_S = 0.5
HURRY_POLL_S = 0.1
# For the errors that tell clients why their answers end, once the drain is over.
LAST_WORDS_S = 1.0


class StopWish:
    """Tells a second wish to stop, which wants it now, from the first and its echoes."""

    def __init__(self) -> None:
        self._first_s: float | None = None

    def is_repeated(self) -> bool:
        """Take one signal; return whether it is a second wish."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        return now_s - self._first_s >= ECHO_S


def _nothing() -> None:
    """Stand for a callback that nobody needs."""


def _nothing_of(_: int) -> None:
    """Stand for a callback that takes a number and that nobody needs."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, not listening yet; raises OSError.

    Bound first and opened last, a taken port is known before anything else is started, and
    nobody connects to a relay that does not answer yet.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle off on what it accepts (uvloop always does).
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Without it the port stays taken for a minute after a stop.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


class BoundedHeadProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, closing connections whose request head never ends.

    httptools gathers headers without a limit, before anybody knows who asks.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Take the connection; let little wait in it for a slow client."""
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes; count those of a head that is not complete after them."""
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(HEAD_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to count anew."""
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop counting: what follows is the body."""
        self._is_in_head = False
        super().on_headers_complete()


class RelayServer(uvicorn.Server):
    """uvicorn that says when it answers and when it was told to stop.

    `on_stop` runs inside the handler of the first signal, `on_drain` after it with the number of
    requests in flight, `on_hurry` inside the handler of a second signal, which ends the drain.
    `on_overdue` is called when requests are still in flight at the drain's end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None] = _nothing,
        on_drain: Callable[[int], None] = _nothing_of,
        on_hurry: Callable[[], None] = _nothing,
        on_overdue: Callable[[], None] = _nothing,
        drain_s: float = 0,
        wish: StopWish | None = None,
    ) -> None:
        super().__init__(config)
        self._on_overdue = on_overdue
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._on_drain = on_drain
        self._on_hurry = on_hurry
        self._wish = wish or StopWish()
        self._is_hurried = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the application and the socket, then settle memory and report."""
        await super().startup(sockets)
        if self.started:
            settle_memory()
            self._on_ready()

    def leave(self, *_: object) -> None:
        """Drain and end; for signals that come outside uvicorn's own watch."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: object) -> None:
        """Take a signal while serving."""
        if self._wish.is_repeated():
            self._is_hurried = True
            self._on_hurry()
        elif not self.should_exit:  # else an echo
            self._on_stop()
            super().handle_exit(sig, frame)  # type: ignore[arg-type] # only passed through

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Report what is in flight, then drain and close."""
        self._on_drain(len(self.server_state.tasks))
        await super().shutdown(sockets)

    async def _wait_tasks_to_complete(self) -> None:
        """Wait for requests in flight; a second signal ends it like the time limit does.

        Raises TimeoutError when some are left that could not be told; uvicorn cancels them.
        """
        drain = asyncio.ensure_future(super()._wait_tasks_to_complete())
        until_s = time.monotonic() + self._drain_s
        try:
            while not (drain.done() or self._is_hurried) and time.monotonic() < until_s:
                await asyncio.wait({drain}, timeout=HURRY_POLL_S)
            if not drain.done():
                self._on_overdue()
                await asyncio.wait_for(drain, LAST_WORDS_S)
        finally:
            drain.cancel()


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether uvicorn's record is more than a request that the end of a drain cut off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def settle_memory() -> None:
    """Take what start-up made out of the collector's sight and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def _config() -> uvicorn.Config:
    from relayproject.asgi import application

    # No timeout_graceful_shutdown: RelayServer ends the drain itself.
    return uvicorn.Config(
        application,
        loop="uvloop",
        http=BoundedHeadProtocol,
        ws="none",
        lifespan="on",
        log_config=None,  # logs.py has the handlers
        access_log=False,  # the request log knows more
        server_header=False,
        proxy_headers=False,  # TRUSTED_PROXIES is judged where it is used
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def run(
    bound: socket.socket,
    *,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None] = _nothing,
    on_drain: Callable[[int], None] = _nothing_of,
    on_hurry: Callable[[], None] = _nothing,
    wish: StopWish | None = None,
) -> int:
    """Serve on `bound` until SIGTERM or SIGINT, drain, and return the exit code.

    The callbacks are those of `RelayServer`.
    """
    from relayproject.asgi import interrupt

    server = RelayServer(
        _config(),
        on_ready=on_ready,
        on_stop=on_stop,
        on_drain=on_drain,
        on_hurry=on_hurry,
        on_overdue=interrupt,
        drain_s=settings.DRAIN_S,
        wish=wish,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    # uvicorn watches signals only while it runs and repeats the ones it saw afterwards.
    for number in LEAVE_SIGNALS:
        signal.signal(number, server.leave)
    try:
        server.run(sockets=[bound])
    except SystemExit as failed:  # the application did not open; uvicorn logged why
        return int(failed.code or 1)
    return 0 if server.started else 1


def main() -> None:
    """Run one inherited relay process."""
    for number in LEAVE_SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))
    listen_fd, ready_fd = int(sys.argv[1]), int(sys.argv[2])
    bound = socket.socket(fileno=listen_fd)

    def tell_parent(line: str) -> None:
        os.write(ready_fd, f"{line}\n".encode())

    code = run(
        bound,
        on_ready=lambda: tell_parent("ready"),
        on_drain=lambda in_flight: tell_parent(f"stopping {in_flight}"),
    )
    sys.stderr.flush()
    # Not sys.exit: it waits for threads, and one stuck in a database call would hold the stop.
    os._exit(code)


if __name__ == "__main__":
    main()
