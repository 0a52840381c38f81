"""The retry decision: the table of spec 01 section 5, and the wait of section 6."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.types import Failure, FailureClass
from channels_app.options import Options
from relay_app.core.retry import (
    Situation,
    decide,
    wait_before_same_channel_s,
)

C = FailureClass
DEFAULTS = Options().automatic_retry_status_codes


def failure(status, failure_class=C.INVALID_REQUEST, **fields):
    return Failure(
        failure_class=failure_class, message="", status=status, seen_status=status, **fields
    )


def retried(failure, **fields):
    values = {"attempts_left": 1, "retry_statuses": DEFAULTS, **fields}
    return decide(Situation(failure=failure, **values)).is_retry


def test_row_1_no_failure_is_not_retried():
    assert not retried(None)


@pytest.mark.parametrize("fact", ["is_client_gone", "is_answer_begun"])
def test_row_2_a_gone_client_or_a_begun_answer_ends_it(fact):
    assert not retried(failure(500), **{fact: True})


def test_row_3_a_token_for_one_channel_ends_it():
    assert not retried(failure(500), has_specific_channel=True)


def test_row_4_an_affinity_rule_that_says_so_ends_it():
    assert not retried(failure(500), is_bound_by_affinity=True)


@pytest.mark.parametrize(
    "code",
    [
        "channel:no_available_key",
        "channel:param_override_invalid",
        "channel:header_override_invalid",
        "channel:model_mapped_error",
        "channel:aws_client_error",
        "channel:invalid_key",
        "channel:response_time_exceeded",
    ],
)
def test_row_5_channel_errors_are_retried(code):
    assert retried(failure(None, C.CHANNEL_CONFIG, code=code))


@pytest.mark.parametrize("code", ["channel", "my_channel:x", "Channel:x", "", None])
def test_row_5_other_codes_are_no_channel_errors(code):
    assert not retried(failure(400, code=code))


def test_row_5_never_exceeds_the_budget():
    error = failure(None, C.CHANNEL_CONFIG, code="channel:invalid_key")

    assert not retried(error, attempts_left=0)


def test_row_6_skip_retry_and_refused_content_end_it():
    assert not retried(failure(500, C.SERVER, skip_retry=True))
    assert not retried(failure(500, C.CONTENT_FILTER))


@pytest.mark.parametrize("left", [0, -1])
def test_row_7_without_attempts_left_nothing_is_retried(left):
    assert not retried(failure(500), attempts_left=left)


@pytest.mark.parametrize("status", [200, 201, 299])
def test_row_8_a_2xx_is_not_retried_even_if_the_option_lists_it(status):
    assert not retried(failure(status, C.SERVER), retry_statuses=((100, 599),))


def test_row_8_an_empty_answer_is_no_success():
    """It counts as a 502: retried by default, not if the option leaves out 502."""
    empty = failure(200, C.EMPTY_RESPONSE)

    assert retried(empty)
    assert not retried(empty, retry_statuses=((500, 501), (503, 599)))
    assert not retried(empty, retry_statuses=((200, 299),))


@pytest.mark.parametrize("status", [None, 0, 7, 99, 600, 999, 9_999_999])
@pytest.mark.parametrize("failure_class", [C.TRANSPORT, C.TIMEOUT])
def test_row_9_no_http_answer_is_retried_whatever_the_option(status, failure_class):
    """Our own time limits too: they are no 504."""
    assert retried(failure(status, failure_class), retry_statuses=())


@pytest.mark.parametrize("status", [504, 524])
def test_row_10_gateway_timeouts_are_never_retried(status):
    assert not retried(failure(status, C.TIMEOUT), retry_statuses=((100, 599),))


def test_row_11_the_option_decides():
    assert retried(failure(418), retry_statuses=((418, 418),))
    assert not retried(failure(417), retry_statuses=((418, 418),))


@pytest.mark.parametrize("failure_class", [C.QUOTA, C.AUTH])
@pytest.mark.parametrize("status", [400, 408, 418])
def test_row_12_faults_of_the_account_are_retried_under_any_status(failure_class, status):
    assert retried(failure(status, failure_class), retry_statuses=())


@pytest.mark.parametrize("status", [400, 408])
def test_row_13_anything_else_is_not_retried(status):
    for failure_class in set(C) - {C.QUOTA, C.AUTH, C.EMPTY_RESPONSE, C.CHANNEL_CONFIG}:
        assert not retried(failure(status, failure_class))


def test_every_status_under_the_defaults():
    statuses = {*range(-1, 601), 700, 10_000, None}

    refused = {status for status in statuses if not retried(failure(status))}

    assert refused == {*range(200, 300), 400, 408, 504, 524}


# For each row a situation in which it holds, as changes of one where none does.
ROWS = {
    2: ({"is_client_gone": True}, {}),
    3: ({"has_specific_channel": True}, {}),
    4: ({"is_bound_by_affinity": True}, {}),
    5: ({}, {"code": "channel:invalid_key"}),
    6: ({}, {"skip_retry": True}),
    7: ({"attempts_left": 0}, {}),
    8: ({}, {"seen_status": 204}),
    9: ({}, {"seen_status": 600}),
    10: ({}, {"seen_status": 504}),
    11: ({"retry_statuses": ((100, 599),)}, {}),
    12: ({}, {"failure_class": C.QUOTA}),
}
REASONS = {
    2: {"client gone"},
    3: {"specific channel"},
    4: {"affinity"},
    5: {"channel error"},
    6: {"not curable"},
    7: {"no attempts left"},
    8: {"status 2xx"},
    9: {"no answer"},
    10: {"status 504 or 524"},
    11: {"retryable status"},
    12: {"fault of the account"},
}
# Rows that ask for different statuses can't hold at once; 5 gives way to an empty budget.
APART = {*itertools.combinations((8, 9, 10), 2), (5, 7)}


@pytest.mark.parametrize(("earlier", "later"), sorted(set(itertools.combinations(ROWS, 2)) - APART))
def test_an_earlier_row_beats_a_later_one(earlier, later):
    fields, parts = {"attempts_left": 1, "retry_statuses": ()}, {}
    for row in (later, earlier):
        fields |= ROWS[row][0]
        parts |= ROWS[row][1]

    decision = decide(Situation(failure=replace(failure(400), **parts), **fields))

    assert decision.reason in REASONS[earlier]


def test_each_row_alone_gives_its_reason():
    for row, (fields, parts) in ROWS.items():
        situation = {"attempts_left": 1, "retry_statuses": (), **fields}
        decision = decide(Situation(failure=replace(failure(400), **parts), **situation))
        assert decision.reason in REASONS[row]


def test_the_mapped_status_decides():
    """A channel's `status_code_mapping` comes before this decision (spec 01 section 5)."""
    assert retried(replace(failure(400), seen_status=500))
    assert not retried(replace(failure(500), seen_status=400))


statuses = st.one_of(st.none(), st.integers(-5, 1000))
situations = st.builds(
    Situation,
    failure=st.one_of(
        st.none(),
        st.builds(
            Failure,
            failure_class=st.sampled_from(C),
            message=st.just(""),
            status=statuses,
            seen_status=statuses,
            code=st.sampled_from([None, "x", "channel:invalid_key"]),
            skip_retry=st.booleans(),
        ),
    ),
    attempts_left=st.integers(-2, 3),
    retry_statuses=st.sampled_from([(), DEFAULTS, ((100, 599),)]),
    is_client_gone=st.booleans(),
    is_answer_begun=st.booleans(),
    has_specific_channel=st.booleans(),
    is_bound_by_affinity=st.booleans(),
)


@given(situation=situations)
def test_the_table_is_total_and_never_breaks_the_hard_limits(situation):
    """Every situation gets an answer with a reason; no retry past the budget, after the
    client left or its answer began."""
    decision = decide(situation)

    assert decision.reason
    if decision.is_retry:
        assert situation.failure is not None
        assert situation.attempts_left > 0
        assert not situation.is_client_gone
        assert not situation.is_answer_begun
        assert not situation.has_specific_channel


def wait(*, failures=1, retry_after_s=None, longest_hint_s=3.0, roll=0.5):
    return wait_before_same_channel_s(
        failures=failures, retry_after_s=retry_after_s, longest_hint_s=longest_hint_s, roll=roll
    )


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 0.7), (2, 1.1), (3, 1.9), (4, 3.5), (5, 4.3), (50, 4.3)]
)
def test_the_wait_is_a_pause_and_a_jitter_that_doubles_to_its_cap(failures, longest):
    assert wait(failures=failures, roll=0.0) == pytest.approx(0.3)
    assert wait(failures=failures, roll=1.0) == pytest.approx(longest)
    assert wait(failures=failures, roll=0.5) == pytest.approx((0.3 + longest) / 2)


@pytest.mark.parametrize(
    ("hint", "expected"), [(0.1, 0.1), (2.5, 2.5), (3.0, 3.0), (3.001, None), (1e300, None)]
)
def test_a_published_wait_is_kept_or_too_long(hint, expected):
    assert wait(retry_after_s=hint) == expected


@pytest.mark.parametrize("hint", [None, 0.0, -5.0])
def test_without_a_real_hint_the_backoff_applies(hint):
    assert wait(retry_after_s=hint, roll=0.0) == pytest.approx(0.3)


def test_a_longest_hint_of_zero_waits_for_none():
    assert wait(retry_after_s=0.1, longest_hint_s=0.0) is None


rolls = st.floats(0, 1, exclude_max=True)


@given(failures=st.integers(0, 10**9), roll=rolls)
def test_the_wait_stays_within_its_bounds(failures, roll):
    assert 0.3 <= wait(failures=failures, roll=roll) <= 4.3


@given(failures=st.integers(1, 100), low=rolls, high=rolls)
def test_the_wait_never_falls_with_more_failures_or_a_higher_roll(failures, low, high):
    low, high = sorted((low, high))

    assert wait(failures=failures, roll=low) <= wait(failures=failures, roll=high)
    assert wait(failures=failures, roll=low) <= wait(failures=failures + 1, roll=low)
