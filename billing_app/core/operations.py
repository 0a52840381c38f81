"""The values that the books work with: rows of money, operations on them, what came of those."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import TypeAlias

from billing_app.core.session import State


class Kind(StrEnum):
    """What an entry is for."""

    TOP_UP = "top_up"
    RESERVE = "reserve"
    SETTLE = "settle"
    REFUND = "refund"
    TASK_REFUND = "task_refund"
    FEE = "fee"
    ADJUSTMENT = "adjustment"
    REDEMPTION = "redemption"


CREDITS = frozenset({Kind.TOP_UP, Kind.ADJUSTMENT, Kind.REDEMPTION})


# -- rows ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class WalletRow:
    """What an account has, by the id of its wallet."""

    id: int
    available_nusd: int = 0
    reserved_nusd: int = 0
    spent_nusd: int = 0
    credited_nusd: int = 0


@dataclass(slots=True, kw_only=True)
class AccountRow:
    """What a token has used. Day and month (its first day) are UTC; their amounts hold what is
    reserved as well as what is spent."""

    token_id: int
    spent_nusd: int = 0
    reserved_nusd: int = 0
    day: date | None = None
    day_nusd: int = 0
    month: date | None = None
    month_nusd: int = 0

    def turn(self, today: date) -> None:
        """Begin another day or month, if `today` is in a later one: never an earlier one, by a
        clock that is slow."""
        first = today.replace(day=1)
        if self.day is None or self.day < today:
            self.day, self.day_nusd = today, 0
        if self.month is None or self.month < first:
            self.month, self.month_nusd = first, 0

    def count(self, amount_nusd: int, *, since: datetime) -> None:
        """Count `amount_nusd` in the periods in which `since` lies, if they still go on."""
        began = since.astimezone(UTC).date()
        if began == self.day:
            self.day_nusd += amount_nusd
        if began.replace(day=1) == self.month:
            self.month_nusd += amount_nusd


@dataclass(slots=True, kw_only=True)
class SessionRow:
    """One request's money: what it holds while it goes on, what it cost."""

    id: uuid.UUID
    request_id: str
    wallet_id: int
    token_id: int | None
    state: State
    reserved_nusd: int = 0
    settled_nusd: int = 0
    fee_nusd: int = 0
    lease_id: uuid.UUID | None = None
    created_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change of what is available in a wallet."""

    wallet_id: int
    token_id: int | None
    session_id: uuid.UUID | None
    kind: Kind
    amount_nusd: int
    balance_nusd: int
    reason: str = ""
    actor_id: int | None = None
    idempotency_key: uuid.UUID | None = None


# -- operations ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a token may spend in all, in a day, in a month; None: no limit."""

    total_nusd: int | None = None
    daily_nusd: int | None = None
    monthly_nusd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Hold `amount_nusd` for a new session, if wallet and token have it."""

    session_id: uuid.UUID
    request_id: str
    wallet_id: int
    token_id: int
    amount_nusd: int
    lease_id: uuid.UUID
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """Hold `amount_nusd` in all for a session that holds less."""

    session_id: uuid.UUID
    amount_nusd: int
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Charge what was used, whatever was held; nothing was, if the request was trusted."""

    session_id: uuid.UUID
    request_id: str
    wallet_id: int
    token_id: int
    amount_nusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRefundDue:
    """The request failed: what it holds is to be given back."""

    session_id: uuid.UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Refund:
    """Give back what a failed request holds."""

    session_id: uuid.UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Reap:
    """Give back what a session holds whose process died."""

    session_id: uuid.UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Fee:
    """Charge a failed request for what the provider charges."""

    session_id: uuid.UUID
    request_id: str
    wallet_id: int
    token_id: int
    amount_nusd: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Pay in, or take out by a negative adjustment; of two with the same key only the first."""

    wallet_id: int
    amount_nusd: int
    kind: Kind
    reason: str = ""
    actor_id: int | None = None
    idempotency_key: uuid.UUID | None = None


Operation: TypeAlias = Reserve | Raise | Settle | MarkRefundDue | Refund | Reap | Fee | Credit


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The operation was carried out; `balance_nusd` is available in the wallet after it."""

    balance_nusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Too little: `kind` is what has it (wallet, token, daily, monthly)."""

    kind: str
    needed_nusd: int
    available_nusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """The operation came late or twice, and changed nothing."""

    state: State | None = None


Outcome: TypeAlias = Done | Refused | Ignored


class UnknownWalletError(Exception):
    """The operation names a wallet that does not exist."""
