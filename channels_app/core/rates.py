"""Limits of requests and tokens a minute and of requests at once: the rules, and a count of them.

`Rates` is what one process counts by itself when the state store is away, and what the store's
scripts (`channels_app/lua/`) are tested against: the same calls give the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from channels_app.core.types import RateLimits

WINDOW_MS = 60_000

# What a client is told when all slots are taken: nobody knows when one becomes free.
SLOT_WAIT_MS = 1_000


class Limit(StrEnum):
    """Which of a meter's limits was reached."""

    RPM = "rpm"
    TPM = "tpm"
    CONCURRENCY = "concurrency"


LIMITS = tuple(Limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """One counted thing (`token:12`, `channel:5`, `key:9`), its limits, and the tokens that a
    request is thought to cost. A claim is a sequence of meters of different names."""

    name: str
    limits: RateLimits
    cost: int = 0

    @property
    def reserved(self) -> int:
        """Return the tokens that a claim reserves.

        An estimate beyond the limit itself reserves the whole minute, and so passes alone:
        it is only an estimate, and refusing it for ever would help nobody.
        """
        return min(max(0, self.cost), self.limits.tpm)

    @property
    def has_window(self) -> bool:
        """Return whether requests or tokens a minute are limited."""
        return bool(self.limits.rpm or self.limits.tpm)


Claim: TypeAlias = Sequence[Meter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is left in a meter; None is no limit.

    `reset_ms` is how long until the oldest of what counts leaves the window.
    """

    requests: int | None = None
    tokens: int | None = None
    slots: int | None = None
    reset_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """All meters of a claim took it at `at_ms` of the counting clock; `rooms` are what is left
    after it, in the order of the meters."""

    at_ms: int
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No meter took anything. Named is the limit that holds longest: the claim could pass in
    `wait_ms` if nothing else came."""

    meter: str
    limit: Limit
    wait_ms: int
    rooms: tuple[Room, ...]

    @property
    def wait_s(self) -> float:
        """Return `wait_ms` in seconds."""
        return self.wait_ms / 1000


Answer: TypeAlias = Granted | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A claim that is to be held as `hold_id`."""

    hold_id: str
    meters: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a hold taken at `at_ms`: frees its slots and changes what it counted by
    `requests`, and by `tokens` in each meter."""

    hold_id: str
    meters: Claim
    at_ms: int = 0
    requests: int = 0
    tokens: tuple[int, ...] = ()

    @property
    def token_changes(self) -> tuple[int, ...]:
        """Return the change of tokens in each meter."""
        return self.tokens or (0,) * len(self.meters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Leases, as pairs of hold id and meter name, whose holders live."""

    leases: tuple[tuple[str, str], ...]


def ended(taken: Take, *, at_ms: int, tokens_used: int | None) -> End:
    """Return the end of a hold that used so many tokens; None keeps the estimate."""
    if tokens_used is None:
        return End(hold_id=taken.hold_id, meters=taken.meters, at_ms=at_ms)
    changes = tuple(
        max(0, tokens_used) - meter.reserved if meter.limits.tpm else 0 for meter in taken.meters
    )
    return End(hold_id=taken.hold_id, meters=taken.meters, at_ms=at_ms, tokens=changes)


def undone(taken: Take, *, at_ms: int) -> End:
    """Return the end of a hold that gives back all, as if it had never been taken."""
    changes = tuple(-meter.reserved for meter in taken.meters)
    return End(hold_id=taken.hold_id, meters=taken.meters, at_ms=at_ms, requests=-1, tokens=changes)


@dataclass(slots=True)
class _Bucket:
    """What came within one second. It counts until its last entry leaves the window, so that
    no window ever holds more than its limit and no wait is longer than the window."""

    second: int
    last_ms: int
    requests: int = 0
    tokens: int = 0

    def of(self, count: Literal["requests", "tokens"]) -> int:
        return self.requests if count == "requests" else self.tokens


@dataclass(slots=True)
class _State:
    """One meter: buckets, oldest first, and the ends of leases by hold id."""

    buckets: list[_Bucket] = field(default_factory=list)
    leases: dict[str, int] = field(default_factory=dict)

    def at(self, now_ms: int) -> _State:
        """Return a copy without what is past."""
        return _State(
            # Nor what lies far ahead: a clock that was set back must not close a meter for long.
            [bucket for bucket in self.buckets if abs(now_ms - bucket.last_ms) < WINDOW_MS],
            {hold_id: end_ms for hold_id, end_ms in self.leases.items() if end_ms > now_ms},
        )

    def wait_ms(
        self, count: Literal["requests", "tokens"], *, need: int, limit: int, now_ms: int
    ) -> int:
        excess = sum(bucket.of(count) for bucket in self.buckets) + need - limit
        if limit == 0 or excess <= 0:
            return 0
        for bucket in self.buckets:
            excess -= bucket.of(count)
            if excess <= 0:
                return bucket.last_ms + WINDOW_MS - now_ms
        return WINDOW_MS

    def add(self, *, tokens: int, now_ms: int) -> None:
        second = now_ms // 1000
        if not self.buckets or self.buckets[-1].second < second:
            self.buckets.append(_Bucket(second, now_ms))
        newest = self.buckets[-1]
        newest.last_ms = max(newest.last_ms, now_ms)
        newest.requests += 1
        newest.tokens += tokens

    def change(self, *, second: int, requests: int, tokens: int) -> None:
        for bucket in self.buckets:
            if bucket.second == second:
                bucket.requests = max(0, bucket.requests + requests)
                bucket.tokens = max(0, bucket.tokens + tokens)
        self.buckets = [b for b in self.buckets if b.requests or b.tokens]

    def room(self, limits: RateLimits, now_ms: int) -> Room:
        return Room(
            requests=_left(limits.rpm, sum(bucket.requests for bucket in self.buckets)),
            tokens=_left(limits.tpm, sum(bucket.tokens for bucket in self.buckets)),
            slots=_left(limits.concurrency, len(self.leases)),
            reset_ms=self.buckets[0].last_ms + WINDOW_MS - now_ms if self.buckets else 0,
        )


class Rates:
    """Counts meters in memory. `lease_ms` is how long a hold lives that nobody renews."""

    def __init__(self, *, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._states: dict[str, _State] = {}

    def take(self, take: Take, *, now_ms: int) -> Answer:
        """Take from every meter of the claim, or from none, and return which."""
        states = [self._states.get(meter.name, _State()).at(now_ms) for meter in take.meters]
        refused: tuple[int, str, Limit] | None = None
        for meter, state in zip(take.meters, states, strict=True):
            for limit, wait_ms in zip(LIMITS, _waits(meter, state, now_ms), strict=True):
                if wait_ms > (refused[0] if refused else 0):
                    refused = (wait_ms, meter.name, limit)
        if refused is None:
            for meter, state in zip(take.meters, states, strict=True):
                self._states[meter.name] = state
                if meter.has_window:
                    state.add(tokens=meter.reserved, now_ms=now_ms)
                if meter.limits.concurrency:
                    state.leases[take.hold_id] = now_ms + self._lease_ms
        rooms = tuple(
            state.room(meter.limits, now_ms)
            for meter, state in zip(take.meters, states, strict=True)
        )
        if refused is None:
            return Granted(at_ms=now_ms, rooms=rooms)
        wait_ms, name, limit = refused
        return Refused(meter=name, limit=limit, wait_ms=wait_ms, rooms=rooms)

    def end(self, end: End) -> None:
        """Free the slots of a hold and correct what it counted."""
        for meter, tokens in zip(end.meters, end.token_changes, strict=True):
            state = self._states.get(meter.name)
            if state is None:
                continue
            state.leases.pop(end.hold_id, None)
            state.change(second=end.at_ms // 1000, requests=end.requests, tokens=tokens)

    def renew(self, renew: Renew, *, now_ms: int) -> None:
        """Make leases run anew from now; one that is gone is entered again."""
        for hold_id, name in renew.leases:
            state = self._states.setdefault(name, _State())
            state.leases[hold_id] = now_ms + self._lease_ms


def _waits(meter: Meter, state: _State, now_ms: int) -> tuple[int, int, int]:
    """Return the milliseconds until each of `LIMITS` lets the claim pass; 0 is now."""
    limits = meter.limits
    is_full = bool(limits.concurrency) and len(state.leases) >= limits.concurrency
    return (
        state.wait_ms("requests", need=1, limit=limits.rpm, now_ms=now_ms),
        state.wait_ms("tokens", need=meter.reserved, limit=limits.tpm, now_ms=now_ms),
        SLOT_WAIT_MS if is_full else 0,
    )


def _left(limit: int, used: int) -> int | None:
    return max(0, limit - used) if limit else None
