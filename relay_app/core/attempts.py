"""The attempt loop without its I/O: which channel next, after what wait, until when.

The pipeline drives it: `next_step` says what to send, `failed` takes what came of it.
The loop owns every count of a request, so that no mix of failures can exceed the
budget. No clock and no dice in it: times come in as `now_s`, chance as rolls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from channels_app.core.selection import pick_channel, pick_key
from channels_app.core.types import (
    ChannelView,
    Failure,
    FailureClass,
    KeyView,
    Route,
)
from channels_app.options import Options
from relay_app.core.retry import (
    Decision,
    Situation,
    decide,
    wait_before_same_channel_s,
)

# A channel that failed so is not asked again in this request: what held it up, or how it is
# set up, will not have changed by then.
NOT_AGAIN = {FailureClass.TIMEOUT, FailureClass.CHANNEL_CONFIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolls:
    """Chance for one step, each in [0, 1): for the channel, its key, and the wait."""

    channel: float
    key: float
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Send to this channel with this key after waiting `wait_s`.

    `key` is None when the channel has no enabled key.
    """

    number: int
    channel: ChannelView
    key: KeyView | None
    wait_s: float


@dataclass(slots=True, kw_only=True)
class AttemptLoop:
    """The state of one request's attempts.

    `unavailable` are ids of channels that must not be used at all: the place where
    health and limits take part.
    """

    route: Route
    options: Options
    started_s: float
    unavailable: Collection[int] = ()
    failures: list[Failure] = field(default_factory=list)
    stop_reason: str = ""
    _steps: list[Step] = field(default_factory=list)
    _failures_by_channel: dict[int, list[tuple[Failure, float]]] = field(default_factory=dict)
    _failed_keys: set[int] = field(default_factory=set)
    _may_go_on: bool = True

    @property
    def selections_left(self) -> int:
        """Return how many more selections the budget allows."""
        return self.options.retry_times + 1 - len(self._steps)

    def next_step(self, *, now_s: float, rolls: Rolls, turn: int) -> Step | None:
        """Return the next send, or None when the request has ended; see `stop_reason`.

        `turn` is the caller's counter for channels whose keys are used in turn.
        """
        if not self._may_go_on:
            return None
        step, reason = self._choose(now_s=now_s, rolls=rolls, turn=turn)
        if step is None:
            self._stop(reason)
        else:
            self._steps.append(step)
        return step

    def _choose(self, *, now_s: float, rolls: Rolls, turn: int) -> tuple[Step | None, str]:
        """Return the next step, or why there is none."""
        if self.selections_left <= 0:
            return None, "no attempts left"
        channel = pick_channel(
            self.route,
            retry=len(self._steps),
            unavailable=self._barred(roll=rolls.wait),
            failed=self._failures_by_channel,
            roll=rolls.channel,
        )
        if channel is None:
            return None, "no switches left" if self._has_no_switch_left() else "no channel left"
        wait_s = self._wait_s(channel, now_s=now_s, roll=rolls.wait)
        if self._is_too_late(now_s + wait_s):
            return None, "total time limit"
        key = pick_key(channel, failed=self._failed_keys, turn=turn, roll=rolls.key)
        step = Step(number=len(self._steps) + 1, channel=channel, key=key, wait_s=wait_s)
        return step, ""

    def failed(self, failure: Failure, *, now_s: float) -> Decision:
        """Record that the last step failed; return whether another may follow."""
        step = self._steps[-1]
        self.failures.append(failure)
        self._failures_by_channel.setdefault(step.channel.id, []).append((failure, now_s))
        if step.key is not None:
            self._failed_keys.add(step.key.id)
        decision = decide(
            Situation(
                failure=failure,
                attempts_left=self.selections_left,
                retry_statuses=self.options.automatic_retry_status_codes,
            )
        )
        if not decision.is_retry:
            self._stop(decision.reason)
        return decision

    def _stop(self, reason: str) -> None:
        self._may_go_on = False
        self.stop_reason = self.stop_reason or reason

    def _spent(self, *, roll: float) -> set[int]:
        """Return the channels that failed so that this request may not ask them again."""
        return {
            channel_id
            for channel_id, failures in self._failures_by_channel.items()
            if any(f.failure_class in NOT_AGAIN for f, _ in failures)
            or self._pause_s(failures, roll=roll) is None
        }

    def _pause_s(self, failures: Sequence[tuple[Failure, float]], *, roll: float) -> float | None:
        return wait_before_same_channel_s(
            failures=len(failures),
            retry_after_s=failures[-1][0].retry_after_s,
            longest_hint_s=self.options.retry_after_wait_max,
            roll=roll,
        )

    def _wait_s(self, channel: ChannelView, *, now_s: float, roll: float) -> float:
        """Return the wait before `channel`; time since its failure counts towards it."""
        failures = self._failures_by_channel.get(channel.id)
        if not failures:
            return 0.0
        pause_s = self._pause_s(failures, roll=roll) or 0.0
        return max(0.0, failures[-1][1] + pause_s - now_s)

    def _barred(self, *, roll: float) -> set[int]:
        """Return the channels that the next step must not use."""
        barred = {*self.unavailable, *self._spent(roll=roll)}
        if self._has_no_switch_left():
            last = self._steps[-1].channel.id
            barred |= {c.id for tier in self.route.tiers for c in tier if c.id != last}
        return barred

    def _has_no_switch_left(self) -> bool:
        ids = [step.channel.id for step in self._steps]
        switches = sum(a != b for a, b in pairwise(ids))
        return bool(ids) and switches >= self.options.max_switches_per_request

    def _is_too_late(self, start_s: float) -> bool:
        limit_s = self.options.total_timeout
        return limit_s > 0 and bool(self._steps) and start_s > self.started_s + limit_s


def telling_failure(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that the client is told: the last one with an HTTP answer.

    None when no attempt got an answer (spec 01 section 8).
    """
    return next((f for f in reversed(failures) if f.is_answered), None)
