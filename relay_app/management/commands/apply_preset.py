"""`manage.py apply_preset NAME`: set the options of a preset."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from channels_app.presets import PRESETS
from relay_app.config_apply import preset_apply
from relay_app.config_fields import nearest, shown
from relay_app.management.commands.apply_config import database_says


class Command(BaseCommand):
    """Set several options at once, as a preset has them, and print what changed."""

    help = f"Set the options of a preset: {', '.join(PRESETS)}. Other options stay as they are."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the command line."""
        parser.add_argument("name", metavar="NAME", help=" or ".join(PRESETS))

    def handle(self, *, name: str, **_: Any) -> None:
        """Apply the preset as a file that names it would."""
        if name not in PRESETS:
            known = f"known: {', '.join(PRESETS)}"
            raise CommandError(f"no preset {shown(name)}{nearest(name, PRESETS)}; {known}")
        try:
            lines = preset_apply(name)
        except DatabaseError as error:
            raise CommandError(database_says(error)) from None
        for line in lines or ["no changes"]:
            self.stdout.write(line)
