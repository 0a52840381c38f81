"""Lists of statuses: reading, tidying and refusing them (spec 01 section 5)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.status_ranges import (
    format_status_ranges,
    in_ranges,
    parse_status_ranges,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500-505,504,401,403,402", "401-403,500-505"),
        ("500-503,429,525-599", "429,500-503,525-599"),
        ("401\uff0c403", "401,403"),
        ("401,,403,", "401,403"),
        ("", ""),
        (" , \uff0c,", ""),
        (" 429 , 500 - 503 ", "429,500-503"),
        ("500,501", "500-501"),
        ("500,502", "500,502"),
        ("400-499,450-460", "400-499"),
        ("100,599", "100,599"),
        ("100-599", "100-599"),
        ("503-503", "503"),
        ("429,429", "429"),
        (
            "100-199,300-399,401-407,409-499,500-503,505-523,525-599",
            "100-199,300-399,401-407,409-503,505-523,525-599",
        ),
    ],
)
def test_lists_are_sorted_and_merged(text, expected):
    assert format_status_ranges(parse_status_ranges(text)) == expected


@pytest.mark.parametrize(
    "bad",
    [
        "99",
        "600",
        "503-500",
        "abc",
        "401 403",
        "-500",
        "500-",
        "500-600",
        "99-200",
        "1",
        "500-501-502",
        "5xx",
        "500.0",
        "+500",
        "٤٠٤",
        "5" * 400,
    ],
)
def test_a_bad_part_is_refused_by_name(bad):
    """One bad part refuses the whole list, and the error quotes that part alone."""
    with pytest.raises(ValueError, match=r"is not a status|is outside") as caught:
        parse_status_ranges(f"429,{bad},500")

    assert str(caught.value).startswith(repr(bad))


statuses = st.integers(100, 599)
parts = st.tuples(statuses, statuses).map(sorted)


@given(parts=st.lists(parts), status=st.integers(0, 700))
def test_membership_is_that_of_the_plain_set(parts, status):
    text = ",".join(f"{low}-{high}" for low, high in parts)
    naive = {n for low, high in parts for n in range(low, high + 1)}

    assert in_ranges(parse_status_ranges(text), status) == (status in naive)


@given(parts=st.lists(parts))
def test_the_shown_form_reads_back_and_stays(parts):
    ranges = parse_status_ranges(",".join(f"{low}-{high}" for low, high in parts))

    shown = format_status_ranges(ranges)

    assert parse_status_ranges(shown) == ranges
    assert format_status_ranges(parse_status_ranges(shown)) == shown


@given(parts=st.lists(parts))
def test_ranges_come_out_in_order_with_gaps_between(parts):
    ranges = parse_status_ranges(",".join(f"{low}-{high}" for low, high in parts))

    assert all(low <= high for low, high in ranges)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ranges))


@given(text=st.text("0123456789-,\uff0c \t\nx", max_size=30))
def test_any_text_is_read_or_refused_with_a_value_error(text):
    try:
        ranges = parse_status_ranges(text)
    except ValueError:
        return
    assert all(100 <= low <= high <= 599 for low, high in ranges)
