"""A time limit for one wait after another."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

# Timers may fire this much early; a wait so short is over.
EARLY_S = 0.001


class Deadline:
    """`asyncio.timeout` for a reader of many small pieces, each with a later limit than the last.

    with deadline.until(at_s): ...

    Its one timer is not moved by each wait: it fires, sees how late it is by then, and
    starts again. Waits must not overlap.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._at_s: float | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._has_fired = False

    def until(self, at_s: float | None) -> Self:
        """Return the limit for one wait, which ends in TimeoutError at `at_s` (monotonic seconds;
        None: no limit)."""
        self._at_s = at_s
        return self

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        at_s = self._at_s
        if at_s is not None and (self._timer is None or self._timer_at_s > at_s):
            self._start_timer(at_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._has_fired:
            self._has_fired = False
            assert task is not None
            if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def expire(self) -> None:
        """End the wait that is under way, if there is one, as if its time had come."""
        if self._task is not None and not self._has_fired:
            self._has_fired = True
            self._task.cancel()

    def close(self) -> None:
        """Stop the timer; no wait may follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, at_s - time.monotonic()), self._fire)
        self._timer_at_s = at_s

    def _fire(self) -> None:
        self._timer = None
        if self._task is None or self._at_s is None:
            return  # nobody waits; the next wait starts it again
        if self._at_s > time.monotonic() + EARLY_S:
            self._start_timer(self._at_s)
        else:
            self.expire()
