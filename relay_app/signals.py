"""Note changes of the configuration, for the snapshot of every relay process.

Our signals do this one thing. Changes of one transaction are collected and written as
one `SnapshotChange` per section when it has been committed.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from django.apps import apps
from django.db import connections, models, transaction
from django.db.models.signals import m2m_changed, post_delete, post_save

# More rows than this in one transaction: processes read the whole section instead.
MAX_LISTED_ROWS = 2_000

# Model → (section, attribute that holds the id of the row to read again).
WATCHED = {
    "channels_app.Channel": ("channels", "pk"),
    "channels_app.ChannelKey": ("channels", "channel_id"),
    "channels_app.Group": ("groups", "pk"),
    "channels_app.Option": ("options", "pk"),
    "billing_app.Token": ("tokens", "pk"),
    "billing_app.Price": ("prices", "pk"),
    "billing_app.User": ("users", "pk"),
}


def connect() -> None:
    """Connect the signals; called once, when the app is ready."""
    for label, (section, attribute) in WATCHED.items():
        model = apps.get_model(label)
        receiver = _row_changed(section, attribute)
        post_save.connect(receiver, sender=model, weak=False)
        post_delete.connect(receiver, sender=model, weak=False)
    through = apps.get_model("channels_app.Channel").groups.through
    m2m_changed.connect(_groups_changed, sender=through, weak=False)


def _row_changed(section: str, attribute: str) -> Callable[..., None]:
    def receiver(*, instance: models.Model, using: str, **signal: Any) -> None:
        only = signal.get("update_fields")
        if only and set(only) <= {"last_login"}:
            return  # signing in changes nothing that requests depend on
        note(section, [getattr(instance, attribute)], using=using)

    return receiver


def _groups_changed(
    *, instance: models.Model, action: str, reverse: bool, using: str, **signal: Any
) -> None:
    if not action.startswith(("post_", "pre_clear")):
        return
    if not reverse:
        note("channels", [instance.pk], using=using)
    elif signal.get("pk_set"):
        note("channels", signal["pk_set"], using=using)
    else:  # a group cleared of its channels: the signal does not name them
        note("channels", None, using=using)


def note(section: str, row_ids: Iterable[int] | None, *, using: str) -> None:
    """Record that rows changed; `row_ids` None means the whole section."""
    connection = connections[using]
    pending: _Pending | None = getattr(connection, "relay_pending", None)
    if pending is None or not pending.is_registered(connection):
        pending = _Pending(using)
        connection.relay_pending = pending  # type: ignore[attr-defined]  # ours
        pending.add(section, row_ids)
        transaction.on_commit(pending.write, using=using)
    else:
        pending.add(section, row_ids)


class _Pending:
    """The changes of one transaction so far."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._rows: defaultdict[str, set[int]] = defaultdict(set)
        self._whole: set[str] = set()

    def is_registered(self, connection: Any) -> bool:
        """Return whether the write still stands: a rolled-back savepoint drops it."""
        return any(entry[1] == self.write for entry in connection.run_on_commit)

    def add(self, section: str, row_ids: Iterable[int] | None) -> None:
        if row_ids is None:
            self._whole.add(section)
        else:
            self._rows[section].update(row_ids)
        if len(self._rows[section]) > MAX_LISTED_ROWS:
            self._whole.add(section)

    def write(self) -> None:
        model = apps.get_model("relay_app.SnapshotChange")
        model.objects.using(self._using).bulk_create(
            model(
                stamp=secrets.token_hex(16),
                section=section,
                row_ids=None if section in self._whole else sorted(self._rows[section]),
            )
            for section in {*self._rows, *self._whole}
        )
