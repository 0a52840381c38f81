"""Choose the channel of an attempt. Pure: the dice come in as `roll`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from channels_app.core.types import ChannelView, KeyView, Route

# Below this average, weights are stretched so that small ones still share finely.
SMALL_AVERAGE_WEIGHT = 10
STRETCH = 100


def pick_channel(
    route: Route,
    *,
    retry: int,
    unavailable: Collection[int],
    failed: Collection[int],
    roll: float,
    strategy: str = "tier_per_attempt",
) -> ChannelView | None:
    """Return the channel for attempt number `retry` (from 0), or None if none is left.

    The aimed tier is `min(retry, last)`; when none of its channels is available, the
    lower tiers are looked at in order, then the higher ones. `unavailable` are channel
    ids that must not be used now; `failed` are those that failed in this request, used
    only when the tier has no other. `roll` (0 <= roll < 1) draws within the tier.

    `strategy`: `untried_first` asks any fresh channel, highest tier first, before one that
    failed; `exhaust_tier` aims at the highest tier that has a fresh one, else at the last.

    Source: spec 01 section 4.
    """
    in_order = _in_order(route.tiers, aim=retry)
    if strategy == "exhaust_tier":
        fresh_tiers = _fresh_tiers(route.tiers, unavailable, failed)
        in_order = fresh_tiers or _in_order(route.tiers, aim=len(route.tiers))
    for tier in in_order:
        usable = [channel for channel in tier if channel.id not in unavailable]
        if not usable:
            continue
        fresh: Sequence[ChannelView] = [c for c in usable if c.id not in failed]
        if not fresh and strategy == "untried_first":
            elsewhere = _fresh_tiers(route.tiers, unavailable, failed)
            fresh = elsewhere[0] if elsewhere else []
        return draw(fresh or usable, roll=roll)
    return None


def _fresh_tiers(
    tiers: Sequence[Sequence[ChannelView]],
    unavailable: Collection[int],
    failed: Collection[int],
) -> list[Sequence[ChannelView]]:
    """Return what is available and has not failed of each tier that has any, best first."""
    found: list[Sequence[ChannelView]] = [
        [channel for channel in tier if not (channel.id in unavailable or channel.id in failed)]
        for tier in tiers
    ]
    return [fresh for fresh in found if fresh]


def draw(channels: Sequence[ChannelView], *, roll: float) -> ChannelView:
    """Return one of `channels` by weight; `roll` in [0, 1) decides.

    All weights 0: each is equally likely. Else a channel of weight 0 is never drawn.
    Raises ValueError when there is nothing to draw from.
    """
    if not channels:
        raise ValueError("no channels to draw from")
    shares = effective_weights([channel.weight for channel in channels])
    rest = roll * sum(shares)
    for channel, share in zip(channels, shares, strict=True):
        rest -= share
        if rest < 0:
            return channel
    # Rounding may leave 0.0 for the largest roll: take the last one with a share.
    return [c for c, share in zip(channels, shares, strict=True) if share][-1]


def effective_weights(weights: Sequence[int]) -> list[int]:
    """Return the shares that `weights` stand for (spec 01 section 4, rule 3)."""
    if not any(weights):
        return [STRETCH] * len(weights)
    if sum(weights) // len(weights) < SMALL_AVERAGE_WEIGHT:
        return [STRETCH * weight for weight in weights]
    return list(weights)


def pick_key(
    channel: ChannelView,
    *,
    failed: Collection[int],
    turn: int,
    roll: float,
    full: Collection[int] = (),
) -> KeyView | None:
    """Return the key for an attempt on `channel`, or None if it has none to use.

    Keys in `failed` (ids) are used only when no other is left, keys in `full` never. Mode
    `polling` takes them in turn by the caller's counter `turn`, mode `random` by `roll` in
    [0, 1).
    """
    usable = [key for key in channel.keys if key.id not in full]
    keys = [key for key in usable if key.id not in failed] or usable
    if not keys:
        return None
    if channel.key_mode == "polling":
        return keys[turn % len(keys)]
    return keys[int(roll * len(keys))]


def _in_order(tiers: Sequence[Sequence[ChannelView]], *, aim: int) -> list[Sequence[ChannelView]]:
    """Return the aimed tier, then the lower ones, then the higher ones, best first."""
    aimed = min(aim, len(tiers) - 1)
    return [*tiers[aimed:], *tiers[:aimed]]
