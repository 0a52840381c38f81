"""The lean ASGI handler: a relay path from the socket to the view and back.

Django's own spends a thread on each request (ThreadSensitiveContext), runs middleware
and sync signal receivers, and does not pass a cancellation on to the view. This one
does none of it; it uses Django's request, URL resolving and response classes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http.response import HttpResponseBase

from relay_app.errors import STOPPING, is_stopping
from relay_app.http import PieceStream, RelayRequest, StreamResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A client that sends too much is answered at once and then read on, for so long in all and
# between two pieces: closing on bytes unread is a reset, which would cost it the answer.
DISCARD_S = 120.0
DISCARD_IDLE_S = 5.0


class ClientGone(Exception):
    """The client hung up while its body was read."""


class _Running:
    """One request under way: the task that reads or answers it, and what the client is sent."""

    __slots__ = ("is_answered", "stream", "work")

    def __init__(self) -> None:
        self.work = asyncio.current_task()
        self.is_answered = False
        self.stream: PieceStream | None = None


class LeanHandler(ASGIHandler):
    """Serves `relay_app.urls` without middleware, signals or threads."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[_Running] = set()

    def interrupt(self) -> None:
        """End each request under way, with an error in its dialect: the relay stops."""
        for running in list(self._running):
            if running.stream is not None:
                running.stream.interrupt()
            elif not running.is_answered and running.work is not None:
                running.work.cancel(STOPPING)

    def load_middleware(self, is_async: bool = False) -> None:
        """Load none."""
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]  # plainer types than django-stubs has
        """Answer one request; stop at once when the client hangs up."""
        running = _Running()
        self._running.add(running)
        try:
            body = await _read_body(scope, receive)
        except ClientGone:
            return
        except asyncio.CancelledError as error:
            if not is_stopping(error):
                raise
            await self._answer_cut_off(RelayRequest(scope, b"", is_oversized=False), send)
            return
        finally:
            self._running.discard(running)
        if body is None:
            await self._answer_unread(RelayRequest(scope, b"", is_oversized=True), receive, send)
            return
        request = RelayRequest(scope, body, is_oversized=False)
        running.work = work = asyncio.ensure_future(self._answer(request, send, running))
        self._running.add(running)
        gone = asyncio.ensure_future(_hang_up(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when this task itself is cancelled: the view must hear of it.
            gone.cancel()
            self._running.discard(running)
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _answer_cut_off(self, request: RelayRequest, send: Send) -> None:
        """Answer a request whose body does not come in time: the relay stops."""
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        request.is_cut_off = True
        await self._answer(request, send, _Running())

    async def _answer_unread(self, request: RelayRequest, receive: Receive, send: Send) -> None:
        """Answer while the body still comes, then throw that away and close."""

        async def send_all_but_the_end(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"connection", b"close"))
            else:
                message["more_body"] = True
            await send(message)

        await self._answer(request, send_all_but_the_end, _Running())
        await _discard_body(receive)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, request: RelayRequest, send: Send, running: _Running) -> None:
        response = await self._get_response_async(request)  # type: ignore[attr-defined]  # not in the stubs
        running.is_answered = True
        running.stream = response.stream if isinstance(response, StreamResponse) else None
        response["X-Request-Id"] = request.relay_id
        try:
            await _send_response(response, send)
        finally:
            if isinstance(response, StreamResponse):
                await response.stream.aclose()


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """Return the body, or None as soon as it is known to be too large.

    One that says so beforehand is not even asked for. Raises ClientGone when the client hangs up
    first.
    """
    limit = settings.MAX_REQUEST_BODY_BYTES
    if _declared_bytes(scope) > limit:
        return None
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _declared_bytes(scope: Scope) -> int:
    """Return what Content-Length says; 0 where it says nothing of use."""
    value = dict(scope["headers"]).get(b"content-length", b"")
    return int(value) if value.isdigit() else 0


async def _discard_body(receive: Receive) -> None:
    """Return when the rest of the body has come, or stops coming, or is too much."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            is_last = False
            while not is_last:
                message = await asyncio.wait_for(receive(), DISCARD_IDLE_S)
                is_last = not message.get("more_body", False)


async def _hang_up(receive: Receive) -> None:
    """Return when the client hangs up; what is left of its body is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_response(response: HttpResponseBase, send: Send) -> None:
    headers = [
        (name.encode("ascii").lower(), value.encode("latin-1")) for name, value in response.items()
    ]
    if not isinstance(response, StreamResponse):
        content: bytes = response.content  # type: ignore[attr-defined]  # HttpResponse
        headers.append((b"content-length", str(len(content)).encode()))
        await send(_start(response, headers))
        await send({"type": "http.response.body", "body": content})
        return
    await send(_start(response, headers))
    async for piece in response.pieces():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _start(response: HttpResponseBase, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": headers,
    }
