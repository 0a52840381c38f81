"""Read and write lists of HTTP statuses such as `429,500-503` (spec 01 section 5)."""

from __future__ import annotations

import re

Ranges = tuple[tuple[int, int], ...]

LOWEST, HIGHEST = 100, 599
FULL_WIDTH_COMMA = "\uff0c"
_PART = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?", re.ASCII)


def parse_status_ranges(text: str) -> Ranges:
    """Return `text` as sorted, merged, inclusive ranges; empty text means nothing.

    Parts are `N` or `A-B` with 100 <= A <= B <= 599, separated by commas (full-width
    ones too); empty parts are ignored. Raises ValueError naming the first bad part.
    """
    parts = [part.strip() for part in text.replace(FULL_WIDTH_COMMA, ",").split(",")]
    found = [_parse_part(part) for part in parts if part]
    merged: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def format_status_ranges(ranges: Ranges) -> str:
    """Return `ranges` in the form that `parse_status_ranges` reads."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def in_ranges(ranges: Ranges, status: int) -> bool:
    """Return whether `status` lies in one of `ranges`."""
    return any(low <= status <= high for low, high in ranges)


def _parse_part(part: str) -> tuple[int, int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is not a status like 429 or a range like 500-503")
    low = int(match[1])
    high = int(match[2] or match[1])
    if not LOWEST <= low <= high <= HIGHEST:
        raise ValueError(f"{part!r} is outside {LOWEST}-{HIGHEST} or its ends are swapped")
    return low, high
