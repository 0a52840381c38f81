"""`manage.py audit_ledger`: check every wallet against its entries and sessions."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from billing_app.audit import audit
from billing_app.models import BillingSession, LedgerEntry, Wallet


class Command(BaseCommand):
    """Exits 1 on any difference, each told on a line of its own."""

    help = "Check that every balance is what its ledger entries and sessions say."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print what is wrong, or how much was checked."""
        differences = audit()
        for line in differences:
            self.stdout.write(self.style.ERROR(line))
        if differences:
            self.stderr.write(f"audit_ledger: {len(differences)} differences")
            sys.exit(1)
        self.stdout.write(
            f"the ledger is right: {Wallet.objects.count()} wallets,"
            f" {BillingSession.objects.count()} sessions, {LedgerEntry.objects.count()} entries"
        )
