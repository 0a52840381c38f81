"""`manage.py create_token`: a new key for a client, shown once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, transaction
from django.utils import timezone

from billing_app.models import User
from billing_app.services import token_create
from channels_app.core.routing import model_matches
from channels_app.models import Channel, Group
from relay_app.config_fields import Check, Place, integer, moment, nearest, shown, text
from relay_app.config_money_fields import usd
from relay_app.config_notes import closed_to_token, groups_of
from relay_app.config_plan import AUTO, names_in
from relay_app.config_rows import ADDRESSES, MODELS

LIMITS = {
    "rpm": "requests a minute",
    "tpm": "tokens a minute",
    "concurrency": "requests at once",
}


AMOUNTS = {
    "limit": "USD that it may spend in all; default: what its owner has",
    "daily-limit": "USD that it may spend in a day (UTC)",
    "monthly-limit": "USD that it may spend in a month (UTC)",
}


class Command(BaseCommand):
    """Create a token and print its key: the only time that it can be read."""

    help = "Create a token of a user. Its key alone goes to standard output, this once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the command line."""
        parser.add_argument("--user", required=True, help="who pays")
        parser.add_argument("--name", required=True, help="of the token, one of its user's")
        parser.add_argument("--group", default="", help="default: the user's group")
        parser.add_argument("--models", default="", help="such as gpt-4o,claude-*; default: all")
        parser.add_argument("--expires", help="such as 2027-01-31T12:00:00Z; default: never")
        parser.add_argument(
            "--cross-group", action="store_true", help="group auto: go on to the next group"
        )
        parser.add_argument("--channel", default="", help="the only one it uses; staff only")
        parser.add_argument("--allow-ips", default="", help="such as 203.0.113.7,10.0.0.0/8")
        for limit, meaning in LIMITS.items():
            parser.add_argument(f"--{limit}", type=int, default=0, help=f"{meaning}; 0: no limit")
        for limit, meaning in AMOUNTS.items():
            parser.add_argument(f"--{limit}", metavar="USD", help=meaning)

    def handle(self, *, user: str, name: str, group: str, models: str, **options: Any) -> None:
        """Create the token; whatever is wrong becomes one line and exit code 1."""
        names = tuple(_checked(MODELS, _words(models), at="--models"))
        expires_at: datetime | None = _checked(moment, options["expires"], at="--expires")
        limits = _limits(options)
        try:
            with transaction.atomic():
                owner = _user(user)
                token, key = token_create(
                    user=owner,
                    name=_free_name(name, owner),
                    group=_group(group),
                    models=names,
                    expires_at=expires_at,
                    specific_channel=_channel(options["channel"], owner),
                    **limits,
                )
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from None
        except DatabaseError as error:
            raise CommandError(f"the database says: {str(error).partition(chr(10))[0]}") from None
        if expires_at is not None and expires_at <= timezone.now():
            self.stderr.write(f"note: --expires {expires_at.isoformat()} has passed already")
        for note in closed_to_token(token, groups=groups_of(token)):
            self.stderr.write(f"note: {note}")
        for note in _not_served(names):
            self.stderr.write(f"note: --models: {note}")
        self.stderr.write("This key is shown only now:")
        self.stdout.write(key)


def _checked(check: Check, value: object, *, at: str) -> Any:
    """Return the tidy value; the first problem ends the command."""
    place = Place(at)
    found = check(value, place)
    if place.problems:
        raise CommandError(place.problems[0])
    return found


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word.strip()]


def _limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the token is limited to, by the names of its columns."""
    return {
        "cross_group_retry": options["cross_group"],
        "allow_ips": _checked(ADDRESSES, _words(options["allow_ips"]), at="--allow-ips"),
        **{name: _checked(integer(0), options[name], at=f"--{name}") for name in LIMITS},
        **_amounts(options),
    }


def _amounts(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"is_unlimited": options["limit"] is None}
    for name in AMOUNTS:
        column = name.replace("-", "_")
        if options[column] is not None:
            found[f"{column}_nusd"] = _checked(usd, options[column], at=f"--{name}")
    return found


def _user(name: str) -> User:
    user = User.objects.filter(username=User.normalize_username(name)).first()
    if user is None:
        raise CommandError(_unknown("user", name, User.objects.values_list("username", flat=True)))
    return user


def _free_name(name: str, owner: User) -> str:
    tidy: str = _checked(text(100), name, at="--name")
    if owner.tokens.filter(name=tidy).exists():
        raise CommandError(f"{owner.username} has a token {tidy!r} already")
    return tidy


def _group(name: str) -> str:
    if name not in ("", AUTO) and not Group.objects.filter(name=name).exists():
        raise CommandError(_unknown("group", name, Group.objects.values_list("name", flat=True)))
    return name


def _channel(name: str, owner: User) -> str:
    if not name:
        return ""
    if not owner.is_staff:
        raise CommandError(f"--channel is for staff; user {owner.username!r} is not")
    if not Channel.objects.filter(name=name).exists():
        known = Channel.objects.values_list("name", flat=True)
        raise CommandError(_unknown("channel", name, known))
    return name


def _not_served(names: Iterable[str]) -> list[str]:
    """Return a line for each name that no channel serves; a misspelling shows in no other way."""
    rows = Channel.objects.values_list("model_names", flat=True).iterator() if names else ()
    served = {name for row in rows for name in names_in(row)}
    return [
        f"no channel serves {shown(name)} yet{nearest(name, sorted(served))}"
        for name in names
        if not any(model_matches(name, one) or model_matches(one, name) for one in served)
    ]


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    return f"no {kind} {name!r}{nearest(name, known)}"
