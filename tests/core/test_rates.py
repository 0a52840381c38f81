"""The rules of rate limits, against a list of all that was ever granted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.rates import (
    SLOT_WAIT_MS,
    WINDOW_MS,
    Granted,
    Limit,
    Meter,
    Rates,
    Refused,
    Renew,
    Take,
    ended,
    undone,
)
from channels_app.core.types import RateLimits

LEASE_MS = 45_000
START_MS = 1_700_000_000_250


def meter(name: str = "token:1", *, cost: int = 0, **limits: int) -> Meter:
    return Meter(name=name, limits=RateLimits(**limits), cost=cost)


class Counted:
    """A model and its clock."""

    def __init__(self) -> None:
        self.rates = Rates(lease_ms=LEASE_MS)
        self.now_ms = START_MS
        self.count = 0

    def take(self, *meters: Meter) -> tuple[Take, Granted | Refused]:
        self.count += 1
        take = Take(hold_id=str(self.count), meters=meters)
        return take, self.rates.take(take, now_ms=self.now_ms)

    def granted(self, *meters: Meter) -> tuple[Take, Granted]:
        take, answer = self.take(*meters)
        assert isinstance(answer, Granted), answer
        return take, answer

    def refused(self, *meters: Meter) -> Refused:
        answer = self.take(*meters)[1]
        assert isinstance(answer, Refused), answer
        return answer


def test_requests_beyond_the_limit_wait_for_the_first_to_leave_the_window() -> None:
    counted, limited = Counted(), meter(rpm=2)
    counted.granted(limited)
    counted.now_ms += 20_000
    counted.granted(limited)
    counted.now_ms += 10_000

    refused = counted.refused(limited)

    assert (refused.meter, refused.limit, refused.wait_s) == ("token:1", Limit.RPM, 30.0)
    counted.now_ms += refused.wait_ms - 1
    counted.refused(limited)
    counted.now_ms += 1
    counted.granted(limited)
    counted.refused(limited)


def test_rooms_say_what_is_left_and_when_more_comes() -> None:
    counted, limited = Counted(), meter(rpm=5, tpm=1000, concurrency=3, cost=300)
    counted.granted(limited)
    counted.now_ms += 15_000

    (room,) = counted.granted(limited)[1].rooms

    assert (room.requests, room.tokens, room.slots, room.reset_ms) == (3, 400, 1, 45_000)


def test_limits_that_are_not_set_leave_no_room_to_tell() -> None:
    (room,) = Counted().granted(meter(concurrency=3))[1].rooms

    assert (room.requests, room.tokens, room.slots, room.reset_ms) == (None, None, 2, 0)


def test_a_refused_claim_consumes_nothing_anywhere() -> None:
    counted = Counted()
    token, channel = meter(rpm=9, tpm=99, concurrency=9, cost=9), meter("channel:1", rpm=1)
    counted.granted(token, channel)

    for _ in range(20):
        counted.refused(token, channel)

    (room,) = counted.granted(token)[1].rooms
    assert (room.requests, room.tokens, room.slots) == (7, 81, 7)


def test_the_limit_that_holds_longest_is_named() -> None:
    counted = Counted()
    slots, requests = meter("key:1", concurrency=1), meter("channel:1", rpm=1)
    counted.granted(slots)
    assert counted.refused(slots, requests).wait_ms == SLOT_WAIT_MS
    counted.granted(requests)

    refused = counted.refused(slots, requests)

    assert (refused.meter, refused.limit, refused.wait_ms) == ("channel:1", Limit.RPM, WINDOW_MS)


def test_an_estimate_beyond_the_limit_passes_alone() -> None:
    counted, huge, small = Counted(), meter(tpm=100, cost=5_000), meter(tpm=100, cost=1)

    take, granted = counted.granted(huge)

    assert granted.rooms[0].tokens == 0
    assert counted.refused(small).limit == Limit.TPM
    assert counted.refused(huge).wait_ms == WINDOW_MS
    counted.rates.end(ended(take, at_ms=granted.at_ms, tokens_used=20))
    assert counted.granted(small)[1].rooms[0].tokens == 79


def test_used_tokens_replace_the_estimate_where_it_was_reserved() -> None:
    counted, limited = Counted(), meter(tpm=1000, cost=500)
    first, granted = counted.granted(limited)
    counted.now_ms += 50_000
    counted.granted(limited)

    counted.rates.end(ended(first, at_ms=granted.at_ms, tokens_used=2_000))

    assert counted.refused(limited).wait_ms == 10_000
    counted.now_ms += 10_000
    counted.granted(limited)


def test_no_number_of_tokens_keeps_the_estimate() -> None:
    counted, limited = Counted(), meter(tpm=1000, cost=600)
    take, granted = counted.granted(limited)

    counted.rates.end(ended(take, at_ms=granted.at_ms, tokens_used=None))

    assert counted.refused(limited).limit == Limit.TPM


def test_zero_tokens_give_the_estimate_back_but_not_the_request() -> None:
    counted, limited = Counted(), meter(rpm=5, tpm=1000, cost=600)
    take, granted = counted.granted(limited)

    counted.rates.end(ended(take, at_ms=granted.at_ms, tokens_used=0))

    (room,) = counted.granted(limited)[1].rooms
    assert (room.requests, room.tokens) == (3, 400)


def test_an_undone_claim_was_never_there() -> None:
    counted, limited = Counted(), meter(rpm=1, tpm=10, concurrency=1, cost=10)
    take, granted = counted.granted(limited)
    counted.now_ms += 30_000

    counted.rates.end(undone(take, at_ms=granted.at_ms))

    (room,) = counted.granted(limited)[1].rooms
    assert (room.requests, room.tokens, room.slots, room.reset_ms) == (0, 0, 0, WINDOW_MS)


def test_an_end_after_the_window_changes_no_later_count() -> None:
    counted, limited = Counted(), meter(rpm=2, tpm=100, cost=40)
    take, granted = counted.granted(limited)
    counted.now_ms += WINDOW_MS
    counted.granted(limited)

    counted.rates.end(ended(take, at_ms=granted.at_ms, tokens_used=90))

    assert counted.granted(limited)[1].rooms[0].tokens == 20


def test_a_slot_is_free_at_the_end_or_when_nobody_renews_it() -> None:
    counted, limited = Counted(), meter(concurrency=1)
    take, granted = counted.granted(limited)
    refused = counted.refused(limited)
    assert (refused.limit, refused.wait_ms) == (Limit.CONCURRENCY, SLOT_WAIT_MS)

    counted.rates.end(ended(take, at_ms=granted.at_ms, tokens_used=None))
    counted.granted(limited)
    counted.now_ms += LEASE_MS - 1
    counted.refused(limited)
    counted.now_ms += 1
    counted.granted(limited)


def test_a_renewed_slot_stays_taken() -> None:
    counted, limited = Counted(), meter(concurrency=1)
    take, _ = counted.granted(limited)
    for _ in range(5):
        counted.now_ms += LEASE_MS - 1
        counted.rates.renew(Renew(leases=((take.hold_id, "token:1"),)), now_ms=counted.now_ms)

        counted.refused(limited)


def test_a_clock_set_far_back_closes_no_meter() -> None:
    counted, limited = Counted(), meter(rpm=1)
    counted.granted(limited)

    counted.now_ms -= 3_600_000

    counted.granted(limited)


def test_a_clock_set_back_a_little_still_counts_what_was_there() -> None:
    counted, limited = Counted(), meter(rpm=2)
    counted.granted(limited)
    counted.now_ms -= 5_000

    (room,) = counted.granted(limited)[1].rooms

    assert room.requests == 0
    assert counted.refused(limited).wait_ms == WINDOW_MS + 5_000


@given(
    steps=st.lists(st.tuples(st.integers(0, 25_000), st.integers(0, 120)), min_size=1, max_size=60),
    rpm=st.integers(1, 6),
    tpm=st.integers(1, 300),
)
def test_no_minute_ever_holds_more_than_its_limits(
    steps: list[tuple[int, int]], rpm: int, tpm: int
) -> None:
    """Whatever comes whenever; and who is refused passes after the wait, not before."""
    counted = Counted()
    granted: list[tuple[int, int]] = []
    for pause_ms, cost in steps:
        counted.now_ms += pause_ms
        limited = meter(rpm=rpm, tpm=tpm, cost=cost)
        answer = counted.take(limited)[1]
        if isinstance(answer, Refused):
            assert 0 < answer.wait_ms <= WINDOW_MS
            counted.now_ms += answer.wait_ms - 1
            counted.refused(limited)
            counted.now_ms += 1
            counted.granted(limited)
        granted.append((counted.now_ms, limited.reserved))

        within = [tokens for at_ms, tokens in granted if counted.now_ms - at_ms < WINDOW_MS]
        assert len(within) <= rpm
        assert sum(within) <= tpm
