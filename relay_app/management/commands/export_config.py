"""`manage.py export_config`: the database as a configuration file, on standard output."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from relay_app.config_apply import config_apply
from relay_app.config_export import config_export, yaml_text
from relay_app.config_file import config_of
from relay_app.config_text import ConfigError
from relay_app.management.commands.apply_config import database_says


class Command(BaseCommand):
    """Print the configuration in the form that `apply_config` reads."""

    help = (
        "Write options, groups, channels, users, tokens and prices to standard output, so that "
        "applying them changes nothing. Placeholders stand for keys, proxies and headers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the command line."""
        parser.add_argument(
            "--with-keys",
            action="store_true",
            help="write keys, proxies, headers and settings in clear: keep the file secret",
        )

    def handle(self, *, with_keys: bool, **_: Any) -> None:
        """Print the file; what it can't say goes to standard error."""
        try:
            exported = config_export(with_keys=with_keys, progress=self.stderr.write)
            self.stdout.write(yaml_text(exported.document))
            changes, faults = _check(exported.document)
        except DatabaseError as error:
            raise CommandError(database_says(error)) from None
        except ImproperlyConfigured as error:  # a secret that no key opens
            raise CommandError(str(error)) from None
        for notice in exported.notices:
            self.stderr.write(f"note: {notice}")
        for change in changes:
            self.stderr.write(f"note: applying it here would change something: {change}")
        for fault in faults:
            self.stderr.write(f"note: apply_config would not take it as it is: {fault}")


def _check(document: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return what applying the file here would change, and why it would be refused."""
    try:
        return config_apply(config_of(document, environ={}), is_dry_run=True).lines, []
    except ConfigError as error:
        return [], list(error.problems)
