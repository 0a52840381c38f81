"""Which channel and key an attempt goes to (spec 01 section 4)."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.selection import draw, effective_weights, pick_channel, pick_key
from channels_app.core.types import ChannelView, KeyView, Route

DRAWS = 10_000


def channel(name, *, id=None, weight=0, keys=(), key_mode="random"):
    return ChannelView(
        id=ord(name) if id is None else id,
        name=name,
        provider="openai",
        base_url="",
        weight=weight,
        keys=tuple(KeyView(id=key, value=f"k{key}") for key in keys),
        key_mode=key_mode,
    )


def route(*tiers):
    return Route(tiers=tuple(tuple(channel(name) for name in tier) for tier in tiers))


def pick(where, *, retry=0, unavailable="", failed="", roll=0.0):
    picked = pick_channel(
        where,
        retry=retry,
        unavailable={ord(name) for name in unavailable},
        failed={ord(name) for name in failed},
        roll=roll,
    )
    return picked.name if picked else None


def reachable(where, **arguments):
    """Return the names that some roll picks."""
    return "".join(sorted({pick(where, roll=r / 20, **arguments) for r in range(20)}))


def shares(*weights):
    """Return how often each channel is drawn, as parts of 1, over many seeded draws."""
    dice = random.Random(7)
    channels = [channel("x", id=i, weight=weight) for i, weight in enumerate(weights)]
    drawn = Counter(draw(channels, roll=dice.random()).id for _ in range(DRAWS))
    return [drawn[i] / DRAWS for i in range(len(weights))]


@pytest.mark.parametrize(
    ("retry", "expected"), [(0, "AB"), (1, "C"), (2, "DE"), (3, "DE"), (4, "DE"), (20, "DE")]
)
def test_attempt_number_aims_at_its_tier(retry, expected):
    assert reachable(route("AB", "C", "DE"), retry=retry) == expected


@pytest.mark.parametrize(
    ("retry", "unavailable", "expected"),
    [
        (0, "A", "B"),
        (0, "AB", "C"),
        (0, "ABC", "DE"),
        (1, "C", "DE"),
        (1, "CDE", "AB"),
        (2, "DE", "AB"),
        (2, "DEAB", "C"),
        (9, "DEAC", "B"),
    ],
)
def test_an_unavailable_tier_gives_way_to_lower_ones_then_higher_ones(retry, unavailable, expected):
    assert reachable(route("AB", "C", "DE"), retry=retry, unavailable=set(unavailable)) == expected


def test_nothing_is_picked_when_nothing_is_available():
    assert pick(route("AB", "C"), unavailable="ABC") is None
    assert pick(Route(tiers=())) is None


@pytest.mark.parametrize(
    ("failed", "unavailable", "expected"),
    [
        ("A", "", "B"),
        ("A", "B", "A"),  # no other in this tier
        ("AB", "", "AB"),  # all failed: any again
        ("AB", "A", "B"),
    ],
)
def test_failed_channels_are_asked_again_only_if_the_tier_has_no_other(
    failed, unavailable, expected
):
    """The tier is kept: a fresh channel of a lower one does not take precedence."""
    assert reachable(route("AB", "C"), failed=failed, unavailable=unavailable) == expected


def test_a_failed_channel_of_weight_leaves_the_one_without_weight():
    tier = (channel("A", weight=70), channel("B", weight=0))

    assert pick(Route(tiers=(tier,)), failed="A", roll=0.99) == "B"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((70, 30), (0.7, 0.3)),
        ((0, 0, 0, 0), (0.25, 0.25, 0.25, 0.25)),
        ((10, 0, 30), (0.25, 0.0, 0.75)),
        ((1, 2), (1 / 3, 2 / 3)),
        ((9, 1), (0.9, 0.1)),
        ((5,), (1.0,)),
        ((0,), (1.0,)),
    ],
)
def test_shares_follow_weights(weights, expected):
    """Four standard deviations of a share over 10,000 draws are 0.02."""
    assert shares(*weights) == pytest.approx(list(expected), abs=0.02)


def test_weight_zero_beside_weighted_is_never_drawn():
    assert shares(0, 50, 0)[0] == 0
    assert shares(0, 1, 0)[2] == 0


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([], []),
        ([0], [100]),
        ([0, 0], [100, 100]),
        ([70, 30], [70, 30]),
        ([10, 10], [10, 10]),
        ([10, 9], [1000, 900]),  # integer average 9
        ([19, 1], [19, 1]),  # average 10
        ([0, 1], [0, 100]),
        ([100, 0], [100, 0]),
    ],
)
def test_effective_weights(weights, expected):
    assert effective_weights(weights) == expected


def test_the_walk_takes_the_first_channel_that_makes_the_rest_negative():
    tier = [channel("A", weight=70), channel("B", weight=30)]

    drawn = [draw(tier, roll=Fraction(n, 100)).name for n in (0, 69, 70, 99)]

    assert drawn == ["A", "A", "B", "B"]


def test_the_largest_roll_still_draws_a_channel_with_a_share():
    tier = [channel("A", weight=3), channel("B", weight=7), channel("C", weight=0)]

    assert draw(tier, roll=1.0).name == "B"


def test_drawing_from_nothing_is_an_error():
    with pytest.raises(ValueError, match="no channels"):
        draw([], roll=0.5)


weights = st.lists(st.integers(0, 200), min_size=1, max_size=6)
rolls = st.fractions(0, 1).filter(lambda roll: roll < 1)


@st.composite
def routes(draw_):
    """Return a route and sets of its ids: some unavailable, some failed."""
    tiers = draw_(st.lists(weights, max_size=4))
    ids = iter(range(100))
    made = tuple(
        tuple(channel("x", id=next(ids), weight=weight) for weight in tier) for tier in tiers
    )
    some = st.sets(st.integers(0, sum(map(len, tiers)) + 1))
    return Route(tiers=made), draw_(some), draw_(some)


@given(given_=routes(), retry=st.integers(0, 6), roll=st.floats(0, 1, exclude_max=True))
def test_something_is_picked_iff_something_is_available(given_, retry, roll):
    where, unavailable, failed = given_
    everyone = {channel.id for tier in where.tiers for channel in tier}

    picked = pick_channel(where, retry=retry, unavailable=unavailable, failed=failed, roll=roll)

    assert (picked is None) == (everyone <= unavailable)
    assert picked is None or picked.id in everyone - unavailable


@given(given_=routes(), retry=st.integers(0, 6), roll=rolls)
def test_the_same_roll_picks_the_same_channel(given_, retry, roll):
    where, unavailable, failed = given_

    picked = [
        pick_channel(where, retry=retry, unavailable=unavailable, failed=failed, roll=roll)
        for _ in range(2)
    ]

    assert picked[0] == picked[1]


@given(given_=routes(), retry=st.integers(0, 6), roll=rolls)
def test_a_failed_channel_is_picked_only_when_its_tier_has_no_fresh_one(given_, retry, roll):
    where, unavailable, failed = given_

    picked = pick_channel(where, retry=retry, unavailable=unavailable, failed=failed, roll=roll)

    if picked is not None and picked.id in failed:
        [tier] = [tier for tier in where.tiers if picked in tier]
        assert {channel.id for channel in tier} <= unavailable | failed


@given(weights=weights, factor=st.integers(1, 50), roll=rolls)
def test_scaling_all_weights_changes_nothing(weights, factor, roll):
    tier = [channel("x", id=i, weight=weight) for i, weight in enumerate(weights)]
    scaled = [channel("x", id=i, weight=weight * factor) for i, weight in enumerate(weights)]

    assert draw(tier, roll=roll).id == draw(scaled, roll=roll).id


@given(weights=weights, roll=st.floats(0, 1, exclude_max=True))
def test_nobody_without_a_share_is_drawn(weights, roll):
    tier = [channel("x", id=i, weight=weight) for i, weight in enumerate(weights)]

    drawn = draw(tier, roll=roll)

    assert drawn.weight > 0 or not any(weights)


def test_polling_takes_keys_in_turn():
    polled = channel("A", keys=(1, 2, 3), key_mode="polling")

    turns = [pick_key(polled, failed=(), turn=turn, roll=0.9).id for turn in range(7)]

    assert turns == [1, 2, 3, 1, 2, 3, 1]


def test_random_draws_keys_evenly():
    dice = random.Random(7)
    drawn = Counter(
        pick_key(channel("A", keys=(1, 2, 3, 4)), failed=(), turn=0, roll=dice.random()).id
        for _ in range(DRAWS)
    )

    assert {key: drawn[key] / DRAWS for key in (1, 2, 3, 4)} == pytest.approx(
        dict.fromkeys((1, 2, 3, 4), 0.25), abs=0.02
    )


@pytest.mark.parametrize("mode", ["random", "polling"])
def test_failed_keys_come_last(mode):
    keyed = channel("A", keys=(1, 2, 3), key_mode=mode)

    def picked(failed):
        return {pick_key(keyed, failed=failed, turn=n, roll=n / 10).id for n in range(10)}

    assert picked({1, 3}) == {2}
    assert picked({1, 2, 3}) == {1, 2, 3}


def test_a_channel_without_keys_has_none():
    assert pick_key(channel("A"), failed=(), turn=0, roll=0.0) is None


@given(
    count=st.integers(1, 50),
    roll=st.floats(0, 1, exclude_max=True),
    turn=st.integers(0, 2**40),
    mode=st.sampled_from(["random", "polling"]),
)
def test_any_roll_and_turn_gives_a_key(count, roll, turn, mode):
    keyed = channel("A", keys=range(count), key_mode=mode)

    assert pick_key(keyed, failed=(), turn=turn, roll=roll) in keyed.keys
