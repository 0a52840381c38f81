"""How far a request has walked: its groups in order, and how many selections are left.

One small value that the attempt loop owns, so that every count of spec 01 section 7 stands
in one place. A selection is a choice of channel; further sends to the same channel are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Walk:
    """The position among groups. `extents`: for each group, the selections that walk it once
    (its tiers, or its channels where a strategy goes through each).

    Each group but the last is left after its extent, or after `retry_times` + 1 selections;
    in the last one selections go on while fewer than `retry_times` + 1 were made in all.
    `retry_times` 0 is one selection, whatever there is.
    """

    extents: Sequence[int]
    retry_times: int
    group: int = 0
    made_here: int = 0
    made: int = 0

    @property
    def has_next_group(self) -> bool:
        """Return whether a further group follows."""
        return self.group + 1 < len(self.extents)

    @property
    def may_stay(self) -> bool:
        """Return whether one more selection may be made in this group."""
        if self.retry_times == 0:
            return self.made == 0
        if self.made_here < min(self.extents[self.group], self.retry_times + 1):
            return True
        return not self.has_next_group and self.made <= self.retry_times

    @property
    def has_left(self) -> bool:
        """Return whether one more selection may be made, here or in a further group."""
        return self.may_stay or (self.has_next_group and self.retry_times > 0)

    def count(self) -> None:
        """Count a selection in this group."""
        self.made_here += 1
        self.made += 1

    def take_back(self) -> None:
        """Forget the last selection: it came to nothing and costs nothing."""
        self.made_here -= 1
        self.made -= 1

    def leave_group(self) -> None:
        """Go on to the next group, at its highest tier."""
        self.group += 1
        self.made_here = 0
