"""What the delete pages say: what goes with a row, who loses what, and why it may not go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import apps
from django.contrib.admin.utils import get_deleted_objects
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from billing_app.models import LedgerEntry
from channels_app.core.routing import model_matches
from channels_app.models import Channel, Group, Status
from relay_app.admin.base import link, list_of_rows, page_of
from relay_app.config_plan import names_in
from relay_app.references import (
    Namer,
    channels_in,
    option_naming,
    tokens_for,
    tokens_of,
    users_of,
)

SHOWN = 20  # names in one line; thousands would help nobody


class PlainDeletion:
    """Delete pages that name what people know, and not the rows that join two others.

    Comes before unfold's class. A page says more by `blockers` and `losses`.
    """

    def blockers(self, rows: Sequence[Any]) -> list[Namer]:
        """Return who names the rows, so that they can't be deleted."""
        return []

    def losses(self, rows: Sequence[Any]) -> list[SafeString]:
        """Return lines on what stays but is worth less without the rows."""
        return []

    def is_on_the_books(self, rows: Sequence[Any]) -> bool:
        """Return whether the ledger names one of the rows, so that it stays for ever."""
        return False

    def get_deleted_objects(self, objs: Iterable[Any], request: HttpRequest) -> Any:
        """Return what the pages show: lines, counts, lacking permissions, and blockers."""
        rows = list(objs)
        # The pages' only way to a further part: Django makes their contexts itself.
        request.losses = self.losses(rows)  # type: ignore[attr-defined]  # ours
        if self.is_on_the_books(rows):  # its entries may be millions: they are not listed
            request.is_on_the_books = True  # type: ignore[attr-defined]  # ours
            return [], {}, set(), [link(list_of_rows(LedgerEntry), "Entries in the ledger")]
        lines, counts, lacking, protected = get_deleted_objects(
            rows,
            request,
            self.admin_site,  # type: ignore[attr-defined]  # of ModelAdmin
        )
        joining = [m._meta for m in apps.get_models(include_auto_created=True)]  # noqa: SLF001 - public API
        joining = [meta for meta in joining if meta.auto_created]
        starts = tuple(f"{capfirst(meta.verbose_name)}: " for meta in joining)
        plurals = {meta.verbose_name_plural for meta in joining}
        return (
            _without(lines, starts),
            {name: count for name, count in counts.items() if name not in plurals},
            lacking,
            [*protected, *map(_linked, self.blockers(rows))],
        )


def namers_of_groups(groups: Sequence[Group]) -> list[Namer]:
    """Return the users, tokens, channels and the option that name one of `groups`."""
    names = [group.name for group in groups]
    return [*users_of(names), *tokens_of(names), *channels_in(names), *option_naming(names)]


def namers_of_channels(channels: Sequence[Channel]) -> list[Namer]:
    """Return the tokens that may use one of `channels` alone."""
    return tokens_for([channel.name for channel in channels])


def lost_service(channels: Sequence[Channel]) -> list[SafeString]:
    """Return a line for each group that loses models with `channels`, and who is in it."""
    serving = [channel for channel in channels if channel.status != Status.DISABLED]
    ids = [channel.pk for channel in channels]
    lines = []
    for group in Group.objects.filter(channels__in=serving).distinct():
        left = group.channels.filter(status=Status.ENABLED).exclude(pk__in=ids)
        others = [names_in(names) for names in left.values_list("model_names", flat=True)]
        served = set().union(*others)
        gone = set().union(*(names_in(c.model_names) for c in serving if group in c.groups.all()))
        lost = sorted(m for m in gone if not any(model_matches(p, m) for p in served))
        if not lost:
            continue
        what = "has no other channel in use"
        if others:
            what = f"has no other channel in use for {_some(lost)}"
        lines.append(format_html("Group {} {}.{}", group.name, what, _who_is_in(group)))
    return lines


def _who_is_in(group: Group) -> SafeString:
    """Return who uses the group, as a sentence; nothing if nobody does."""
    who = [*users_of([group.name]), *tokens_of([group.name])]
    if not who:
        return SafeString()
    more = f" and {len(who) - SHOWN} more" if len(who) > SHOWN else ""
    named = format_html_join(", ", "{}", ((_linked(namer),) for namer in who[:SHOWN]))
    return format_html(" In it are {}{}.", named, more)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _linked(namer: Namer) -> SafeString:
    return link(page_of(type(namer.row), namer.row.pk), namer.title)


def _without(lines: list[Any], starts: tuple[str, ...]) -> list[Any]:
    """Return nested lines without those that begin with one of `starts`."""
    kept: list[Any] = []
    for line in lines:
        if isinstance(line, list):
            if inner := _without(line, starts):
                kept.append(inner)
        elif not str(line).startswith(starts):
            kept.append(line)
    return kept
