"""Whether the books are right: every wallet against its entries and its sessions."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection, transaction
from django.db.models import Case, Count, F, Q, Sum, When, Window
from django.db.models.functions import Coalesce

from billing_app.core.operations import CREDITS
from billing_app.ledger_models import OPEN_STATES
from billing_app.models import BillingSession, LedgerEntry, TokenAccount, Wallet


def audit() -> list[str]:
    """Return every difference in words; empty: all is right.

    All is read in one snapshot, so that it can run beside a working relay.
    """
    is_outermost = not connection.in_atomic_block  # a snapshot can't begin later
    with transaction.atomic():
        if connection.vendor == "postgresql" and is_outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return [*_wallets(), *_balances(), *_tokens(), *_sessions(), *_strays()]


def _wallets() -> Iterator[str]:
    entries = _sums(LedgerEntry.objects.all(), "wallet_id", "amount_nusd")
    credits_ = _sums(LedgerEntry.objects.filter(kind__in=CREDITS), "wallet_id", "amount_nusd")
    held = _sums(BillingSession.objects.filter(state__in=OPEN_STATES), "wallet_id", "reserved_nusd")
    settled = _sums(BillingSession.objects.all(), "wallet_id", "settled_nusd")
    fees = _sums(BillingSession.objects.all(), "wallet_id", "fee_nusd")
    for wallet in Wallet.objects.order_by("pk").iterator():
        pk = wallet.pk
        for what, has, should in (
            ("available", wallet.available_nusd, entries.get(pk, 0)),
            ("paid in", wallet.credited_nusd, credits_.get(pk, 0)),
            ("reserved", wallet.reserved_nusd, held.get(pk, 0)),
            ("spent", wallet.spent_nusd, settled.get(pk, 0) + fees.get(pk, 0)),
            (
                "available + reserved + spent",
                wallet.available_nusd + wallet.reserved_nusd + wallet.spent_nusd,
                wallet.credited_nusd,
            ),
        ):
            if has != should:
                yield f"wallet {pk}: {what} is {has} nUSD, by its entries and sessions {should}"


def _balances() -> Iterator[str]:
    """Yield entries whose balance is not the sum up to them: a wallet's ids follow its changes."""
    so_far = Window(Sum("amount_nusd"), partition_by=F("wallet_id"), order_by=F("id").asc())
    wrong = LedgerEntry.objects.order_by().annotate(so_far=so_far).exclude(balance_nusd=F("so_far"))
    for pk, wallet_id, has, should in wrong.values_list(
        "pk", "wallet_id", "balance_nusd", "so_far"
    ):
        yield (
            f"entry {pk} of wallet {wallet_id}: its balance is {has} nUSD, by the entries up to it"
            f" {should}"
        )


def _tokens() -> Iterator[str]:
    held = _sums(BillingSession.objects.filter(state__in=OPEN_STATES), "token_id", "reserved_nusd")
    spent = _sums(BillingSession.objects.all(), "token_id", F("settled_nusd") + F("fee_nusd"))
    accounts = TokenAccount.objects.in_bulk()
    for pk in sorted({*accounts, *held, *spent} - {None}):
        account = accounts.get(pk) or TokenAccount(pk=pk)
        for what, has, should in (
            ("reserved", account.reserved_nusd, held.get(account.pk, 0)),
            ("spent", account.spent_nusd, spent.get(account.pk, 0)),
        ):
            if has != should:
                yield f"token {account.pk}: {what} is {has} nUSD, by its sessions {should}"


def _sessions() -> Iterator[str]:
    """Yield sessions that ended more than once, or took something else than they say."""
    twice = BillingSession.objects.annotate(
        settled=Count("entries", filter=Q(entries__kind="settle")),
        refunded=Count("entries", filter=Q(entries__kind="refund")),
    ).filter(Q(settled__gt=1) | Q(refunded__gt=1))
    for session in twice:
        yield f"session {session.pk}: settled or refunded more than once"
    held = Case(When(state__in=OPEN_STATES, then=F("reserved_nusd")), default=0)
    should = -(F("settled_nusd") + F("fee_nusd") + held)
    took = Coalesce(Sum("entries__amount_nusd"), 0)
    sums = BillingSession.objects.order_by().annotate(took=took, should=should)
    wrong = sums.exclude(took=F("should"))
    for pk, has, wanted in wrong.values_list("pk", "took", "should"):
        yield f"session {pk}: its entries come to {has} nUSD, by its own row {wanted}"


def _strays() -> Iterator[str]:
    """Yield entries of requests that belong to no session."""
    for entry in LedgerEntry.objects.filter(session=None).exclude(kind__in=CREDITS).iterator():
        yield f"entry {entry.pk} of wallet {entry.wallet_id}: {entry.kind} without a session"


def _sums(rows: object, by: str, what: object) -> dict[int, int]:
    return {
        pk: total or 0
        for pk, total in rows.order_by().values_list(by).annotate(total=Sum(what))  # type: ignore[attr-defined]  # any QuerySet
    }
