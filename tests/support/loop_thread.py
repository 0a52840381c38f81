"""An event loop on a thread of its own, for servers that tests talk to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 30) -> T:
        """Return what `work` returns, run on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(close_sockets())


async def close_sockets() -> None:
    """Close the sockets of the running loop: one that outlives its loop is a warning in whatever
    test comes next (a TLS connection closes only when its peer has answered)."""
    for transport in list(asyncio.get_running_loop()._transports.values()):
        transport.abort()
    for _ in range(3):  # what abort puts off, and what that puts off in turn
        await asyncio.sleep(0)
