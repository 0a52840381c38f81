"""What becomes of an upstream's status when the client is told."""

from __future__ import annotations

import pytest

from channels_app.core.types import Failure, FailureClass
from relay_app.errors import UpstreamFailed


def told(status, **fields):
    return UpstreamFailed(
        Failure(failure_class=FailureClass.SERVER, message="m", status=status, **fields)
    ).http_status


def test_statuses_of_failed_answers_are_told_as_they_are():
    """Spec 01 section 5: outside 200-599 it is 502. So it is for a 2xx, which would pass
    for success, and for a 304, which has no body to say what failed."""
    for status in range(-5, 1001):
        expected = status if 300 <= status <= 599 and status != 304 else 502
        assert told(status) == expected, status


def test_no_status_is_502():
    assert told(None) == 502


@pytest.mark.parametrize(("seen", "expected"), [(400, 400), (599, 599), (204, 502), (None, 500)])
def test_a_mapped_status_comes_first(seen, expected):
    assert told(500, seen_status=seen) == expected
