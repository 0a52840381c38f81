"""`manage.py load_prices`: bring the price table up to the bundled list."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from billing_app.price_list import bundled_prices, prices_load


class Command(BaseCommand):
    """Prints a diff; prices that were edited stay, unless `--overwrite`."""

    help = "Load the bundled price list; prices that were edited here stay as they are."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the arguments."""
        parser.add_argument(
            "--overwrite", action="store_true", help="also replace prices that were edited"
        )
        parser.add_argument("--dry-run", action="store_true", help="only show what would change")

    def handle(self, *args: Any, **options: Any) -> None:
        """Load the list and say what it changed."""
        changes = prices_load(overwrites=options["overwrite"], is_dry=options["dry_run"])
        for line in changes.lines:
            self.stdout.write(line)
        would = "would be: " if options["dry_run"] else ""
        self.stdout.write(f"{would}{changes.counts}, of {len(bundled_prices())} listed")
