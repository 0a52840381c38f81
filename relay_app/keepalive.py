"""A stream that begins before its answer, with comments (option KeepaliveBeforeCommit).

It keeps a connection open that something in between would close; the price is that the
status is 200 from then on, whatever comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from django.http.response import HttpResponseBase

from relay_app.attempt import Answer
from relay_app.errors import STOPPED, STOPPING, RelayStopping
from relay_app.http import StreamResponse

# Shorter than what proxies and browsers allow a silent connection (nginx: 60 s).
KEEPALIVE_S = 10.0
COMMENT = b": waiting for the upstream\n\n"


async def give_up(work: asyncio.Task[Answer], *why: str) -> None:
    """End `work`; the stream of an answer that it already has is closed."""
    work.cancel(*why)
    [came] = await asyncio.gather(work, return_exceptions=True)
    if isinstance(came, Answer) and came.stream is not None:
        await came.stream.aclose()


class LateStream:
    """Comments until `work` has an answer, then what the client gets of it.

    `respond` makes the response to an answer, `fail` the event that tells of an error;
    `abandoned` is called when the client went away, if only after an error was told.
    """

    def __init__(
        self,
        work: asyncio.Task[Answer],
        *,
        respond: Callable[[Answer], HttpResponseBase],
        fail: Callable[[Exception], bytes],
        abandoned: Callable[[], None],
    ) -> None:
        self._work = work
        self._respond = respond
        self._fail = fail
        self._abandoned = abandoned
        self._response: HttpResponseBase | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes for the client."""
        while not self._work.done():
            yield COMMENT
            await asyncio.wait({self._work}, timeout=KEEPALIVE_S)
        try:
            self._response = self._respond(self._work.result())
        except asyncio.CancelledError:  # by `interrupt`
            yield self._fail(RelayStopping(STOPPED))
            return
        except Exception as error:  # noqa: BLE001  # outermost edge: errors become events
            yield self._fail(error)
            return
        if isinstance(self._response, StreamResponse):
            async for piece in self._response.pieces():
                yield piece
        else:
            yield getattr(self._response, "content", b"")

    def interrupt(self) -> None:
        """End the stream now, with an error event: the relay stops."""
        if isinstance(self._response, StreamResponse):
            self._response.stream.interrupt()
        else:
            self._work.cancel(STOPPING)

    async def aclose(self) -> None:
        """Give up what still runs, or has come and was not sent."""
        if self._response is None:
            await give_up(self._work)
            self._abandoned()
        if isinstance(self._response, StreamResponse):
            await self._response.stream.aclose()
