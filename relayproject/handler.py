"""The lean ASGI handler: a relay path from the socket to the view and back.

Django's own spends a thread on each request (ThreadSensitiveContext), runs middleware
and sync signal receivers, and does not pass a cancellation on to the view. This one
does none of it; it uses Django's request, URL resolving and response classes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http.response import HttpResponseBase

from relay_app.http import RelayRequest, StreamResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A client that sends too much is read on for so long, so that it gets the answer and
# not a reset connection.
DISCARD_S = 10.0


class ClientGone(Exception):
    """The client hung up while its body was read."""


class LeanHandler(ASGIHandler):
    """Serves `relay_app.urls` without middleware, signals or threads."""

    def load_middleware(self, is_async: bool = False) -> None:
        """Load none."""
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]  # plainer types than django-stubs has
        """Answer one request; stop at once when the client hangs up."""
        try:
            body, is_oversized = await _read_body(receive)
        except ClientGone:
            return
        request = RelayRequest(scope, body, is_oversized=is_oversized)
        work = asyncio.ensure_future(self._answer(request, send))
        gone = asyncio.ensure_future(_hang_up(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when this task itself is cancelled: the view must hear of it.
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _answer(self, request: RelayRequest, send: Send) -> None:
        response = await self._get_response_async(request)  # type: ignore[attr-defined]  # not in the stubs
        response["X-Request-Id"] = request.relay_id
        try:
            await _send_response(response, send)
        finally:
            if isinstance(response, StreamResponse):
                await response.stream.aclose()


async def _read_body(receive: Receive) -> tuple[bytes, bool]:
    """Return the body and whether it was too large, in which case it is empty.

    Raises ClientGone when the client hangs up first.
    """
    limit = settings.MAX_REQUEST_BODY_BYTES
    parts: list[bytes] = []
    size, give_up_s = 0, 0.0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        else:
            parts.clear()
            give_up_s = give_up_s or time.monotonic() + DISCARD_S
        is_last = not message.get("more_body", False)
        if is_last or (give_up_s and time.monotonic() > give_up_s):
            return b"".join(parts), size > limit


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
    async for piece in response.stream.pieces():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _start(response: HttpResponseBase, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": headers,
    }
