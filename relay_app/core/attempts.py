"""The attempt loop without its I/O: which channel next, after what wait, until when.

The pipeline drives it: `next_step` says what to send, `failed` takes what came of it,
`refused` that the channel had no room, `not_covered` that nobody pays for it. The loop owns
every count of a request, so that no mix of failures can exceed the budget. No clock and no
dice in it: times come in as `now_s`, chance as rolls.
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
    NEXT_KEY_CLASSES,
    SAME_CHANNEL_CLASSES,
    Decision,
    Situation,
    decide,
    wait_before_same_channel_s,
)
from relay_app.core.walk import Walk

# A channel that failed so is not asked again in this request: what held it up, or how it is
# set up, will not have changed by then.
NOT_AGAIN = {FailureClass.TIMEOUT, FailureClass.CHANNEL_CONFIG}
# Sends of one selection with further keys of its channel (spec 01 section 6).
MAX_NEXT_KEYS = 3

NO_CHANNEL = "no channel left"
NEXT_KEY = Decision(is_retry=True, reason="next key")
SAME_CHANNEL = Decision(is_retry=True, reason="same channel")
NEXT_MODEL = Decision(is_retry=True, reason="model fallback")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRoute:
    """The channels that one group has for a model."""

    group: str
    route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """Where a request for `model` may go: its groups in order, at least one."""

    model: str
    groups: tuple[GroupRoute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolls:
    """Chance for one step, each in [0, 1): for the channel, its key, and the wait."""

    channel: float
    key: float
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Ask this channel of `group` for `model`, with this key, after waiting `wait_s`.

    `key` is None when the channel has no enabled key. `is_selection`: the channel was
    chosen for this send; else it is asked again, which costs no selection. `is_repeat`: the
    request was sent to it before.
    """

    number: int
    channel: ChannelView
    key: KeyView | None
    wait_s: float
    group: str = ""
    model: str = ""
    is_selection: bool = True
    is_repeat: bool = False


@dataclass(slots=True, kw_only=True)
class AttemptLoop:
    """The state of one request's attempts.

    `models`: the model asked for and those to fall back to. `unavailable` are ids of
    channels that must not be used at all: the place where health takes part.
    `has_specific_channel`: the token names the one channel there is.
    """

    models: Sequence[ModelRoute]
    options: Options
    started_s: float
    unavailable: Collection[int] = ()
    has_specific_channel: bool = False
    failures: list[Failure] = field(default_factory=list)
    stop_reason: str = ""
    _steps: list[Step] = field(default_factory=list)
    _walk: Walk = field(init=False)
    _model: int = 0
    _follow: Decision | None = None
    _next_keys: int = 0
    _same_channel: dict[int, int] = field(default_factory=dict)
    _failures_by_channel: dict[int, list[tuple[Failure, float]]] = field(default_factory=dict)
    _failed_keys: set[int] = field(default_factory=set)
    # What had no room, and when it may have again.
    _full_channels: dict[int, float] = field(default_factory=dict)
    _full_keys: dict[int, float] = field(default_factory=dict)
    # What the client can't pay for: model, group, channel.
    _uncovered: set[tuple[str, str, int]] = field(default_factory=set)
    _may_go_on: bool = True

    def __post_init__(self) -> None:
        self._walk = self._walk_of(retry_times=self.options.retry_times)

    @property
    def has_next_model(self) -> bool:
        """Return whether there is a further model to fall back to."""
        return self._model + 1 < len(self.models)

    def next_step(self, *, now_s: float, rolls: Rolls, turn: int) -> Step | None:
        """Return the next send, or None when there is none: the request has ended, see
        `stop_reason`, or all that is left is full, see `room_at_s`.

        `turn` is the caller's counter for channels whose keys are used in turn.
        """
        if not self._may_go_on:
            return None
        step, reason = self._choose(now_s=now_s, rolls=rolls, turn=turn)
        if step is not None:
            self._steps.append(step)
            return step
        if self.room_at_s is None or reason != NO_CHANNEL:
            self._stop(reason)
        return None

    @property
    def room_at_s(self) -> float | None:
        """Return when the first of those that were full may have room; None: none was."""
        if not self._may_go_on:
            return None
        return min([*self._full_channels.values(), *self._full_keys.values()], default=None)

    def refused(self, *, is_key: bool, room_at_s: float) -> None:
        """Record that the last step was not sent: its channel, or its key, is full.

        Costs nothing; another is chosen until `forget_full`.
        """
        step = self._take_back()
        if is_key and step.key is not None:
            self._full_keys[step.key.id] = room_at_s
        else:
            self._full_channels[step.channel.id] = room_at_s
        if step.channel.keys and all(key.id in self._full_keys for key in step.channel.keys):
            self._full_channels[step.channel.id] = room_at_s

    def not_covered(self) -> None:
        """Record that the last step was not sent: nobody pays for its model in its group.

        Costs nothing; another is chosen, but no other model unless an upstream was asked: a
        fallback is no way around a price.
        """
        step = self._take_back()
        self._uncovered.add((step.model, step.group, step.channel.id))

    def _take_back(self) -> Step:
        step = self._steps.pop()
        self._follow = None
        if step.is_selection:
            self._walk.take_back()
        return step

    def forget_full(self) -> None:
        """Let those that were full be chosen again; from the first group if none was asked."""
        self._full_channels.clear()
        self._full_keys.clear()
        if not self._steps:
            self._model = 0
            self._walk = self._walk_of(retry_times=self.options.retry_times)

    def failed(self, failure: Failure, *, now_s: float) -> Decision:
        """Record that the last step failed; return whether another may follow."""
        step = self._steps[-1]
        self.failures.append(failure)
        self._failures_by_channel.setdefault(step.channel.id, []).append((failure, now_s))
        if step.key is not None:
            self._failed_keys.add(step.key.id)
        decision = self._follow_up(step, failure) or self._decide(
            failure, attempts_left=int(self._walk.has_left)
        )
        if not decision.is_retry:
            self._stop(decision.reason)
        return decision

    # -- what follows a failure ----------------------------------------------------------

    def _follow_up(self, step: Step, failure: Failure) -> Decision | None:
        """Return what goes on without a selection from the budget, if anything does."""
        if not self._decide(failure, attempts_left=1).is_retry:
            return None
        if self._may_use_next_key(step, failure):
            self._next_keys += 1
            self._follow = NEXT_KEY
        elif self._may_ask_same_channel(step, failure):
            asked = self._same_channel.get(step.channel.id, 0)
            self._same_channel[step.channel.id] = asked + 1
            self._follow = SAME_CHANNEL
        elif self.has_next_model and self._is_model_spent():
            self._take_next_model()
            return NEXT_MODEL
        return self._follow

    def _decide(self, failure: Failure, *, attempts_left: int) -> Decision:
        return decide(
            Situation(
                failure=failure,
                attempts_left=attempts_left,
                retry_statuses=self.options.automatic_retry_status_codes,
                has_specific_channel=self.has_specific_channel,
            )
        )

    def _may_use_next_key(self, step: Step, failure: Failure) -> bool:
        if failure.failure_class not in NEXT_KEY_CLASSES or self._next_keys >= MAX_NEXT_KEYS:
            return False
        spent = self._failed_keys.union(self._full_keys)
        has_other = any(key.id not in spent for key in step.channel.keys)
        return has_other and step.channel.id not in self.unavailable

    def _may_ask_same_channel(self, step: Step, failure: Failure) -> bool:
        asked = self._same_channel.get(step.channel.id, 0)
        if failure.failure_class not in SAME_CHANNEL_CLASSES:
            return False
        if asked >= self.options.same_channel_retries or step.channel.id in self.unavailable:
            return False
        pause_s = self._pause_s(self._failures_by_channel[step.channel.id], roll=0.0)
        return pause_s is not None

    def _is_model_spent(self) -> bool:
        """Return whether every channel for the model failed or must not be used."""
        model = self.models[self._model]
        return all(
            channel.id in self._failures_by_channel
            or channel.id in self.unavailable
            or (model.model, group.group, channel.id) in self._uncovered
            for group in model.groups
            for tier in group.route.tiers
            for channel in tier
        )

    def _take_next_model(self) -> None:
        """Go on with the next model: within the same budget, but for one selection at least."""
        made = self._walk.made
        self._model += 1
        self._walk = self._walk_of(retry_times=max(0, self._walk.retry_times - made))

    def _stop(self, reason: str) -> None:
        self._may_go_on = False
        self.stop_reason = self.stop_reason or reason

    # -- choosing ------------------------------------------------------------------------

    def _choose(self, *, now_s: float, rolls: Rolls, turn: int) -> tuple[Step | None, str]:
        """Return the next step, or why there is none."""
        channel, reason = self._next_channel(rolls)
        if channel is None:
            return None, reason
        is_selection = self._follow is None
        wait_s = 0.0
        if self._follow is not NEXT_KEY:
            wait_s = self._wait_s(channel, now_s=now_s, roll=rolls.wait)
        if self._is_too_late(now_s + wait_s):
            return None, "total time limit"
        key = pick_key(
            channel,
            failed=self._failed_keys,
            turn=turn,
            roll=rolls.key,
            full=self._full_keys,
        )
        if is_selection:
            self._walk.count()
            self._next_keys = 0
        self._follow = None
        model = self.models[self._model]
        step = Step(
            number=len(self._steps) + 1,
            channel=channel,
            key=key,
            wait_s=wait_s,
            group=model.groups[self._walk.group].group,
            model=model.model,
            is_selection=is_selection,
            is_repeat=any(sent.channel.id == channel.id for sent in self._steps),
        )
        return step, ""

    def _next_channel(self, rolls: Rolls) -> tuple[ChannelView | None, str]:
        """Return the channel to ask, passing over groups and models that have none."""
        if self._follow is not None:
            return self._steps[-1].channel, ""
        while True:
            channel, reason = self._in_this_model(rolls)
            if channel is not None or not self.has_next_model or reason == "no attempts left":
                return channel, reason
            if self._uncovered and not self.failures:
                return None, reason
            self._take_next_model()

    def _in_this_model(self, rolls: Rolls) -> tuple[ChannelView | None, str]:
        walk, barred = self._walk, self._barred(roll=rolls.wait)
        model = self.models[self._model]
        while True:
            if not walk.has_left:
                return None, "no attempts left"
            channel = None
            if walk.may_stay:
                group = model.groups[walk.group]
                channel = pick_channel(
                    group.route,
                    retry=walk.made_here,
                    strategy=self.options.retry_strategy,
                    unavailable={*barred, *self._uncovered_in(model.model, group.group)},
                    failed=self._failures_by_channel,
                    roll=rolls.channel,
                )
            is_used_up = channel is None or channel.id in self._failures_by_channel
            if is_used_up and walk.has_next_group:
                walk.leave_group()
            elif channel is None:
                no_switch = self._has_no_switch_left()
                return None, "no switches left" if no_switch else NO_CHANNEL
            else:
                return channel, ""

    def _walk_of(self, *, retry_times: int) -> Walk:
        is_by_tier = self.options.retry_strategy == "tier_per_attempt"
        return Walk(
            extents=[
                len(group.route.tiers) if is_by_tier else sum(map(len, group.route.tiers))
                for group in self.models[self._model].groups
            ],
            retry_times=retry_times,
        )

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

    def _barred(self, *, roll: float) -> Collection[int]:
        """Return the channels that the next step must not use."""
        if not (self._steps or self._full_channels):
            return self.unavailable
        barred = {*self.unavailable, *self._spent(roll=roll), *self._full_channels}
        if self._has_no_switch_left():
            last = self._steps[-1].channel.id
            model = self.models[self._model]
            barred |= {c.id for g in model.groups for t in g.route.tiers for c in t if c.id != last}
        return barred

    def _uncovered_in(self, model: str, group: str) -> set[int]:
        return {c for m, g, c in self._uncovered if (m, g) == (model, group)}

    def _has_no_switch_left(self) -> bool:
        ids = [step.channel.id for step in self._steps]
        switches = sum(a != b for a, b in pairwise(ids))
        return bool(ids) and switches >= self.options.max_switches_per_request

    def _is_too_late(self, start_s: float) -> bool:
        limit_s = self.options.total_timeout
        return limit_s > 0 and bool(self._steps) and start_s > self.started_s + limit_s
