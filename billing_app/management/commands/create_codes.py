"""`manage.py create_codes BATCH COUNT USD`: make redemption codes, shown only now."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing_app.core.money import usd_to_nusd
from billing_app.services import codes_create


class Command(BaseCommand):
    """The codes alone go to standard output, one a line."""

    help = "Make redemption codes; whoever redeems one first gets its amount."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the arguments."""
        parser.add_argument("batch", help="a name for all of them")
        parser.add_argument("count", type=int)
        parser.add_argument("usd", help="what each is worth, such as 5 or 0.50")
        parser.add_argument("--days", type=int, help="until they expire; default: never")

    def handle(self, *, batch: str, count: int, usd: str, days: int | None, **_: Any) -> None:
        """Make them and print them."""
        try:
            expires_at = None if days is None else timezone.now() + timedelta(days=days)
            codes = codes_create(
                batch=batch, count=count, amount_nusd=usd_to_nusd(usd), expires_at=expires_at
            )
        except OverflowError:
            raise CommandError(f"--days: {days} is too far away") from None
        except ValueError as error:
            raise CommandError(str(error)) from None
        self.stderr.write("These codes are shown only now:")
        for code in codes:
            self.stdout.write(code)
