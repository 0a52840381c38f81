"""The time limits of an attempt: a channel's own, else the options'."""

from __future__ import annotations

from dataclasses import dataclass

from channels_app.core.types import ChannelView
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


def limits_of(channel: ChannelView, options: Options) -> Limits:
    """Return the limits in force for attempts on `channel`."""
    own = channel.limits

    def pick(mine: float | None, default: float) -> float:
        return default if mine is None else mine

    return Limits(
        connect=pick(own.connect, options.connect_timeout),
        first_byte=pick(own.first_byte, options.first_byte_timeout),
        first_token=pick(own.first_token, options.first_token_timeout),
        idle=pick(own.idle, options.idle_timeout),
        response=pick(own.response, options.response_timeout),
        total=pick(own.total, options.attempt_timeout),
    )
