"""The snapshot: all that requests are decided on, in memory, kept current.

A process polls the changes that were committed (`SnapshotChange`) and patches what they
name; a full rebuild each minute catches what wrote no change (bulk updates, SQL).
Tables are replaced, never altered, so a request keeps the ones it began with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import structlog
from django.conf import settings
from django.db.models.functions import Now

from billing_app.core.pricing import PriceTable
from billing_app.core.types import TokenView
from billing_app.database_thread import DatabaseThread
from billing_app.tables import TokenTable, find_token, load_prices, load_tokens, patch_tokens
from channels_app.core.routing import RoutingTable
from channels_app.routing_table import load_table, patch_table
from relay_app.models import SnapshotChange

log = structlog.get_logger(__name__)

REBUILD_S = 60.0
# How far back a poll looks. Longer than any commit takes to become visible.
WINDOW_S = 90
# A token that is not there is not asked for again within this time.
MISS_S = 2.0
MAX_MISSES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one request works with from its beginning to its end."""

    routing: RoutingTable = field(default_factory=RoutingTable)
    tokens: TokenTable = field(default_factory=TokenTable)
    prices: PriceTable = field(default_factory=PriceTable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Rows of a section that changed; `row_ids` None means all of it."""

    stamp: str
    section: str
    row_ids: tuple[int, ...] | None


class SnapshotFeed:
    """Holds the current snapshot of this process and keeps it current."""

    def __init__(self) -> None:
        self.current = Snapshot()
        self._fresh_s = time.monotonic()
        # Polls must not wait for a rebuild, so each has a thread.
        self._poll_thread = DatabaseThread("snapshot-poll")
        self._rebuild_thread = DatabaseThread("snapshot-rebuild")
        self._seen: set[str] = set()
        self._applied: list[Change] = []
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._misses: dict[str, float] = {}

    async def start(self) -> None:
        """Load everything, then follow changes until `stop`."""
        # Stamps first: a change that lands while rows are read is then read again.
        self._seen = {c.stamp for c in await self._poll_thread.run(_recent_changes)}
        self.current = await self._rebuild_thread.run(_load)
        self._fresh_s = time.monotonic()
        self._tasks = [
            asyncio.create_task(self._poll_for_ever(), name="snapshot-poll"),
            asyncio.create_task(self._rebuild_for_ever(), name="snapshot-rebuild"),
        ]

    async def stop(self) -> None:
        """End the following of changes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._poll_thread.close()
        await self._rebuild_thread.close()

    @property
    def age_s(self) -> float:
        """Return the seconds since the database last confirmed the snapshot."""
        return time.monotonic() - self._fresh_s

    async def refresh(self) -> None:
        """Take in what was committed before this call."""
        async with self._lock:
            changes = await self._poll_thread.run(_recent_changes)
            new = [change for change in changes if change.stamp not in self._seen]
            if new:
                work = partial(_patch, self.current, new)
                self.current = await self._poll_thread.run(work)
                self._applied += new
            # Only stamps still in the window can be met again.
            self._seen = {change.stamp for change in changes}
            self._fresh_s = time.monotonic()

    async def rebuild(self) -> None:
        """Read everything anew; changes that came meanwhile are patched on top."""
        self._applied.clear()
        fresh = await self._rebuild_thread.run(_load)
        async with self._lock:
            if self._applied:
                work = partial(_patch, fresh, list(self._applied))
                fresh = await self._poll_thread.run(work)
            self.current = fresh

    async def find_token(self, key_hash: str) -> TokenView | None:
        """Return a token that the snapshot lacks from the database, or None.

        One made a moment ago works at once; one that is not there is not looked up
        again for 2 s.
        """
        now_s = time.monotonic()
        if now_s - self._misses.get(key_hash, -MISS_S) < MISS_S:
            return None
        token = await self._poll_thread.run(partial(find_token, key_hash))
        if token is None:
            if len(self._misses) >= MAX_MISSES:
                self._misses.clear()
            self._misses[key_hash] = now_s
        return token

    async def _poll_for_ever(self) -> None:
        while True:
            await asyncio.sleep(settings.SNAPSHOT_POLL_S)
            await self._try(self.refresh, "snapshot not refreshed")

    async def _rebuild_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REBUILD_S)
            await self._try(self.rebuild, "snapshot not rebuilt")

    async def _try(self, work: object, event: str) -> None:
        try:
            await work()  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001  # outermost edge: the relay serves on what it has
            log.warning(event, error=str(error), age_s=round(self.age_s, 1))


def _load() -> Snapshot:
    return Snapshot(routing=load_table(), tokens=load_tokens(), prices=load_prices())


def _recent_changes() -> list[Change]:
    since = Now() - timedelta(seconds=WINDOW_S)
    rows = SnapshotChange.objects.filter(changed_at__gte=since).order_by("pk")
    return [
        Change(stamp=stamp, section=section, row_ids=None if ids is None else tuple(ids))
        for stamp, section, ids in rows.values_list("stamp", "section", "row_ids")
    ]


def _patch(snapshot: Snapshot, changes: Iterable[Change]) -> Snapshot:
    """Return `snapshot` with the changed rows read anew."""
    ids: dict[str, set[int]] = {}
    whole: set[str] = set()
    for change in changes:
        ids.setdefault(change.section, set()).update(change.row_ids or ())
        if change.row_ids is None:
            whole.add(change.section)
    routing, tokens = snapshot.routing, snapshot.tokens
    if "channels" in whole:
        routing = load_table()
    elif ids.keys() & {"channels", "groups", "options"}:
        routing = patch_table(
            routing,
            channel_ids=ids.get("channels", set()),
            has_new_groups="groups" in ids,
            has_new_options="options" in ids,
        )
    if whole & {"tokens", "users"}:
        tokens = load_tokens()
    elif ids.keys() & {"tokens", "users"}:
        tokens = patch_tokens(
            tokens,
            token_ids=ids.get("tokens", set()),
            user_ids=ids.get("users", set()),
        )
    prices = load_prices() if "prices" in ids else snapshot.prices
    return replace(snapshot, routing=routing, tokens=tokens, prices=prices)
