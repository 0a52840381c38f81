"""Writes that have rules: status, copies and keys of channels, and options."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from django.db import transaction
from django.utils import timezone

from channels_app.models import Channel, ChannelKey, Option, Status
from channels_app.options import option_spec

# Shorter credentials would be given away by the eight characters that are shown.
SHORTEST_HINTED = 16
REASON_CHARS = 200  # what the column of a status reason holds


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


@transaction.atomic
def channels_set_enabled(*, channel_ids: Collection[int], is_enabled: bool, reason: str) -> int:
    """Enable or disable channels by hand; return how many changed.

    Unlike a configuration file, a person who enables a channel also lifts what the relay
    disabled. `reason` is kept with a disabled one. Each row is saved by itself, so that the
    snapshot and the history hear of it.
    """
    status = Status.ENABLED if is_enabled else Status.DISABLED
    channels = Channel.objects.select_for_update().filter(pk__in=list(channel_ids))
    changed = [channel for channel in channels if channel.status != status]
    for channel in changed:
        channel.status = status
        channel.status_reason = "" if is_enabled else reason[:REASON_CHARS]
        channel.status_changed_at = timezone.now()
        channel.save(update_fields=["status", "status_reason", "status_changed_at"])
    return len(changed)


@transaction.atomic
def channel_copy(*, channel: Channel) -> Channel:
    """Return a copy of `channel` with its groups and keys, disabled by hand."""
    copy = Channel.objects.get(pk=channel.pk)
    copy.pk, copy._state.adding = None, True  # noqa: SLF001 - Django's way to copy a row
    copy.name = _free_name(channel.name)
    copy.status, copy.status_reason = Status.DISABLED, f"copy of {channel.name}"[:REASON_CHARS]
    copy.status_changed_at = timezone.now()
    copy.save()
    copy.groups.set(channel.groups.all())
    for key in channel.keys.all():
        channel_key_add(channel=copy, value=key.value)
    return copy


def _free_name(name: str) -> str:
    """Return a name for a copy that no channel has: `name (copy)`, `name (copy 2)`, ..."""
    longest = Channel._meta.get_field("name").max_length or 0  # noqa: SLF001 - public API
    taken = set(Channel.objects.values_list("name", flat=True))
    number = 1
    while True:
        ending = " (copy)" if number == 1 else f" (copy {number})"
        found = name[: longest - len(ending)] + ending
        if found not in taken:
            return found
        number += 1


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
