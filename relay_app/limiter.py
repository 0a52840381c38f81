"""The rate limits of one process: claims, what it holds, and counting alone without the store.

One task sends all that waits to the store in one round trip, in order. While the store is away
the process counts by itself with the same rules, and looks for the store once a second; what
was taken here ends here, what was taken there ends there.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass

import structlog

from channels_app import stores
from channels_app.core.rates import (
    Answer,
    Claim,
    End,
    Granted,
    Rates,
    Refused,
    Renew,
    Room,
    Take,
    ended,
    undone,
)

log = structlog.get_logger(__name__)

# A killed process frees its slots after the lease; three renewals may fail before that.
LEASE_S = 45.0
RENEW_S = 15.0

# How long the end of an answer waits for the store to hear of it.
FREED_S = 0.25
RETRY_S = 1.0
BATCH = 200  # claims in one round trip: about 10 ms of the store's time
RENEW_BATCH = 500  # leases in one script


@dataclass(slots=True, eq=False)
class _Waiting:
    """A command for the store, and who waits for its answer."""

    command: stores.Command
    answer: asyncio.Future[Answer | None] | None = None

    @property
    def is_unwanted(self) -> bool:
        """Return whether its request went away."""
        is_take = isinstance(self.command, Take)
        return is_take and self.answer is not None and self.answer.done()


class Hold:
    """A granted claim. End it once, by `end` or `undo`; later calls change nothing.

    `rooms` are what its meters had left after it, in the order of the claim.
    """

    __slots__ = ("_is_ended", "_limiter", "_sent", "_taken", "at_ms", "is_shared", "rooms")

    def __init__(self, limiter: Limiter, taken: Take, granted: Granted, *, is_shared: bool) -> None:
        self._limiter = limiter
        self._taken = taken
        self._is_ended = False
        self._sent: asyncio.Future[Answer | None] | None = None
        self.at_ms = granted.at_ms
        self.rooms: tuple[Room, ...] = granted.rooms
        self.is_shared = is_shared

    @property
    def leases(self) -> list[tuple[str, str]]:
        """Return its slots, as pairs of hold id and meter name."""
        taken = self._taken
        return [(taken.hold_id, meter.name) for meter in taken.meters if meter.limits.concurrency]

    def end(self, tokens_used: int | None = None) -> None:
        """Free its slots and count the tokens really used; None keeps the estimate.

        Returns at once and never raises, so it may stand in any `finally`.
        """
        self._end(ended(self._taken, at_ms=self.at_ms, tokens_used=tokens_used))

    def undo(self) -> None:
        """Give all back, the request too: for one that something else refused. Like `end`."""
        self._end(undone(self._taken, at_ms=self.at_ms))

    def _end(self, end: End) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._sent = self._limiter.release(self, end)

    async def freed(self) -> None:
        """Return once the store knows of its end, or after a moment; to be awaited before a
        client learns that its request ended, or its next one could find the slot taken."""
        if self._sent is not None:
            await asyncio.wait({self._sent}, timeout=FREED_S)


class Limiter:
    """Takes claims for the requests of this process. A blank `url` always counts alone.

    The other arguments are for tests that cannot wait.
    """

    def __init__(
        self,
        url: str,
        *,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        retry_s: float = RETRY_S,
    ) -> None:
        lease_ms = round(lease_s * 1000)
        self._client = stores.connect(url) if url else None
        self._store = stores.RateStore(self._client, lease_ms=lease_ms) if self._client else None
        self._local = Rates(lease_ms=lease_ms)
        self._renew_s = renew_s
        self._retry_s = retry_s
        self._process = secrets.token_hex(6)
        self._count = 0
        self._open: set[Hold] = set()
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # Whether claims are counted in the store. Not before `start`, which begins to send.
        self.is_shared = False

    def start(self) -> None:
        """Begin to send to the store and to renew leases."""
        self.is_shared = self._store is not None
        if not self.is_shared:
            log.warning("rate limits count per process", error="no REDIS_URL is known")
        self._tasks = [asyncio.create_task(self._renew_for_ever(), name="limiter-renew")]
        if self._store is not None:
            work = self._send_for_ever(self._store)
            self._tasks.append(asyncio.create_task(work, name="limiter-send"))

    async def close(self) -> None:
        """Send the releases that wait, if the store is there, and end."""
        self._closing.set()
        self._wake.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def take(self, claim: Claim) -> Hold | Refused:
        """Take from every meter of `claim`, or from none, and return the hold or who refused."""
        self._count += 1
        take = Take(hold_id=f"{self._process}:{self._count}", meters=claim)
        if not self.is_shared:
            return self._take_alone(take)
        waiting = _Waiting(take, asyncio.get_running_loop().create_future())
        self._put(waiting)
        assert waiting.answer is not None
        try:
            answer = await waiting.answer
        except _AwayError:
            return self._take_alone(take)
        except asyncio.CancelledError:
            self._give_up(waiting)
            raise
        assert answer is not None  # the store answers every take
        return self._held(take, answer, is_shared=True)

    def release(self, hold: Hold, end: End) -> asyncio.Future[Answer | None] | None:
        """Carry out the end of `hold` where it was taken; for `Hold` alone.

        Returns what is done once the store was told, for a hold with slots in it.
        """
        self._open.discard(hold)
        if not hold.is_shared:
            self._local.end(end)
            return None
        sent = asyncio.get_running_loop().create_future() if hold.leases else None
        self._put(_Waiting(end, sent))
        return sent

    def _put(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._wake.set()

    def _take_alone(self, take: Take) -> Hold | Refused:
        answer = self._local.take(take, now_ms=_now_ms())
        return self._held(take, answer, is_shared=False)

    def _held(self, take: Take, answer: Answer, *, is_shared: bool) -> Hold | Refused:
        if isinstance(answer, Refused):
            return answer
        hold = Hold(self, take, answer, is_shared=is_shared)
        self._open.add(hold)
        return hold

    def _give_up(self, waiting: _Waiting) -> None:
        """Undo a claim that was answered in the moment in which its request went away."""
        future = waiting.answer
        if future is None or not future.done() or future.cancelled() or future.exception():
            return
        if isinstance(waiting.command, Take):
            self._undo_unwanted(waiting.command, future.result())

    def _undo_unwanted(self, take: Take, answer: Answer | None) -> None:
        if isinstance(answer, Granted):
            self._put(_Waiting(undone(take, at_ms=answer.at_ms)))

    async def _send_for_ever(self, store: stores.RateStore) -> None:
        while True:
            if self.is_shared:
                await self._wake.wait()
                self._wake.clear()
                await self._send_waiting(store)
            if self._closing.is_set():
                self.is_shared = False  # nobody would answer who came now
                return
            if not self.is_shared:
                await self._pause(self._retry_s)
                await self._look_for(store)

    async def _send_waiting(self, store: stores.RateStore) -> None:
        while self._waiting and self.is_shared:
            count = min(BATCH, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            batch = [waiting for waiting in batch if not waiting.is_unwanted]
            if not batch:
                continue
            try:
                answers = await store.run([waiting.command for waiting in batch])
            except Exception as error:  # noqa: BLE001  # outermost edge: requests go on
                self._count_alone(batch, error)
                await _drop_connections(store)
                return
            for waiting, answer in zip(batch, answers, strict=True):
                self._deliver(waiting, answer)

    def _deliver(self, waiting: _Waiting, answer: Answer | None) -> None:
        if waiting.answer is None:
            return
        if not waiting.answer.done():
            waiting.answer.set_result(answer)
        elif isinstance(waiting.command, Take) and answer is not None:
            self._undo_unwanted(waiting.command, answer)

    def _count_alone(self, sent: list[_Waiting], error: Exception) -> None:
        """Answer all who wait from here on, and keep for later what must reach the store."""
        self.is_shared = False
        log.warning("rate limits count per process", error=str(error) or type(error).__name__)
        waiting, self._waiting = self._waiting, deque()
        # What was sent may have been carried out. Freeing a slot twice is harmless, correcting
        # a count twice is not.
        for each in sent:
            if not isinstance(each.command, Renew):
                free = End(hold_id=each.command.hold_id, meters=each.command.meters)
                self._waiting.append(_Waiting(free))
        self._waiting += [each for each in waiting if isinstance(each.command, End)]
        for each in (*sent, *waiting):
            if each.answer is None or each.answer.done():
                continue
            if isinstance(each.command, Take):
                each.answer.set_exception(_AwayError())
            else:
                each.answer.set_result(None)

    async def _look_for(self, store: stores.RateStore) -> None:
        if self._closing.is_set():
            return
        try:
            await store.check()
        except Exception:  # noqa: BLE001  # outermost edge: whatever it is, it is not back
            await _drop_connections(store)
            return
        self.is_shared = True
        log.info("rate limits are shared again")
        self._renew()  # a store that was restarted may have lost the slots
        self._wake.set()

    async def _renew_for_ever(self) -> None:
        while not self._closing.is_set():
            await self._pause(self._renew_s)
            self._renew()

    def _renew(self) -> None:
        mine = [lease for hold in self._open if not hold.is_shared for lease in hold.leases]
        self._local.renew(Renew(leases=tuple(mine)), now_ms=_now_ms())
        shared = [lease for hold in self._open if hold.is_shared for lease in hold.leases]
        if not self.is_shared or self._closing.is_set():
            return
        for at in range(0, len(shared), RENEW_BATCH):
            self._put(_Waiting(Renew(leases=tuple(shared[at : at + RENEW_BATCH]))))

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until the limiter closes."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return


class _AwayError(Exception):
    """The store did not answer: the claim is to be counted here."""


async def _drop_connections(store: stores.RateStore) -> None:
    try:
        await store.disconnect()
    except Exception as error:  # noqa: BLE001  # outermost edge: it is broken anyway
        log.debug("state store connection lost", error=str(error))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
