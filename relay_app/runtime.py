"""What one relay process holds while it lives: opened at its start, closed at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from django.conf import settings

from billing_app.ledger_writer import Ledger
from relay_app.bindings import Bindings
from relay_app.limiter import Limiter
from relay_app.providers.simulated import SimulatedTransport
from relay_app.request_log import LogWriter
from relay_app.snapshot import SnapshotFeed
from relay_app.transport import AiohttpTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The parts that requests share. `transports` by provider type; `http` for most."""

    feed: SnapshotFeed
    log_writer: LogWriter
    limiter: Limiter
    ledger: Ledger
    bindings: Bindings
    transports: Mapping[str, httpx.AsyncBaseTransport]


_runtime: Runtime | None = None


def current() -> Runtime:
    """Return the open runtime; raise RuntimeError before `open_runtime`."""
    if _runtime is None:
        raise RuntimeError("the relay is not running: its ASGI lifespan has not started")
    return _runtime


async def open_runtime() -> Runtime:
    """Load the snapshot, start the background work and return the runtime."""
    global _runtime  # noqa: PLW0603  # one runtime a process
    feed = SnapshotFeed()
    http = AiohttpTransport(allows_private=lambda: _allows_private(feed))
    runtime = Runtime(
        feed=feed,
        log_writer=LogWriter(),
        limiter=Limiter(settings.REDIS_URL),
        ledger=Ledger(),
        bindings=Bindings(settings.REDIS_URL),
        transports={"http": http, "simulated": SimulatedTransport()},
    )
    await runtime.feed.start()
    runtime.log_writer.start()
    runtime.limiter.start()
    runtime.ledger.start()
    _runtime = runtime
    return runtime


def _allows_private(feed: SnapshotFeed) -> bool:
    """Return whether upstreams may have private addresses, as the option says now."""
    choice = feed.current.routing.options.allow_private_upstreams
    return bool(settings.EMBEDDED) if choice == "auto" else choice == "on"


async def close_runtime() -> None:
    """Write what waits, close connections, end the background work."""
    global _runtime  # one runtime a process
    runtime, _runtime = _runtime, None
    if runtime is None:
        return
    await runtime.feed.stop()
    for transport in runtime.transports.values():
        await transport.aclose()
    await runtime.limiter.close()
    await runtime.bindings.close()
    await runtime.ledger.close()
    await runtime.log_writer.close()
