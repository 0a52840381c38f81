"""Writes that have rules: keys of channels, and options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from django.db import transaction

from channels_app.models import Channel, ChannelKey, Option
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
    changed = []
    for name, value in tidy.items():
        row = Option.objects.filter(name=name).first() or Option(name=name)
        current = row.value if row.pk else option_spec(name).stored(option_spec(name).default)
        if row.pk is None and current == value:
            continue
        if current != value or row.pk is None:
            row.value = value
            row.save()
            changed.append(name)
    return changed
