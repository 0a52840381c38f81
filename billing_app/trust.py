"""Trust: who may go on without a reservation, by what this process knows of balances.

A balance is known from the writer's last result or a read, for 2 s. While the database is away,
what was known last counts on: whatever this process has let through since then is counted among
its open trusted requests until the database has taken it.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from billing_app.core.types import TokenView
from billing_app.models import TokenAccount, Wallet

# A balance that was read or written counts for so long.
KNOWN_S = 2.0
# How long a request waits for a balance; a reservation's wait is shortened by it.
READ_S = 1.0
# After a read that failed, nobody waits for another one for so long.
READ_AGAIN_S = 0.5
# The same after one that was not answered at all: the database hangs.
HANGS_S = 5.0

Read = Callable[[Callable[[], tuple[int, int]]], Awaitable[tuple[int, int]]]


class LedgerAwayError(Exception):
    """The database did not answer in time; nothing is reserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """An amount, and until when it counts on the monotonic clock."""

    nusd: int
    until_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A request that goes on without a reservation, and what it may cost."""

    wallet_id: int
    token_id: int
    amount_nusd: int


class Trust:
    """Knows balances and the open trusted requests of this process; reads through `read`."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._read_again_s = -math.inf
        self._available: dict[int, _Known] = {}  # by wallet
        self._used: dict[int, _Known] = {}  # by token
        self._open: dict[uuid.UUID, _Open] = {}
        self._open_nusd: dict[tuple[str, int], int] = {}

    async def gives(
        self, session_id: uuid.UUID, token: TokenView, amount_nusd: int, *, quota_nusd: int
    ) -> bool:
        """Return whether the request needs no reservation, and count it as open if so.

        The wallet, and the token if it has a limit, must have more than `quota_nusd` beyond
        what the open trusted requests of this process may cost. A quota of 0 trusts nobody,
        and nobody whose spending is capped by the day or month is trusted.
        """
        has_cap = token.daily_limit_nusd is not None or token.monthly_limit_nusd is not None
        if not quota_nusd or has_cap:
            return False
        try:
            wallet, used = await self._balances(token)
        except LedgerAwayError:
            return False
        left_nusd = wallet.nusd - self._open_nusd.get(("wallet", token.user_id), 0)
        if token.limit_nusd is not None:
            open_nusd = self._open_nusd.get(("token", token.id), 0)
            left_nusd = min(left_nusd, token.limit_nusd - used.nusd - open_nusd)
        if left_nusd <= quota_nusd:
            return False
        request = _Open(wallet_id=token.user_id, token_id=token.id, amount_nusd=amount_nusd)
        self._open[session_id] = request
        self._count(request, amount_nusd)
        return True

    def end(self, session_id: uuid.UUID) -> None:
        """End a request; one that was not trusted is none of ours."""
        request = self._open.pop(session_id, None)
        if request is not None:
            self._count(request, -request.amount_nusd)

    def learn(self, wallet_id: int, token_id: int, available_nusd: int) -> None:
        """Keep what the database has just said of the wallet; the token has used more."""
        until_s = time.monotonic() + KNOWN_S
        self._available[wallet_id] = _Known(nusd=available_nusd, until_s=until_s)
        self._used.pop(token_id, None)

    def forget(self, wallet_id: int) -> None:
        """Read the balance anew when it is next needed."""
        self._available.pop(wallet_id, None)

    async def _balances(self, token: TokenView) -> tuple[_Known, _Known]:
        """Return what the wallet has and what the token has used (0 if that does not matter)."""
        now_s = time.monotonic()
        wallet = self._available.get(token.user_id)
        used = self._used.get(token.id) if token.limit_nusd is not None else _Known(nusd=0)
        if wallet and used and now_s <= min(wallet.until_s, used.until_s):
            return wallet, used
        try:
            return await self._read_balances(token)
        except LedgerAwayError:
            if wallet and used:
                return wallet, used
            raise

    async def _read_balances(self, token: TokenView) -> tuple[_Known, _Known]:
        now_s, before = time.monotonic(), self._available.get(token.user_id)
        if now_s < self._read_again_s:
            raise LedgerAwayError("the database did not answer a moment ago")
        try:
            async with asyncio.timeout(READ_S):
                read = partial(_balances_of, token.user_id, token.id)
                available_nusd, used_nusd = await self._read(read)
        except (LedgerAwayError, TimeoutError) as error:
            pause_s = HANGS_S if isinstance(error, TimeoutError) else READ_AGAIN_S
            self._read_again_s = time.monotonic() + pause_s
            raise LedgerAwayError(str(error)) from None
        wallet = self._available.get(token.user_id)
        if wallet is None or wallet is before:  # else the writer has learned a later one meanwhile
            wallet = _Known(nusd=available_nusd, until_s=now_s + KNOWN_S)
        used = _Known(nusd=used_nusd, until_s=now_s + KNOWN_S)
        self._available[token.user_id], self._used[token.id] = wallet, used
        return wallet, used

    def _count(self, request: _Open, amount_nusd: int) -> None:
        for key in (("wallet", request.wallet_id), ("token", request.token_id)):
            total_nusd = self._open_nusd.get(key, 0) + amount_nusd
            if total_nusd:
                self._open_nusd[key] = total_nusd
            else:
                self._open_nusd.pop(key, None)


def _balances_of(wallet_id: int, token_id: int) -> tuple[int, int]:
    """Return what the wallet has, and what the token has used or reserved."""
    wallet = Wallet.objects.filter(pk=wallet_id).values_list("available_nusd", flat=True).first()
    account = (
        TokenAccount.objects.filter(pk=token_id).values_list("spent_nusd", "reserved_nusd").first()
    )
    return wallet or 0, sum(account or ())
