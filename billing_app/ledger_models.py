"""Rows of money: wallets, what tokens used, sessions, and the entries that explain them all.

Only `ledger.py` writes them. Amounts are integers in nano-dollars (1e-9 USD).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, NoReturn

from django.conf import settings
from django.db import models
from django.utils import timezone

from billing_app.core.operations import Kind
from billing_app.core.session import State

OPEN_STATES = (State.RESERVED, State.REFUND_DUE)


class AppendOnlyError(TypeError):
    """Somebody tried to change or delete an entry; books are corrected by further entries."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise AppendOnlyError("ledger entries are never changed or deleted; add an adjustment")


def _refuse_balance(*_: Any, **__: Any) -> NoReturn:
    raise AppendOnlyError("balances change by ledger entries alone; pay in or adjust")


class WalletQuerySet(models.QuerySet["Wallet"]):
    """Wallets can be made and read; `ledger.py` alone writes what they hold."""

    update = _refuse_balance
    bulk_update = _refuse_balance
    update_or_create = _refuse_balance


class Wallet(models.Model):
    """What an account has. For each: credited = available + reserved + spent."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="wallet"
    )
    available_nusd = models.BigIntegerField("available", default=0)
    reserved_nusd = models.BigIntegerField("reserved", default=0)
    spent_nusd = models.BigIntegerField("spent", default=0)
    credited_nusd = models.BigIntegerField("paid in", default=0)

    objects = WalletQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(reserved_nusd__gte=0), name="wallet_reserved_not_negative"
            )
        ]

    def __str__(self) -> str:
        return str(self.user)

    def save_base(self, *args: Any, **kwargs: Any) -> None:
        """Make the wallet; one that is there already is refused."""
        if not self._state.adding:
            _refuse_balance()
        super().save_base(*args, **{**kwargs, "force_insert": True})


class TokenAccount(models.Model):
    """What a token has used, in all and in the day and month (UTC) of its last request."""

    token = models.OneToOneField(
        "billing_app.Token", on_delete=models.CASCADE, primary_key=True, related_name="account"
    )
    spent_nusd = models.BigIntegerField("spent", default=0)
    reserved_nusd = models.BigIntegerField("reserved", default=0)
    day = models.DateField(null=True)
    day_nusd = models.BigIntegerField(default=0)
    month = models.DateField(null=True, help_text="Its first day.")
    month_nusd = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.token)


class BillingSession(models.Model):
    """One request's money, from its reservation to its one end."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    request_id = models.CharField(max_length=64, db_index=True)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="sessions")
    token = models.ForeignKey(
        "billing_app.Token", null=True, on_delete=models.PROTECT, related_name="sessions"
    )
    state = models.CharField(max_length=16, choices=[(s.value, s.value) for s in State])
    reserved_nusd = models.BigIntegerField("reserved", default=0)
    settled_nusd = models.BigIntegerField("settled", default=0)
    fee_nusd = models.BigIntegerField("fee", default=0)
    # Who holds it open; null once it has ended.
    lease_id = models.UUIDField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(
                fields=["state", "lease_id"],
                name="session_open",
                condition=models.Q(state__in=[state.value for state in OPEN_STATES]),
            )
        ]

    def __str__(self) -> str:
        return f"{self.request_id} {self.state}"


class LedgerEntryQuerySet(models.QuerySet["LedgerEntry"]):
    """Entries can be added and read."""

    update = _refuse
    bulk_update = _refuse
    delete = _refuse
    _raw_delete = _refuse
    update_or_create = _refuse

    def bulk_create(self, *args: Any, **kwargs: Any) -> list[LedgerEntry]:
        """Add entries; those that are there already are refused, not replaced."""
        if kwargs.get("update_conflicts") or kwargs.get("ignore_conflicts"):
            _refuse()
        return super().bulk_create(*args, **kwargs)


class LedgerEntry(models.Model):
    """One change of what is available in a wallet. Never changed, never deleted."""

    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="entries")
    token = models.ForeignKey(
        "billing_app.Token", null=True, on_delete=models.PROTECT, related_name="entries"
    )
    session = models.ForeignKey(
        BillingSession, null=True, on_delete=models.PROTECT, related_name="entries"
    )
    kind = models.CharField(max_length=16, choices=[(k.value, k.value) for k in Kind])
    amount_nusd = models.BigIntegerField("amount")
    balance_nusd = models.BigIntegerField("balance after")
    reason = models.CharField(max_length=200, blank=True, default="")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    # Of a payment that was sent twice, one entry has it and the other is never made.
    idempotency_key = models.UUIDField(null=True, unique=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    objects = LedgerEntryQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "ledger entries"
        base_manager_name = "objects"

    def __str__(self) -> str:
        return f"{self.kind} {self.amount_nusd}"

    def save_base(self, *args: Any, **kwargs: Any) -> None:
        """Add the entry; one that is there already is refused."""
        if not self._state.adding:
            _refuse()
        super().save_base(*args, **{**kwargs, "force_insert": True})

    delete = _refuse


class LedgerLease(models.Model):
    """A process that holds sessions open, for as long as it renews this row."""

    id = models.UUIDField(primary_key=True)
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return str(self.id)


class RedemptionCode(models.Model):
    """A code that pays into the wallet of whoever redeems it first. Kept as a hash."""

    batch = models.CharField(max_length=100, db_index=True)
    code_hash = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=16, editable=False)
    amount_nusd = models.BigIntegerField("amount")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    is_enabled = models.BooleanField("enabled", default=True)
    redeemed_at = models.DateTimeField(null=True, editable=False)
    redeemed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.PROTECT,
        related_name="redemptions",
        editable=False,
    )

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.hint


def open_wallets(users: Iterable[Any]) -> None:
    """Make the wallets of new accounts, each with its opening balance as the first entry."""
    balances = {user.pk: user.opening_balance_nusd for user in users}
    Wallet.objects.bulk_create(
        Wallet(user_id=pk, available_nusd=amount, credited_nusd=amount)
        for pk, amount in balances.items()
    )
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            wallet_id=pk,
            kind=(Kind.TOP_UP if amount > 0 else Kind.ADJUSTMENT).value,
            amount_nusd=amount,
            balance_nusd=amount,
            reason="opening balance",
        )
        for pk, amount in balances.items()
        if amount
    )
