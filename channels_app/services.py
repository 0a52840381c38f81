"""Writes that have rules: keys of channels, and options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from django.db import transaction

from channels_app.models import Channel, ChannelKey, Option, Status
from channels_app.options import option_spec

# Shorter credentials would be given away by the eight characters that are shown.
SHORTEST_HINTED = 16


def secret_hash(value: str) -> str:
    """Return the SHA-256 of a credential, in hex: what it is matched by."""
    return hashlib.sha256(value.encode()).hexdigest()


def secret_hint(value: str) -> str:
    """Return the first and last four characters of `value`, nothing of a short one."""
    if len(value) < SHORTEST_HINTED:
        return "…"
    return f"{value[:4]}…{value[-4:]}"


def status_by_hand(status: str, *, is_enabled: bool) -> str:
    """Return what `status` becomes when a person enables or disables by hand.

    Enabling lifts what a person disabled; what the relay disabled stays so until it works.
    """
    if not is_enabled:
        return Status.DISABLED
    return Status.ENABLED if status == Status.DISABLED else status


def channel_key_new(*, channel: Channel, value: str) -> ChannelKey:
    """Return an unsaved key of the channel with this value."""
    return ChannelKey(
        channel=channel,
        value=value,
        value_hash=secret_hash(value),
        hint=secret_hint(value),
    )


def channel_key_add(*, channel: Channel, value: str) -> ChannelKey:
    """Return the channel's key with this value, made if it is not there yet."""
    key, _ = ChannelKey.objects.get_or_create(
        channel=channel,
        value_hash=secret_hash(value),
        defaults={"value": value, "hint": secret_hint(value)},
    )
    return key


@transaction.atomic
def options_set(*, values: Mapping[str, object]) -> list[str]:
    """Store option values, all or none; return the names that changed.

    Raises OptionError naming the first unknown option or refused value.
    """
    tidy = {name: option_spec(name).stored(raw) for name, raw in values.items()}
    rows = {row.name: row for row in Option.objects.filter(name__in=tidy)}
    changed = []
    for name, value in tidy.items():
        row = rows.get(name)
        spec = option_spec(name)
        if value == (spec.stored(spec.default) if row is None else row.value):
            continue
        row = row or Option(name=name)
        row.value = value
        row.save()
        changed.append(name)
    return changed
