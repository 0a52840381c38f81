"""The states of a billing session, as a table: each session ends once, whatever is repeated."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a session is. What is reserved stays so until it is settled, refunded or reaped."""

    RESERVED = "reserved"
    SETTLED = "settled"
    REFUND_DUE = "refund_due"
    REFUNDED = "refunded"
    REAPED = "reaped"


class Event(StrEnum):
    """What can happen to a session."""

    RAISE = "raise"
    SETTLE = "settle"
    FAIL = "fail"
    REFUND = "refund"
    REAP = "reap"


# A pair that is not here changes nothing: it came late, or twice.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.RESERVED, Event.RAISE): State.RESERVED,
    (State.RESERVED, Event.SETTLE): State.SETTLED,
    (State.RESERVED, Event.FAIL): State.REFUND_DUE,
    (State.RESERVED, Event.REAP): State.REAPED,
    (State.REFUND_DUE, Event.REFUND): State.REFUNDED,
    (State.REAPED, Event.SETTLE): State.SETTLED,
}

# States in which the wallet still holds what the session has reserved.
HOLDING = frozenset({State.RESERVED, State.REFUND_DUE})


def after(state: State, event: Event) -> State | None:
    """Return the state that `event` leads to, or None if it changes nothing."""
    return TRANSITIONS.get((state, event))
