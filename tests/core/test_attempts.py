"""The attempt loop: no mix of failures exceeds the budget (spec 01 sections 2, 4 to 6)."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from channels_app.core.types import ChannelView, Failure, FailureClass, KeyView, Route
from channels_app.options import Options
from relay_app.core.attempts import (
    NO_CHANNEL,
    AttemptLoop,
    GroupRoute,
    ModelRoute,
    Rolls,
)
from relay_app.core.retry import telling_failure

C = FailureClass
NEARLY = 1e-6  # seconds: sums of floats
ROLLS = Rolls(channel=0.0, key=0.0, wait=0.0)


def route(*tiers, keys=1):
    """Return a route whose tiers hold these ids."""
    return Route(
        tiers=tuple(
            tuple(
                ChannelView(
                    id=number,
                    name=f"c{number}",
                    provider="openai",
                    base_url="",
                    keys=tuple(KeyView(id=10 * number + n, value="k") for n in range(keys)),
                )
                for number in tier
            )
            for tier in tiers
        )
    )


def models(*routes, name="m"):
    """Return the route of one model through groups g0, g1, ..."""
    groups = (GroupRoute(group=f"g{n}", route=found) for n, found in enumerate(routes))
    return (ModelRoute(model=name, groups=tuple(groups)),)


def failure(failure_class=C.SERVER, status=500, **fields):
    return Failure(
        failure_class=failure_class, message="", status=status, seen_status=status, **fields
    )


def loop(*tiers, unavailable=(), keys=1, **options):
    return AttemptLoop(
        models=models(route(*tiers, keys=keys)),
        options=Options(**options),
        started_s=0.0,
        unavailable=unavailable,
    )


def run(attempts, *failures, every=None, took_s=0.0):
    """Drive the loop through `failures`, then for ever through `every`; return its steps.

    Waits are waited out; each attempt takes `took_s`.
    """
    now_s, steps, coming = 0.0, [], list(failures)
    while step := attempts.next_step(now_s=now_s, rolls=ROLLS, turn=0):
        now_s += step.wait_s + took_s
        steps.append(step)
        assert len(steps) < 100
        outcome = coming.pop(0) if coming else every
        if outcome is None:
            return steps
        attempts.failed(outcome, now_s=now_s)
    return steps


def channel_ids(steps):
    return [step.channel.id for step in steps]


def test_attempts_walk_down_the_tiers_and_stay_in_the_last():
    attempts = loop([1], [2], [3], retry_times=4)

    steps = run(attempts, every=failure())

    assert channel_ids(steps) == [1, 2, 3, 3, 3]
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert attempts.stop_reason == "no attempts left"


def test_a_tier_gives_its_fresh_channel_before_one_that_failed():
    assert channel_ids(run(loop([1, 2], retry_times=2), every=failure()))[:2] == [1, 2]


def test_a_failure_that_no_attempt_cures_ends_it():
    attempts = loop([1], [2], retry_times=3)

    steps = run(attempts, failure(C.INVALID_REQUEST, 400))

    assert channel_ids(steps) == [1]
    assert attempts.stop_reason == "status not retryable"
    assert attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0) is None


def test_a_fresh_channel_is_asked_without_a_wait():
    assert [step.wait_s for step in run(loop([1], [2], retry_times=1), every=failure())] == [0, 0]


def test_a_channel_that_failed_waits_its_pause():
    [_, second] = run(loop([1], retry_times=1), every=failure())

    assert second.wait_s == pytest.approx(0.3)


def test_each_failure_of_a_channel_lengthens_its_wait():
    attempts, waits = loop([1], retry_times=3), []
    almost_one = Rolls(channel=0.0, key=0.0, wait=0.999999)

    while step := attempts.next_step(now_s=0.0, rolls=almost_one, turn=0):
        waits.append(step.wait_s)
        attempts.failed(failure(), now_s=0.0)

    assert waits == pytest.approx([0, 0.7, 1.1, 1.9], abs=0.001)


def test_time_since_the_failure_counts_towards_the_wait():
    """1 fails at 0 s, 2 takes 0.2 s, so 1 waits 0.1 s; had 2 taken longer, not at all."""
    for took_s, expected in ((0.2, 0.1), (5.0, 0.0)):
        attempts = loop([1, 2], retry_times=2, max_switches_per_request=9)
        first = attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)
        attempts.failed(failure(), now_s=0.0)
        attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)
        attempts.failed(failure(C.TIMEOUT, None), now_s=took_s)
        third = attempts.next_step(now_s=took_s, rolls=ROLLS, turn=0)

        assert third.channel == first.channel
        assert third.wait_s == pytest.approx(expected)


@pytest.mark.parametrize(("hint", "wait"), [(2.0, 2.0), (3.0, 3.0), (0.1, 0.1)])
def test_a_published_wait_is_waited_out(hint, wait):
    steps = run(loop([1], retry_times=1), every=failure(C.RATE_LIMIT, 429, retry_after_s=hint))

    assert [step.wait_s for step in steps] == pytest.approx([0, wait])


def test_a_published_wait_that_is_too_long_rules_the_channel_out():
    attempts = loop([1], retry_times=5)

    steps = run(attempts, every=failure(C.RATE_LIMIT, 429, retry_after_s=3.5))

    assert channel_ids(steps) == [1]
    assert attempts.stop_reason == "no channel left"


def test_a_channel_that_timed_out_is_never_asked_again():
    attempts = loop([1, 2], retry_times=5)

    steps = run(attempts, every=failure(C.TIMEOUT, None))

    assert sorted(channel_ids(steps)) == [1, 2]


def test_a_ruled_out_tier_gives_way_to_the_others():
    """2 is the last tier but timed out: a higher one is asked again instead."""
    steps = run(loop([1], [2], retry_times=2), failure(), failure(C.TIMEOUT, None), failure())

    assert channel_ids(steps) == [1, 2, 1]


@pytest.mark.parametrize(
    ("allowed", "expected"), [(0, [1] * 5), (1, [1, 2, 2, 2, 2]), (2, [1, 2, 3, 3, 3])]
)
def test_switches_are_bounded(allowed, expected):
    """When they are used up the last channel is all that is left."""
    attempts = loop([1], [2], [3], [4], retry_times=4, max_switches_per_request=allowed)

    assert channel_ids(run(attempts, every=failure())) == expected


def test_without_switches_a_channel_that_is_spent_ends_the_request():
    attempts = loop([1], [2], retry_times=4, max_switches_per_request=0)

    assert channel_ids(run(attempts, every=failure(C.TIMEOUT, None))) == [1]
    assert attempts.stop_reason == "no switches left"


def test_a_misconfigured_channel_is_not_asked_again():
    """Nothing about it can change within the request."""
    attempts = loop([1], retry_times=4)

    steps = run(attempts, every=failure(C.CHANNEL_CONFIG, None, code="channel:no_available_key"))

    assert channel_ids(steps) == [1]


def test_the_same_channel_again_is_no_switch():
    attempts = loop([1], retry_times=3, max_switches_per_request=0)

    assert channel_ids(run(attempts, every=failure())) == [1, 1, 1, 1]


def test_no_attempt_starts_after_the_total_time():
    attempts = loop([1], [2], [3], [4], retry_times=9, total_timeout=10)

    steps = run(attempts, every=failure(), took_s=5.0)

    assert channel_ids(steps) == [1, 2, 3]  # at 0, 5 and 10 s
    assert attempts.stop_reason == "total time limit"


def test_a_wait_that_ends_after_the_total_time_is_not_begun():
    attempts = loop([1], retry_times=9, total_timeout=10)

    steps = run(attempts, failure(retry_after_s=2.0), took_s=9.0)

    assert channel_ids(steps) == [1]
    assert attempts.stop_reason == "total time limit"


def test_the_first_attempt_is_made_however_late():
    attempts = loop([1], total_timeout=1)

    assert attempts.next_step(now_s=99.0, rolls=ROLLS, turn=0) is not None


def test_a_total_time_of_zero_is_no_limit():
    steps = run(loop([1], [2], retry_times=1, total_timeout=0), every=failure(), took_s=1e9)

    assert len(steps) == 2


def test_unavailable_channels_are_passed_over_and_cost_nothing():
    attempts = loop([1], [2], [3], unavailable={1, 3}, retry_times=1)

    assert channel_ids(run(attempts, every=failure())) == [2, 2]


def test_nothing_available_is_no_attempt():
    attempts = loop([1], unavailable={1}, retry_times=5)

    assert run(attempts) == []
    assert attempts.stop_reason == "no channel left"
    assert attempts.failures == []


def test_another_key_is_used_when_the_channel_is_asked_again():
    steps = run(loop([1], keys=3, retry_times=3), every=failure(C.RATE_LIMIT, 429))

    assert [step.key.id for step in steps] == [10, 11, 12, 10, 10, 10]
    assert [step.is_selection for step in steps] == [True, False, False, True, True, True]
    assert [step.wait_s > 0 for step in steps] == [False, False, False, True, True, True]


@pytest.mark.parametrize("failure_class", C)
def test_a_fault_of_one_key_goes_on_with_the_next_one_at_once(failure_class):
    steps = run(loop([1], keys=2), every=failure(failure_class, 429))

    is_of_a_key = failure_class in (C.RATE_LIMIT, C.QUOTA, C.AUTH)
    assert [step.key.id for step in steps] == ([10, 11] if is_of_a_key else [10])


def test_one_selection_uses_three_further_keys_at_most():
    steps = run(loop([1], keys=9, retry_times=1), every=failure(C.QUOTA, 429))

    assert [step.is_selection for step in steps] == [True, False, False, False] * 2
    assert len({step.key.id for step in steps}) == 8


def test_keys_come_before_other_channels_and_cost_no_selection():
    steps = run(loop([1], [2], keys=2, retry_times=1), every=failure(C.AUTH, 401))

    assert [step.key.id for step in steps] == [10, 11, 20, 21]


@pytest.mark.parametrize("failure_class", C)
def test_a_passing_fault_is_met_on_the_same_channel(failure_class):
    steps = run(loop([1], [2], same_channel_retries=2), every=failure(failure_class, 500))

    is_passing = failure_class in (C.RATE_LIMIT, C.SERVER, C.TRANSPORT)
    assert channel_ids(steps) == ([1, 1, 1] if is_passing else [1])
    assert [step.is_selection for step in steps][1:] == [False] * (len(steps) - 1)


def test_same_channel_retries_count_per_channel_and_request():
    steps = run(loop([1], [2], same_channel_retries=1, retry_times=3), every=failure())

    assert channel_ids(steps) == [1, 1, 2, 2, 2, 2]
    assert [step.is_selection for step in steps] == [True, False, True, False, True, True]


def test_the_same_channel_waits_longer_each_time_but_not_after_the_last():
    attempts, waits, now_s = loop([1], same_channel_retries=3), [], 0.0
    almost_one = Rolls(channel=0.0, key=0.0, wait=0.999999)

    while step := attempts.next_step(now_s=now_s, rolls=almost_one, turn=0):
        waits.append(step.wait_s)
        now_s += step.wait_s
        attempts.failed(failure(), now_s=now_s)

    assert waits == pytest.approx([0, 0.7, 1.1, 1.9], abs=0.001)


@pytest.mark.parametrize(("hint", "expected"), [(2.0, [1, 1]), (3.0, [1, 1]), (3.1, [1])])
def test_the_same_channel_is_left_at_once_if_it_asks_for_a_long_wait(hint, expected):
    every = failure(C.RATE_LIMIT, 429, retry_after_s=hint)

    steps = run(loop([1], same_channel_retries=1), every=every)

    assert channel_ids(steps) == expected
    assert [step.wait_s for step in steps[1:]] == [hint] * (len(expected) - 1)


def test_a_status_that_is_not_tried_again_is_not_on_the_same_channel_either():
    assert len(run(loop([1], same_channel_retries=3), every=failure(C.SERVER, 504))) == 1


def test_no_same_channel_retry_starts_after_the_total_time():
    attempts = loop([1], same_channel_retries=3, total_timeout=1)

    assert len(run(attempts, every=failure(), took_s=0.5)) == 2
    assert attempts.stop_reason == "total time limit"


def test_a_specific_channel_is_asked_once():
    attempts = loop([1], keys=3, same_channel_retries=3, retry_times=3)
    attempts.has_specific_channel = True

    assert len(run(attempts, every=failure(C.RATE_LIMIT, 429))) == 1
    assert attempts.stop_reason == "specific channel"


# -- strategies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "tiers", "expected"),
    [
        ("tier_per_attempt", ([1, 2], [3], [4, 5]), [1, 3, 4, 5, 4]),
        ("untried_first", ([1, 2], [3], [4, 5]), [1, 3, 4, 5, 2]),
        ("exhaust_tier", ([1, 2], [3], [4, 5]), [1, 2, 3, 4, 5]),
        ("tier_per_attempt", ([1], [2]), [1, 2, 2, 2, 2]),
        ("untried_first", ([1], [2]), [1, 2, 2, 2, 2]),
        ("exhaust_tier", ([1], [2]), [1, 2, 2, 2, 2]),
        ("untried_first", ([1, 2, 3],), [1, 2, 3, 1, 1]),
        ("exhaust_tier", ([1, 2, 3],), [1, 2, 3, 1, 1]),
        ("untried_first", ([1, 2, 3], [4]), [1, 4, 2, 3, 4]),
    ],
)
def test_strategies_order_the_channels(strategy, tiers, expected):
    attempts = loop(*tiers, retry_strategy=strategy, retry_times=4)

    assert channel_ids(run(attempts, every=failure())) == expected


@pytest.mark.parametrize("strategy", ["tier_per_attempt", "untried_first", "exhaust_tier"])
def test_strategies_pass_over_what_is_unavailable(strategy):
    attempts = loop([1, 2], [3], unavailable={1, 2}, retry_strategy=strategy, retry_times=1)

    assert channel_ids(run(attempts, every=failure())) == [3, 3]


# -- groups (the table of spec 01 section 7) -----------------------------------------------


def tiers_of(group, count):
    """Return a route of `count` tiers of one channel; ids 10, 11, ... of group 1."""
    return route(*[[10 * group + tier] for tier in range(count)])


@pytest.mark.parametrize(
    ("groups", "retry_times", "expected"),
    [
        ((2, 2), 3, "A0 A1 B0 B1"),
        ((2, 2), 1, "A0 A1 B0 B1"),
        ((2, 2), 0, "A0"),
        ((1, 1), 3, "A0 B0 B0 B0"),
        ((2,), 3, "A0 A1 A1 A1"),
        ((3, 2), 1, "A0 A1 B0 B1"),
        ((1, 1, 1), 1, "A0 B0 C0"),
        ((1, 3), 0, "A0"),
    ],
)
def test_groups_are_walked_in_order(groups, retry_times, expected):
    attempts = AttemptLoop(
        models=models(*[tiers_of(n + 1, count) for n, count in enumerate(groups)]),
        options=Options(retry_times=retry_times, max_switches_per_request=20),
        started_s=0.0,
    )

    steps = run(attempts, every=failure())

    walked = " ".join("_ABC"[step.channel.id // 10] + str(step.channel.id % 10) for step in steps)
    assert walked == expected
    assert [step.group for step in steps] == [f"g{step.channel.id // 10 - 1}" for step in steps]


@pytest.mark.parametrize("retry_times", [0, 2])
def test_a_group_without_an_available_channel_is_passed_over_at_no_cost(retry_times):
    attempts = AttemptLoop(
        models=models(tiers_of(1, 2), tiers_of(2, 1)),
        options=Options(retry_times=retry_times),
        started_s=0.0,
        unavailable={10, 11},
    )

    steps = run(attempts, every=failure())

    assert channel_ids(steps) == [20] * (retry_times + 1)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("untried_first", [1, 3, 2, 10, 10]),
        ("exhaust_tier", [1, 2, 3, 10, 10]),
        ("tier_per_attempt", [1, 3, 10, 10, 10]),
    ],
)
def test_the_strategy_counts_within_each_group(strategy, expected):
    attempts = AttemptLoop(
        models=models(route([1, 2], [3]), tiers_of(1, 1)),
        options=Options(retry_times=4, retry_strategy=strategy),
        started_s=0.0,
    )

    assert channel_ids(run(attempts, every=failure())) == expected


# -- model fallbacks -----------------------------------------------------------------------


def with_fallback(first, *others, **options):
    names = ["m", "n", "o"]
    routes = [models(r, name=name)[0] for r, name in zip((first, *others), names, strict=False)]
    return AttemptLoop(models=routes, options=Options(**options), started_s=0.0)


def asked(steps):
    return [f"{step.model}{step.channel.id}" for step in steps]


@pytest.mark.parametrize(
    ("retry_times", "expected"),
    [(0, ["m1"]), (1, ["m1", "m2", "n3"]), (2, ["m1", "m2", "n3"]), (3, ["m1", "m2", "n3", "n3"])],
)
def test_another_model_is_tried_when_every_channel_failed(retry_times, expected):
    attempts = with_fallback(route([1, 2]), route([3]), retry_times=retry_times)

    assert asked(run(attempts, every=failure())) == expected


def test_each_further_model_gets_one_selection_at_least():
    attempts = with_fallback(route([1]), route([2]), route([3]))

    assert asked(run(attempts, every=failure())) == ["m1", "n2", "o3"]


def test_another_model_is_tried_when_every_channel_is_unavailable():
    attempts = with_fallback(route([1]), route([2]))
    attempts.unavailable = {1}

    assert asked(run(attempts, every=failure())) == ["n2"]


def test_a_failure_that_is_not_tried_again_tries_no_other_model():
    attempts = with_fallback(route([1]), route([2]))

    assert asked(run(attempts, every=failure(C.INVALID_REQUEST, 400))) == ["m1"]


# -- full channels -------------------------------------------------------------------------


def test_a_full_channel_gives_way_at_no_cost():
    attempts = loop([1], [2])
    attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)

    attempts.refused(is_key=False, room_at_s=5.0)
    step = attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)

    assert (step.channel.id, step.number) == (2, 1)


def test_a_full_key_gives_way_to_another_key():
    attempts = loop([1], keys=2)
    first = attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)

    attempts.refused(is_key=True, room_at_s=5.0)
    second = attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)

    assert (first.key.id, second.key.id) == (10, 11)


def test_when_all_are_full_the_loop_says_until_when_and_begins_anew():
    attempts = loop([1], [2])
    for room_at_s in (7.0, 4.0):
        assert attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)
        attempts.refused(is_key=False, room_at_s=room_at_s)

    assert attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0) is None
    assert (attempts.room_at_s, attempts.stop_reason) == (4.0, "")
    attempts.forget_full()
    assert attempts.next_step(now_s=4.0, rolls=ROLLS, turn=0).channel.id == 1


def test_a_same_channel_retry_that_finds_no_room_moves_on():
    attempts = loop([1], [2], same_channel_retries=3, retry_times=1)
    attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)
    attempts.failed(failure(), now_s=0.0)
    assert attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0).channel.id == 1

    attempts.refused(is_key=False, room_at_s=9.0)

    assert attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0).channel.id == 2


def test_what_is_not_covered_gives_way_at_no_cost_and_is_not_asked_again():
    attempts = loop([1], [2], retry_times=1)
    attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)

    attempts.not_covered()

    assert asked(run(attempts, every=failure())) == ["m2", "m2"]
    assert attempts.room_at_s is None


def test_what_is_not_covered_falls_back_only_after_a_failure():
    attempts = with_fallback(route([1]), route([2]))
    attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)
    attempts.not_covered()

    assert attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0) is None
    assert attempts.stop_reason == NO_CHANNEL


def test_a_fallback_that_is_not_covered_gives_way_to_the_next():
    attempts = with_fallback(route([1]), route([1]), route([1]))
    attempts.next_step(now_s=0.0, rolls=ROLLS, turn=0)
    attempts.failed(failure(), now_s=0.0)
    assert attempts.next_step(now_s=9.0, rolls=ROLLS, turn=0).model == "n"

    attempts.not_covered()

    assert attempts.next_step(now_s=9.0, rolls=ROLLS, turn=0).model == "o"


def test_a_channel_without_keys_is_still_asked():
    [step] = run(loop([1], keys=0))

    assert step.key is None


def test_channel_errors_do_not_exceed_the_budget():
    error = failure(C.CHANNEL_CONFIG, None, code="channel:no_available_key")

    assert len(run(loop([1], [2], [3], [4], [5], retry_times=3), every=error)) == 4


classes = st.sampled_from(C)
statuses = st.one_of(
    st.none(), st.sampled_from([200, 400, 401, 408, 429, 500, 502, 503, 504, 524, 600])
)
hints = st.one_of(st.none(), st.floats(-1, 8), st.sampled_from([0.0, 3.0, 3.5, 1e9]))
failures = st.builds(
    Failure,
    failure_class=classes,
    message=st.just(""),
    status=statuses,
    seen_status=statuses,
    code=st.sampled_from([None, None, "channel:invalid_key"]),
    retry_after_s=hints,
    skip_retry=st.sampled_from([False, False, False, True]),
)
retryable = st.builds(
    failure,
    st.sampled_from([C.SERVER, C.TRANSPORT, C.TIMEOUT, C.RATE_LIMIT, C.QUOTA, C.AUTH]),
    st.sampled_from([429, 500, 503, 401, None]),
    retry_after_s=hints,
)
rolls = st.builds(Rolls, **dict.fromkeys(("channel", "key", "wait"), st.floats(0, 0.999)))


@given(failure=failures, tiers=st.integers(1, 3))
def test_no_retries_is_one_attempt_for_every_failure(failure, tiers):
    attempts = loop(*[[n] for n in range(tiers)], retry_times=0)

    assert len(run(attempts, every=failure)) == 1


@given(bad=st.lists(retryable, max_size=6), spare=st.integers(0, 3), one_tier=st.booleans())
def test_a_good_channel_is_reached_past_as_many_bad_ones_as_retries(bad, spare, one_tier):
    """In one tier, or in tiers of one channel each with the good one last.

    Several channels in a tier above others are not promised: attempt number means tier.
    """
    ids = list(range(len(bad) + 1))
    tiers = [ids] if one_tier else [[n] for n in ids]
    attempts = loop(
        *tiers,
        retry_times=len(bad) + spare,
        max_switches_per_request=20,
        total_timeout=0,
    )

    steps = run(attempts, *bad)

    assert sorted(channel_ids(steps)) == ids


class Requests(RuleBasedStateMachine):
    """One request through any failures, against plain facts noted down beside it.

    The model knows nothing of how the loop counts: it keeps what was sent and when, and
    checks each new step against the limits of the specification.
    """

    @initialize(
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
        retry_times=st.integers(0, 8),
        switches=st.integers(0, 6),
        total=st.sampled_from([0.0, 5.0, 60.0]),
        longest=st.sampled_from([0.0, 3.0]),
        unavailable=st.sets(st.integers(0, 11), max_size=3),
        keys=st.integers(0, 5),
        same=st.integers(0, 2),
        strategy=st.sampled_from(["tier_per_attempt", "untried_first", "exhaust_tier"]),
    )
    def begin(
        self, *, sizes, retry_times, switches, total, longest, unavailable, keys, same, strategy
    ):
        ids = iter(range(12))
        self.tiers = [[next(ids) for _ in range(size)] for size in sizes]
        self.retry_times, self.switches, self.total = retry_times, switches, total
        self.longest, self.unavailable = longest, unavailable
        self.loop = loop(
            *self.tiers,
            unavailable=unavailable,
            retry_times=retry_times,
            max_switches_per_request=switches,
            total_timeout=total,
            retry_after_wait_max=longest,
            keys=keys,
            same_channel_retries=same,
            retry_strategy=strategy,
        )
        self.same, self.strategy = same, strategy
        self.repeats = []  # (channel id, is another key, selection it belongs to)
        self.selections, self.full = 0, {}
        self.now_s = 0.0
        self.sent = []  # (channel id, number), in order
        self.failed_at = {}  # channel id → [(failure, time)]
        self.is_sending = False
        self.may_go_on = True

    @precondition(lambda self: not self.is_sending)
    @rule(rolls=rolls, turn=st.integers(0, 5))
    def ask(self, rolls, turn):
        step = self.loop.next_step(now_s=self.now_s, rolls=rolls, turn=turn)
        if step is None:
            assert self.loop.stop_reason or self.full
            self.may_go_on = self.may_go_on and bool(self.full)
            return
        assert self.may_go_on, "the loop went on after it had ended"
        self.check_step(step)
        self.selections += step.is_selection
        self.step = step
        if not step.is_selection:
            tried = {key for channel_id, key, *_ in self.sent if channel_id == step.channel.id}
            is_next_key = step.key is not None and step.key.id not in tried and step.wait_s == 0
            self.repeats.append((step.channel.id, is_next_key, self.selections))
        key_id = step.key.id if step.key else None
        self.sent.append((step.channel.id, key_id, step.number))
        self.now_s += step.wait_s
        self.is_sending = True

    def check_step(self, step):
        channel_id, starts_s = step.channel.id, self.now_s + step.wait_s
        assert channel_id not in self.unavailable
        assert channel_id not in self.full or not self.full[channel_id]
        assert step.wait_s >= 0
        if self.sent and self.total:
            assert starts_s <= self.total + NEARLY
        if channel_id not in self.failed_at:
            assert step.wait_s == 0
            return
        history = self.failed_at[channel_id]
        assert all(f.failure_class not in (C.TIMEOUT, C.CHANNEL_CONFIG) for f, _ in history)
        if not step.is_selection:
            assert channel_id == self.sent[-1][0]
            tried = {key for sent_id, key, _ in self.sent if sent_id == channel_id}
            if step.key is not None and step.key.id not in tried and step.wait_s == 0:
                return  # the next key goes at once
        last, at_s = history[-1]
        hint = last.retry_after_s if (last.retry_after_s or 0) > 0 else None
        assert hint is None or hint <= self.longest
        assert starts_s - at_s >= (hint or 0.3) - NEARLY
        [tier] = [tier for tier in self.tiers if channel_id in tier]
        ids = [sent_id for sent_id, *_ in self.sent]
        has_switch_left = sum(a != b for a, b in itertools.pairwise(ids)) < self.switches
        if has_switch_left and step.is_selection:
            is_by_tier = self.strategy == "tier_per_attempt"
            fresh = set(tier if is_by_tier else itertools.chain(*self.tiers))
            assert fresh <= self.failed_at.keys() | self.unavailable | self.full.keys()

    @precondition(lambda self: self.is_sending)
    @rule(wait_s=st.floats(0, 5))
    def find_it_full(self, wait_s):
        """The step is not sent: as if it had not been chosen."""
        self.is_sending = False
        channel_id, *_ = self.sent.pop()
        if self.step.is_selection:
            self.selections -= 1
        else:
            self.repeats.pop()
        self.full[channel_id] = True
        self.loop.refused(is_key=False, room_at_s=self.now_s + wait_s)

    @precondition(lambda self: self.is_sending)
    @rule()
    def find_it_not_covered(self):
        """The step is not sent, and its channel never again: there is one model and group."""
        self.is_sending = False
        channel_id, *_ = self.sent.pop()
        if self.step.is_selection:
            self.selections -= 1
        else:
            self.repeats.pop()
        self.unavailable = {*self.unavailable, channel_id}
        self.loop.not_covered()

    @precondition(lambda self: not self.is_sending and self.full)
    @rule()
    def find_room_again(self):
        self.full.clear()
        self.loop.forget_full()

    @precondition(lambda self: self.is_sending)
    @rule(failure=st.one_of(failures, retryable), took_s=st.floats(0, 4))
    def fail(self, failure, took_s):
        self.now_s += took_s
        self.is_sending = False
        channel_id, *_ = self.sent[-1]
        self.failed_at.setdefault(channel_id, []).append((failure, self.now_s))
        decision = self.loop.failed(failure, now_s=self.now_s)
        assert decision.reason
        self.may_go_on = decision.is_retry

    @precondition(lambda self: not self.is_sending)
    @rule(idle_s=st.floats(0, 10))
    def wait(self, idle_s):
        self.now_s += idle_s

    @invariant()
    def stays_within_the_budget(self):
        if not hasattr(self, "loop"):
            return
        ids = [channel_id for channel_id, *_ in self.sent]
        assert self.selections <= self.retry_times + 1
        by_key = Counter(selection for _, is_key, selection in self.repeats if is_key)
        again = Counter(channel_id for channel_id, is_key, _ in self.repeats if not is_key)
        assert all(count <= 3 for count in by_key.values())
        assert all(count <= self.same for count in again.values())
        assert sum(a != b for a, b in itertools.pairwise(ids)) <= self.switches
        assert [number for *_, number in self.sent] == list(range(1, len(ids) + 1))
        assert len(self.loop.failures) == sum(map(len, self.failed_at.values()))


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def test_the_client_is_told_the_last_failure_with_an_answer():
    answered, late = failure(C.RATE_LIMIT, 429), failure(C.SERVER, 503)
    unanswered = failure(C.TRANSPORT, None)

    assert telling_failure([answered, late]) is late
    assert telling_failure([answered, unanswered]) is answered
    assert telling_failure([unanswered, answered, unanswered, unanswered]) is answered
    assert telling_failure([unanswered]) is None
    assert telling_failure([]) is None


@given(happened=st.lists(failures))
def test_what_the_client_is_told_has_nothing_answered_after_it(happened):
    told = telling_failure(happened)

    answered = [f for f in happened if f.status is not None]
    assert told is (answered[-1] if answered else None)
