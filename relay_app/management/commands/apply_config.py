"""`manage.py apply_config FILE`: bring the database to what a file says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from relay_app.config_apply import config_apply
from relay_app.config_file import read_config
from relay_app.config_text import ConfigError


class Command(BaseCommand):
    """Apply a configuration file, all or nothing, and print what changed."""

    help = (
        "Create and change groups, channels, users, tokens and options as a YAML or JSON "
        "file says; what it does not name stays, without --prune. Applying it again changes "
        "nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the command line."""
        parser.add_argument("file", metavar="FILE", type=Path)
        parser.add_argument(
            "--dry-run", action="store_true", help="print what would change, change nothing"
        )
        parser.add_argument(
            "--prune",
            action="store_true",
            help="delete what the sections in the file do not have (disable what the log has "
            "requests of); users of the admin stay",
        )

    def handle(self, *, file: Path, dry_run: bool, prune: bool = False, **_: Any) -> None:
        """Apply the file; every problem becomes one line and exit code 1."""
        problems: list[str] = []
        try:
            # The file itself says which variables of the environment hold its keys.
            config = read_config(file, environ=os.environ)
            problems = config.problems
            applied = config_apply(
                config, is_dry_run=dry_run, is_prune=prune, progress=self.stderr.write
            )
        except ConfigError as error:
            raise _refusal(file, *error.problems) from None
        except DatabaseError as error:
            raise _refusal(file, *problems, database_says(error)) from None
        except ImproperlyConfigured as error:  # a secret that no key opens
            raise _refusal(file, *problems, str(error)) from None
        for notice in applied.notices:
            self.stderr.write(f"note: {file}: {notice}")
        for line in applied.lines or ["no changes"]:
            self.stdout.write(line)
        if dry_run:
            self.stdout.write("dry run: nothing was changed")
        elif applied.lines:
            self.stdout.write("applied")


def _refusal(file: Path, *problems: str) -> CommandError:
    return CommandError("\n".join(["nothing was changed:", *(f"{file}: {p}" for p in problems)]))


def database_says(error: DatabaseError) -> str:
    """Return the database's first line, with what to do where that is known."""
    reason = str(error).partition("\n")[0]
    is_empty = "no such table" in reason or "does not exist" in reason
    hint = "; run `manage.py migrate` first" if is_empty else ""
    return f"the database says: {reason}{hint}"
