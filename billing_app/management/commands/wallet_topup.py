"""`manage.py wallet_topup USER USD`: pay into a wallet, or take out of it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing_app.core.money import show_usd, usd_to_nusd
from billing_app.core.operations import Kind
from billing_app.models import User
from billing_app.services import CreditRefusedError, wallet_credit


class Command(BaseCommand):
    """Each leaves an entry with its reason."""

    help = "Pay USD into the wallet of a user; a negative amount takes them out."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the arguments."""
        parser.add_argument("user")
        parser.add_argument("usd", help="such as 25 or 0.50; -3.20 takes out")
        parser.add_argument("--reason", default="by command", help="stays with the entry")

    def handle(self, *, user: str, usd: str, reason: str, **options: Any) -> None:
        """Write the entry and say what the wallet has now."""
        owner = User.objects.filter(username=user).first()
        if owner is None:
            raise CommandError(f"no user {user!r}")
        try:
            amount_nusd = usd_to_nusd(usd)
            kind = Kind.TOP_UP if amount_nusd > 0 else Kind.ADJUSTMENT
            paid = wallet_credit(
                user_id=owner.pk, amount_nusd=amount_nusd, reason=reason, kind=kind
            )
        except (ValueError, CreditRefusedError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{user}: {show_usd(amount_nusd)}, now {show_usd(paid.balance_nusd)}")
