"""The time limits of an attempt: a channel's own, else the options'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from channels_app.core.types import ChannelView, TimeLimits
from channels_app.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in seconds, 0 is no limit. All but `idle` count from sending."""

    connect: float
    first_byte: float
    first_token: float
    idle: float
    response: float
    total: float

    def earliest(self, *limits_s: float) -> float | None:
        """Return the shortest of the limits that are set, or None."""
        return min((limit for limit in limits_s if limit > 0), default=None)


def limits_of(channel: ChannelView, options: Options, model: str = "") -> Limits:
    """Return the limits in force for attempts on `channel` that ask for `model`.

    Each limit by itself: what ModelTimeouts says for the model, else the channel, else the
    option.
    """
    own = channel.limits
    of_model = _of_model(options.model_timeouts, model) if options.model_timeouts else None

    def pick(name: str, default: float) -> float:
        slow = getattr(of_model, name) if of_model else None
        mine: float | None = getattr(own, name) if slow is None else slow
        return default if mine is None else mine

    return Limits(
        connect=pick("connect", options.connect_timeout),
        first_byte=pick("first_byte", options.first_byte_timeout),
        first_token=pick("first_token", options.first_token_timeout),
        idle=pick("idle", options.idle_timeout),
        response=pick("response", options.response_timeout),
        total=pick("total", options.attempt_timeout),
    )


def _of_model(timeouts: Mapping[str, TimeLimits], model: str) -> TimeLimits | None:
    """Return the limits of the exact name, else of the longest prefix, if any."""
    if model in timeouts:
        return timeouts[model]
    fitting = (p for p in timeouts if p.endswith("*") and model.startswith(p[:-1]))
    pattern = max(fitting, key=len, default=None)
    return None if pattern is None else timeouts[pattern]
