"""The routing table: which channels serve a (group, model). Immutable; patched by copy.

A table is shared by all requests that began with it, so nothing in it ever changes; a
changed channel makes a new table that shares all the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from channels_app.core.types import ChannelView, GroupView, Route
from channels_app.options import Options

# Ids of the enabled channels that list a model name, by group and name as written.
ModelIndex: TypeAlias = dict[tuple[str, str], tuple[int, ...]]

# What a route is kept under: group, model, provider types left out.
RouteKey: TypeAlias = tuple[str, str, frozenset[str]]

# Routes are worked out once and kept; wildcard models could otherwise fill the memory.
MAX_CACHED_ROUTES = 20_000
MAX_CACHED_NAME = 200  # names that clients make up can be of any length


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """Groups, channels and options as one request sees them."""

    channels: Mapping[int, ChannelView] = field(default_factory=dict)
    groups: Mapping[int, GroupView] = field(default_factory=dict)
    groups_by_name: Mapping[str, GroupView] = field(default_factory=dict, repr=False)
    options: Options = field(default_factory=Options)
    index: ModelIndex = field(default_factory=dict, repr=False)
    # Wildcard entries by group: prefix → channel ids.
    prefixes: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict, repr=False)
    # How many channels list a name as written, enabled or not, in whatever group.
    listed: Mapping[str, int] = field(default_factory=dict, repr=False)
    listed_patterns: Mapping[str, int] = field(default_factory=dict, repr=False)
    _routes: dict[RouteKey, Route] = field(default_factory=dict, repr=False)

    def route(
        self, group: str, model: str, *, without: frozenset[str] = frozenset()
    ) -> Route | None:
        """Return the enabled channels that serve `model` in `group`, or None.

        Channels of the provider types in `without` are left out: they do not speak the
        language of the request. Names match exactly first, then by entries with a
        trailing `*`.
        """
        key = (group, model, without)
        try:
            return self._routes[key]
        except KeyError:
            pass
        ids = self._left(self.index.get((group, model), ()), without)
        ids = ids or self._left(self._by_prefix(group, model), without)
        if not ids:
            return None
        route = self._tiers(ids)
        if len(model) <= MAX_CACHED_NAME:
            if len(self._routes) >= MAX_CACHED_ROUTES:
                self._routes.clear()
            self._routes[key] = route
        return route

    def knows(self, model: str) -> bool:
        """Return whether any channel not disabled by hand lists `model`, in any group."""
        return model in self.listed or any(
            model_matches(pattern, model) for pattern in self.listed_patterns
        )

    def is_open(self, group: str, user_group: str) -> bool:
        """Return whether users of `user_group` may use `group`; one not there is closed to
        nobody, it just has no channels."""
        found = self.groups_by_name.get(group)
        return found is None or found.is_open_to(user_group)

    def ratio(self, *, group: str, user_group: str) -> Decimal:
        """Return what use of `group` costs users of `user_group`, times the price."""
        own = self.options.group_group_ratio.get(user_group, {}).get(group)
        if own is not None:
            return own
        found = self.groups_by_name.get(group)
        return found.ratio if found is not None else Decimal(1)

    def channel_named(self, name: str) -> ChannelView | None:
        """Return the channel of this name, unless it is disabled by hand."""
        return next((c for c in self.channels.values() if c.name == name), None)

    def models(self, group: str) -> list[str]:
        """Return the model names that `group` can use, sorted, without wildcards."""
        return sorted(name for owner, name in self.index if owner == group)

    def _by_prefix(self, group: str, model: str) -> tuple[int, ...]:
        entries = self.prefixes.get(group)
        if not entries:
            return ()
        found = {i for prefix in entries if model.startswith(prefix) for i in entries[prefix]}
        return tuple(sorted(found))

    def _left(self, ids: Iterable[int], without: frozenset[str]) -> tuple[int, ...]:
        return tuple(i for i in ids if self.channels[i].provider not in without)

    def _tiers(self, ids: Iterable[int]) -> Route:
        by_priority: dict[int, list[ChannelView]] = {}
        for channel_id in sorted(ids):
            channel = self.channels[channel_id]
            by_priority.setdefault(channel.priority, []).append(channel)
        ordered = sorted(by_priority, reverse=True)
        return Route(tiers=tuple(tuple(by_priority[p]) for p in ordered))


class TableBuilder:
    """Makes a routing table, from nothing or from an older one, channel by channel."""

    def __init__(self, base: RoutingTable | None = None) -> None:
        base = base or RoutingTable()
        self._channels = dict(base.channels)
        self._groups = dict(base.groups)
        self._options = base.options
        self._index = dict(base.index)
        self._listed = dict(base.listed)
        self._listed_patterns = dict(base.listed_patterns)
        self._prefixes = {g: dict(entries) for g, entries in base.prefixes.items()}

    def put(self, channel: ChannelView) -> None:
        """Add `channel`, or replace the one with its id."""
        self.remove(channel.id)
        self._channels[channel.id] = channel
        self._count(channel, step=1)
        if channel.is_enabled:
            self._enter(channel)

    def remove(self, channel_id: int) -> None:
        """Take the channel out; nothing happens if it is not there."""
        old = self._channels.pop(channel_id, None)
        if old is None:
            return
        self._count(old, step=-1)
        if not old.is_enabled:
            return
        for group in old.groups:
            for name in old.models:
                entries, key = self._place(group, name)
                left = tuple(i for i in entries.get(key, ()) if i != channel_id)
                if left:
                    entries[key] = left
                else:
                    entries.pop(key, None)

    def set_groups(self, groups: Iterable[GroupView]) -> set[int]:
        """Replace all groups; return ids of channels in renamed or removed ones."""
        new = {group.id: group for group in groups}
        gone = {g.name for i, g in self._groups.items() if new.get(i) != g}
        self._groups = new
        return {
            channel.id for channel in self._channels.values() if gone.intersection(channel.groups)
        }

    def set_options(self, options: Options) -> None:
        """Replace the options."""
        self._options = options

    def table(self) -> RoutingTable:
        """Return the finished table."""
        return RoutingTable(
            channels=self._channels,
            groups=self._groups,
            groups_by_name={group.name: group for group in self._groups.values()},
            options=self._options,
            index=self._index,
            listed=self._listed,
            listed_patterns=self._listed_patterns,
            prefixes=self._prefixes,
        )

    def _count(self, channel: ChannelView, *, step: int) -> None:
        """Count the names that `channel` lists up or down; names at 0 go."""
        for name in channel.models:
            counts = self._listed_patterns if name.endswith("*") else self._listed
            counts[name] = counts.get(name, 0) + step
            if counts[name] <= 0:
                del counts[name]

    def _enter(self, channel: ChannelView) -> None:
        for group in channel.groups:
            for name in channel.models:
                entries, key = self._place(group, name)
                ids = entries.get(key, ())
                if channel.id not in ids:
                    entries[key] = (*ids, channel.id)

    def _place(self, group: str, name: str) -> tuple[dict, object]:  # type: ignore[type-arg]  # one of two dicts, told apart by the kind of name
        if name.endswith("*"):
            return self._prefixes.setdefault(group, {}), name[:-1]
        return self._index, (group, name)


def model_matches(pattern: str, model: str) -> bool:
    """Return whether `pattern` (a name, or a prefix and `*`) covers `model`."""
    if pattern.endswith("*"):
        return model.startswith(pattern[:-1])
    return pattern == model
