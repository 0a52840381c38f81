"""The walk among groups: every count of spec 01 section 7 in one value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay_app.core.walk import Walk

extents = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def walked(walk):
    """Select for as long as the walk allows; return how many selections each group had."""
    made = [0] * len(walk.extents)
    while walk.has_left:
        if walk.may_stay:
            made[walk.group] += 1
            walk.count()
        else:
            walk.leave_group()
        assert sum(made) <= 100
    return made


@given(extents=extents, retry_times=st.integers(1, 6))
def test_each_group_is_walked_once_and_the_last_one_fills_the_budget(extents, retry_times):
    made = walked(Walk(extents=extents, retry_times=retry_times))

    once = [min(extent, retry_times + 1) for extent in extents]
    assert made[:-1] == once[:-1]
    assert made[-1] == max(once[-1], retry_times + 1 - sum(once[:-1]))


@given(extents=extents)
def test_without_retries_there_is_one_selection(extents):
    assert sum(walked(Walk(extents=extents, retry_times=0))) == 1


@given(extents=extents, retry_times=st.integers(0, 6), left=st.integers(0, 3))
def test_groups_that_are_passed_over_cost_nothing(extents, retry_times, left):
    walk = Walk(extents=extents, retry_times=retry_times)
    for _ in range(min(left, len(extents) - 1)):
        walk.leave_group()

    assert walk.may_stay
    assert sum(walked(walk)) >= retry_times + 1


@given(extents=extents, retry_times=st.integers(0, 6))
def test_a_selection_taken_back_was_never_made(extents, retry_times):
    walk = Walk(extents=extents, retry_times=retry_times)
    walk.count()
    walk.take_back()

    assert walk == Walk(extents=extents, retry_times=retry_times)
