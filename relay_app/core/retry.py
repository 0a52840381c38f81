"""Decide what follows a failed attempt. Pure: no clock, no dice, no I/O.

The decision is a table: the first row whose condition holds decides (spec 01
section 5; row numbers are those of the spec).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from channels_app.core.status_ranges import Ranges, in_ranges
from channels_app.core.types import Failure, FailureClass

# Waits before a channel that failed is asked again (spec 01 section 6).
PAUSE_S = 0.3
BASE_S = 0.4
CAP_S = 4.0

# Answers of a proxy in front of the upstream, which may be working still.
GATEWAY_TIMEOUTS = (504, 524)

ACCOUNT_FAULTS = {FailureClass.QUOTA, FailureClass.AUTH}
# Faults that the same channel may get over in a moment, and faults of one of its keys.
SAME_CHANNEL_CLASSES = {FailureClass.RATE_LIMIT, FailureClass.SERVER, FailureClass.TRANSPORT}
NEXT_KEY_CLASSES = {FailureClass.RATE_LIMIT, *ACCOUNT_FAULTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that the retry decision depends on."""

    failure: Failure | None
    attempts_left: int
    retry_statuses: Ranges
    is_client_gone: bool = False
    is_answer_begun: bool = False
    has_specific_channel: bool = False
    is_bound_by_affinity: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether another attempt may follow, and the rule that said so."""

    is_retry: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    reason: str
    holds: Callable[[Situation, Failure], bool]
    is_retry: bool


def _status(failure: Failure) -> int | None:
    return failure.seen_status if failure.seen_status is not None else failure.status


def _is_success(_: Situation, failure: Failure) -> bool:
    status = _status(failure)
    is_empty = failure.failure_class is FailureClass.EMPTY_RESPONSE
    return status is not None and 200 <= status <= 299 and not is_empty


def _is_given_up_by_gateway(_: Situation, failure: Failure) -> bool:
    return _status(failure) in GATEWAY_TIMEOUTS


def _is_unanswered(_: Situation, failure: Failure) -> bool:
    status = _status(failure)
    return status is None or status < 100 or status > 599


def _is_retryable_status(situation: Situation, failure: Failure) -> bool:
    status = _status(failure)
    if failure.failure_class is FailureClass.EMPTY_RESPONSE:
        status = 502  # an empty answer counts as one (spec 02 section 1)
    return status is not None and in_ranges(situation.retry_statuses, status)


def _is_never_cured(_: Situation, failure: Failure) -> bool:
    return failure.skip_retry or failure.failure_class is FailureClass.CONTENT_FILTER


RULES: tuple[Rule, ...] = (
    Rule("client gone", lambda s, f: s.is_client_gone, False),  # row 2
    Rule("answer begun", lambda s, f: s.is_answer_begun, False),  # row 2
    Rule("specific channel", lambda s, f: s.has_specific_channel, False),  # row 3
    Rule("affinity", lambda s, f: s.is_bound_by_affinity, False),  # row 4
    # Row 5 never exceeds the budget, so the budget is looked at with it.
    Rule("channel error", lambda s, f: f.is_channel_error and s.attempts_left > 0, True),
    Rule("not curable", _is_never_cured, False),  # row 6
    Rule("no attempts left", lambda s, f: s.attempts_left <= 0, False),  # row 7
    Rule("status 2xx", _is_success, False),  # row 8
    Rule("no answer", _is_unanswered, True),  # row 9
    Rule("status 504 or 524", _is_given_up_by_gateway, False),  # row 10
    Rule("retryable status", _is_retryable_status, True),  # row 11
    Rule("fault of the account", lambda s, f: f.failure_class in ACCOUNT_FAULTS, True),  # row 12
)


def decide(situation: Situation) -> Decision:
    """Return whether the request may be sent again, and why."""
    failure = situation.failure
    if failure is None:  # row 1
        return Decision(is_retry=False, reason="answered")
    for rule in RULES:
        if rule.holds(situation, failure):
            return Decision(is_retry=rule.is_retry, reason=rule.reason)
    return Decision(is_retry=False, reason="status not retryable")  # row 13


def wait_before_same_channel_s(
    *, failures: int, retry_after_s: float | None, longest_hint_s: float, roll: float
) -> float | None:
    """Return the seconds before a channel that failed `failures` times is asked again.

    A published Retry-After is waited out as it is; None when it exceeds
    `longest_hint_s`: the channel is then not asked again in this request. Without one,
    0.3 s plus full-jitter backoff: `roll` (0 <= roll < 1) scales 0.4 s doubled per
    failure, held at 4 s.

    Source: spec 01 section 6; AWS Architecture Blog, "Exponential Backoff And Jitter".
    """
    if retry_after_s is not None and retry_after_s > 0:
        return retry_after_s if retry_after_s <= longest_hint_s else None
    doublings = min(max(failures - 1, 0), 10)
    return PAUSE_S + roll * min(CAP_S, BASE_S * 2.0**doublings)


def telling_failure(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that the client is told: the last one with an HTTP answer.

    None when no attempt got an answer (spec 01 section 8).
    """
    return next((f for f in reversed(failures) if f.is_answered), None)
