"""Which channel made a response of the Responses API, for requests that name it later.

A response lives on its upstream, so what names it must go there and nowhere else. Bindings
belong to a wallet: nobody reaches what another's token made. They are kept in the state store,
and for a while in this process, which also serves while the store is away.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from channels_app.stores import BindingStore, StoreError, connect

log = structlog.get_logger(__name__)

MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where a response was made, and by which model's name."""

    channel_id: int
    key_id: int | None
    model: str


class Bindings:
    """Remembers and finds bindings. A blank `url`: in this process alone."""

    def __init__(self, url: str) -> None:
        self._client = connect(url) if url else None
        self._store = BindingStore(self._client) if self._client is not None else None
        self._near: OrderedDict[tuple[int, str], Binding] = OrderedDict()
        self._writes: set[asyncio.Task[None]] = set()

    def put(self, user_id: int, response_id: str, binding: Binding) -> None:
        """Bind the response; returns at once, the store hears of it in the background."""
        self._remember((user_id, response_id), binding)
        if self._store is not None:
            write = asyncio.create_task(self._write(user_id, response_id, binding))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)

    async def find(self, user_id: int, response_id: str) -> Binding | None:
        """Return where the response was made, None if this wallet has no such response."""
        near = self._near.get((user_id, response_id))
        if near is not None or self._store is None:
            return near
        try:
            row = await self._store.get(user_id, response_id)
        except StoreError as error:
            log.warning("response binding not read", error=str(error) or type(error).__name__)
            return None
        if row is None:
            return None
        found = Binding(channel_id=row["channel_id"], key_id=row["key_id"], model=row["model"])
        self._remember((user_id, response_id), found)
        return found

    async def close(self) -> None:
        """Write what waits and end."""
        await asyncio.gather(*self._writes, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def _remember(self, key: tuple[int, str], binding: Binding) -> None:
        self._near[key] = binding
        if len(self._near) > MAX_REMEMBERED:
            self._near.popitem(last=False)

    async def _write(self, user_id: int, response_id: str, binding: Binding) -> None:
        assert self._store is not None
        row = {
            "channel_id": binding.channel_id,
            "key_id": binding.key_id,
            "model": binding.model,
        }
        try:
            await self._store.put(user_id, response_id, row)
        except StoreError as error:
            log.warning("response binding not kept", error=str(error) or type(error).__name__)
