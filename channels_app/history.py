"""What the history of channels does without."""

from __future__ import annotations

from typing import Any

from simple_history.models import HistoricalRecords


class ChannelHistory(HistoricalRecords):  # type: ignore[misc]  # simple_history ships no types
    """Changes of channels, with their groups."""

    def create_historical_record_m2ms(self, history_instance: Any, instance: Any) -> None:
        """Record the groups of a channel. A new one has none yet: no query for each of
        thousands that a configuration file brings."""
        if history_instance.history_type != "+":
            super().create_historical_record_m2ms(history_instance, instance)
