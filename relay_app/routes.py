"""Which channels a request may use: the groups of its token, its model and fallbacks.

Pure lookups in the snapshot; raises the error that a client is told when there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from billing_app.core.types import TokenView
from channels_app.core.routing import RoutingTable, model_matches
from channels_app.core.types import ChannelView, Route
from relay_app.bindings import Binding
from relay_app.core.attempts import GroupRoute, ModelRoute
from relay_app.errors import GroupNotAllowed, ModelNotAllowed, ModelNotFound, NoChannelAvailable
from relay_app.providers.registry import deaf_to

# The group whose tokens walk the groups of option AutoGroups.
AUTO = "auto"


def find_routes(
    routing: RoutingTable,
    *,
    token: TokenView,
    model: str,
    dialect: str,
    bound: Binding | None = None,
) -> tuple[ModelRoute, ...]:
    """Return where a request for `model` may go: its own route first, then its fallbacks.

    One that is `bound` goes to that channel with that key, and nowhere else.
    Raises ModelNotAllowed, GroupNotAllowed, ModelNotFound or NoChannelAvailable.
    """
    if not may_use(token, model):
        raise ModelNotAllowed(f"this token may not use model {model!r}", param="model")
    if bound is not None:
        return (_bound(routing, token, bound, model=model, dialect=dialect),)
    if token.specific_channel:
        return (_specific(routing, token, model=model, dialect=dialect),)
    groups = usable_groups(routing, token)
    names = [model, *(m for m in _fallbacks(routing, model) if may_use(token, m))]
    found = [_route(routing, token, groups, model=name, dialect=dialect) for name in names]
    routes = tuple(route for route in found if route is not None)
    if not routes:
        raise _nothing(routing, groups, model=model, dialect=dialect)
    return routes


def may_use(token: TokenView, model: str) -> bool:
    """Return whether the token's list of models allows `model`."""
    return not token.models or any(model_matches(pattern, model) for pattern in token.models)


def usable_groups(routing: RoutingTable, token: TokenView) -> Sequence[str]:
    """Return the groups that the token may use, in order.

    Raises GroupNotAllowed when its own is closed to its user, NoChannelAvailable when
    AutoGroups leaves it none.
    """
    if token.group != AUTO:
        if not routing.is_open(token.group, token.user_group):
            raise GroupNotAllowed(f"this token may not use group {token.group!r}")
        return (token.group,)
    listed = routing.options.auto_groups
    groups = [name for name in listed if routing.is_open(name, token.user_group)]
    if not groups:
        raise NoChannelAvailable("option AutoGroups names no group that this token may use")
    return groups


def usable_models(routing: RoutingTable, token: TokenView) -> list[str]:
    """Return the model names that the token may ask for, sorted, without wildcards."""
    groups = usable_groups(routing, token)
    names = {name for group in groups for name in routing.models(group)}
    return sorted(name for name in names if may_use(token, name))


def is_usable(routing: RoutingTable, token: TokenView, model: str) -> bool:
    """Return whether the token may ask for `model`, by its name or a wildcard."""
    groups = usable_groups(routing, token)
    return may_use(token, model) and any(routing.route(g, model) is not None for g in groups)


def _fallbacks(routing: RoutingTable, model: str) -> tuple[str, ...]:
    return routing.options.model_fallbacks.get(model, ())


def _route(
    routing: RoutingTable, token: TokenView, groups: Sequence[str], *, model: str, dialect: str
) -> ModelRoute | None:
    """Return the groups that have channels for `model`; without cross-group retry the first."""
    deaf = deaf_to(dialect)
    found = []
    for group in groups:
        route = routing.route(group, model, without=deaf)
        if route is not None:
            found.append(GroupRoute(group=group, route=route))
            if not token.is_cross_group:
                break
    return ModelRoute(model=model, groups=tuple(found)) if found else None


def _specific(routing: RoutingTable, token: TokenView, *, model: str, dialect: str) -> ModelRoute:
    name = token.specific_channel
    channel = routing.channel_named(name)
    if channel is None or not channel.is_enabled:
        raise NoChannelAvailable(f"the channel of this token, {name!r}, is not there or disabled")
    if channel.provider in deaf_to(dialect):
        raise NoChannelAvailable(f"channel {name!r} does not speak the API of this path")
    group = _paid_group(routing, token, channel)
    return ModelRoute(model=model, groups=(GroupRoute(group=group, route=_alone(channel)),))


def _bound(
    routing: RoutingTable, token: TokenView, bound: Binding, *, model: str, dialect: str
) -> ModelRoute:
    channel = routing.channels.get(bound.channel_id)
    keys = tuple(key for key in channel.keys if key.id == bound.key_id) if channel else ()
    is_there = channel is not None and channel.is_enabled and (keys or bound.key_id is None)
    if channel is None or not is_there or channel.provider in deaf_to(dialect):
        raise NoChannelAvailable("the channel that made the response is not available")
    group = _paid_group(routing, token, channel)
    alone = _alone(replace(channel, keys=keys))
    return ModelRoute(model=model, groups=(GroupRoute(group=group, route=alone),))


def _paid_group(routing: RoutingTable, token: TokenView, channel: ChannelView) -> str:
    """Return the group whose ratio counts where a request goes to one channel whatever its
    group: the token's, or the first that an automatic one may use and the channel is in."""
    if token.group != AUTO:
        return token.group
    groups = usable_groups(routing, token)
    return next((group for group in groups if group in channel.groups), groups[0])


def _alone(channel: ChannelView) -> Route:
    return Route(tiers=((channel,),))


def _nothing(
    routing: RoutingTable, groups: Sequence[str], *, model: str, dialect: str
) -> ModelNotFound | NoChannelAvailable:
    """Return why no group has a channel for `model`."""
    of_group = f"of group {', '.join(map(repr, groups))}"
    if any(routing.route(group, model) is not None for group in groups):
        return NoChannelAvailable(
            f"no channel {of_group} that serves model {model!r} speaks the API of"
            f" this path ({dialect})"
        )
    if routing.knows(model):
        return NoChannelAvailable(f"no channel {of_group} can serve model {model!r} at present")
    return ModelNotFound(
        f"model {model!r} does not exist here; GET /v1/models lists what there is",
        param="model",
    )
