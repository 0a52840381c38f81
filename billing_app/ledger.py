"""The ledger: runs batches of operations, each in one transaction. Sole writer of money rows.

    outcomes = run_batch([Reserve(...), Settle(...)])

A batch locks its wallets in the order of their ids, reads what its operations name, lets
`core.books` compute, and writes all that changed in one statement for each table. Whatever
holds a wallet's lock owns its accounts and sessions too.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    connection,
    transaction,
)
from django.utils import timezone

from billing_app.core.books import Books
from billing_app.core.operations import (
    AccountRow,
    Credit,
    Entry,
    Operation,
    Outcome,
    Reserve,
    SessionRow,
    UnknownWalletError,
    WalletRow,
)
from billing_app.core.session import State
from billing_app.models import (
    BillingSession,
    LedgerEntry,
    LedgerLease,
    TokenAccount,
    Wallet,
)

log = structlog.get_logger(__name__)

# How often a batch is begun again after a deadlock, a serialisation failure or a locked database.
MAX_TRIES = 6
RETRY_S = 0.02
# SQLSTATEs that say so, on PostgreSQL.
AGAIN = frozenset({"40001", "40P01", "55P03"})
LEASE_S = 60

WALLET_FIELDS = ("available_nusd", "reserved_nusd", "spent_nusd", "credited_nusd")
ACCOUNT_FIELDS = (
    "spent_nusd",
    "reserved_nusd",
    "day",
    "day_nusd",
    "month",
    "month_nusd",
)
SESSION_FIELDS = (
    "request_id",
    "wallet_id",
    "token_id",
    "state",
    "reserved_nusd",
    "settled_nusd",
    "fee_nusd",
    "lease_id",
    "created_at",
    "ended_at",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The operation can't be carried out, whatever is tried; the rest of its batch was."""

    error: Exception


def run_batch(
    operations: Sequence[Operation],
    *,
    now: datetime | None = None,
    lease_id: uuid.UUID | None = None,
) -> list[Outcome | Failed]:
    """Carry out the operations, in order, in one transaction; return what came of each.

    An operation that the database refuses fails alone. `lease_id` is renewed with the batch.
    Raises OperationalError or InterfaceError when the database is away: nothing was done, or
    all of it was, and the same operations may be run again.
    """
    try:
        return list(_run_again(operations, now=now, lease_id=lease_id))
    except (OperationalError, InterfaceError):
        raise
    except (DatabaseError, UnknownWalletError, ValueError, OverflowError) as error:
        if len(operations) == 1:
            log.error("ledger operation refused", operation=operations[0], error=str(error))
            return [Failed(error=error)]
    if lease_id is not None:
        renew_lease_now(lease_id)
    return [outcome for op in operations for outcome in run_batch([op], now=now)]


def _run_again(
    operations: Sequence[Operation], *, now: datetime | None, lease_id: uuid.UUID | None
) -> list[Outcome]:
    for tries in range(1, MAX_TRIES + 1):
        try:
            return _run(operations, now=now, lease_id=lease_id)
        except OperationalError as error:
            if tries == MAX_TRIES or not _is_passing(error):
                raise
        time.sleep(RETRY_S * 2**tries * random.random())
    raise AssertionError("unreachable")


def _is_passing(error: OperationalError) -> bool:
    """Return whether the same transaction may succeed at once."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state in AGAIN or "locked" in str(error)


@transaction.atomic
def _run(
    operations: Sequence[Operation], *, now: datetime | None, lease_id: uuid.UUID | None
) -> list[Outcome]:
    if connection.vendor == "postgresql" and all(isinstance(op, Reserve) for op in operations):
        # A reservation lost with the database only means that settlement charges it all.
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
    if lease_id is not None:
        renew_lease(lease_id, now=now or timezone.now())
    books = _load(operations, now=now)
    before = _values(books)
    outcomes = [books.apply(op) for op in operations]
    _store(books, before)
    return outcomes


def renew_lease_now(lease_id: uuid.UUID) -> None:
    """Say that the process of `lease_id` lives, in a transaction of its own."""
    renew_lease(lease_id, now=timezone.now())


def renew_lease(lease_id: uuid.UUID, *, now: datetime) -> None:
    """Say that the process of `lease_id` lives."""
    LedgerLease.objects.bulk_create(
        [LedgerLease(id=lease_id, expires_at=now + timedelta(seconds=LEASE_S))],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["expires_at"],
    )


# -- reading ---------------------------------------------------------------------------------


def _load(operations: Iterable[Operation], *, now: datetime | None) -> Books:
    """Return the books that the operations need, their wallets locked, and the accounts too: a
    token may have come from another owner, whose sessions still count on it."""
    session_ids = {op.session_id for op in operations if hasattr(op, "session_id")}
    wallet_ids = {op.wallet_id for op in operations if hasattr(op, "wallet_id")}
    token_ids = {op.token_id for op in operations if hasattr(op, "token_id")}
    known = BillingSession.objects.filter(pk__in=session_ids)
    if any(not hasattr(op, "wallet_id") for op in operations):
        for wallet_id, token_id in known.values_list("wallet_id", "token_id"):
            wallet_ids.add(wallet_id)
            token_ids.add(token_id)
    token_ids.discard(None)
    wallets = Wallet.objects.filter(pk__in=wallet_ids).order_by("pk").select_for_update()
    locked = list(wallets.values_list("pk", *WALLET_FIELDS))
    # The time after the wait for the locks: days must not begin, then end again.
    books = Books(now=now or timezone.now())
    for pk, *values in locked:
        books.wallets[pk] = WalletRow(id=pk, **dict(zip(WALLET_FIELDS, values, strict=True)))
    accounts = TokenAccount.objects.filter(pk__in=token_ids).order_by("pk").select_for_update()
    for pk, *values in accounts.values_list("pk", *ACCOUNT_FIELDS):
        row = dict(zip(ACCOUNT_FIELDS, values, strict=True))
        books.accounts[pk] = AccountRow(token_id=pk, **row)
    # Read after the lock: what another batch has just ended must be seen as ended.
    for pk, *values in known.values_list("pk", *SESSION_FIELDS):
        row = dict(zip(SESSION_FIELDS, values, strict=True))
        books.sessions[pk] = SessionRow(id=pk, **{**row, "state": State(row["state"])})
    keys = {op.idempotency_key for op in operations if isinstance(op, Credit)} - {None}
    if keys:
        used = LedgerEntry.objects.filter(idempotency_key__in=keys)
        books.used_keys = {key for key in used.values_list("idempotency_key", flat=True) if key}
    return books


# -- writing ---------------------------------------------------------------------------------


def _values(books: Books) -> dict[Any, tuple[object, ...]]:
    """Return what every row holds, to tell later which have changed."""
    return {key: _row_values(row, fields) for key, row, fields in _rows(books)}


def _rows(books: Books) -> Iterable[tuple[Any, Any, tuple[str, ...]]]:
    for pk, wallet in books.wallets.items():
        yield ("wallet", pk), wallet, WALLET_FIELDS
    for pk, account in books.accounts.items():
        yield ("account", pk), account, ACCOUNT_FIELDS
    for session_id, session in books.sessions.items():
        yield ("session", session_id), session, SESSION_FIELDS


def _row_values(row: Any, fields: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in fields)


def _store(books: Books, before: dict[Any, tuple[object, ...]]) -> None:
    changed: dict[str, list[Any]] = {"wallet": [], "account": [], "session": []}
    for key, row, fields in _rows(books):
        values = _row_values(row, fields)
        if before.get(key) != values:
            changed[key[0]].append(dict(zip(fields, values, strict=True)) | {"pk": key[1]})
    _upsert(Wallet, changed["wallet"], WALLET_FIELDS, key="user_id")
    _upsert(TokenAccount, changed["account"], ACCOUNT_FIELDS, key="token_id")
    _upsert(BillingSession, changed["session"], SESSION_FIELDS, key="id")
    LedgerEntry.objects.bulk_create([_entry(entry, books.now) for entry in books.entries])


def _upsert(model: Any, rows: list[dict[str, Any]], fields: tuple[str, ...], *, key: str) -> None:
    """Insert or update the rows, in one statement."""
    if not rows:
        return
    named = model._meta.get_field  # noqa: SLF001  # public API: by name or column
    model.objects.bulk_create(
        [model(**{key: row.pop("pk")}, **row) for row in sorted(rows, key=lambda row: row["pk"])],
        update_conflicts=True,
        unique_fields=[named(key).name],
        update_fields=[named(name).name for name in fields],
    )


def _entry(entry: Entry, now: datetime) -> LedgerEntry:
    return LedgerEntry(
        wallet_id=entry.wallet_id,
        token_id=entry.token_id,
        session_id=entry.session_id,
        kind=entry.kind.value,
        amount_nusd=entry.amount_nusd,
        balance_nusd=entry.balance_nusd,
        reason=entry.reason[:200],
        actor_id=entry.actor_id,
        idempotency_key=entry.idempotency_key,
        created_at=now,
    )
