"""What the history of accounts leaves out."""

from __future__ import annotations

from typing import Any

from simple_history.models import HistoricalRecords


class UserHistory(HistoricalRecords):  # type: ignore[misc]  # simple_history ships no types
    """Changes of accounts, without the note that somebody signed in."""

    def post_save(
        self, instance: Any, created: bool, using: str | None = None, **signal: Any
    ) -> None:
        """Record a save, unless it only noted a login."""
        if set(signal.get("update_fields") or ()) == {"last_login"}:
            return
        super().post_save(instance, created, using=using, **signal)
