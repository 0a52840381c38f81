"""ORM work beside the event loop, on one thread with its own connection.

Django binds a connection to the thread that opened it, and nobody closes those of
threads outside a request, so each kind of background work has a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


class DatabaseThread:
    """Runs functions one after the other; reconnects after any error."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; its exceptions are raised here."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, _guarded, work)

    async def close(self) -> None:
        """Finish what is queued, close the connection and end the thread."""
        await self.run(connections.close_all)
        self._executor.shutdown()


def _guarded(work: Callable[[], T]) -> T:
    try:
        return work()
    except Exception:
        # The connection may be the reason (a restarted server): begin anew next time.
        connections.close_all()
        raise
