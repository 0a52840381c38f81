"""ORM → routing table: whole, in slices, or only what changed.

Runs in a thread beside the event loop, so long work pauses between slices: a busy
thread holds the interpreter and would stall every stream.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import MappingProxyType
from typing import Any

import structlog

from channels_app.core.routing import RoutingTable, TableBuilder
from channels_app.core.types import ChannelView, GroupView, KeyView, RateLimits, TimeLimits
from channels_app.models import Channel, ChannelKey, Group, Option, Status
from channels_app.options import Options, build_options

log = structlog.get_logger(__name__)

SLICE = 100  # rows between two pauses: about 5 ms of work
PAUSE_S = 0.002

_FIELDS = [
    "id",
    "name",
    "provider",
    "base_url",
    "key_mode",
    "model_names",
    "priority",
    "weight",
    "status",
    "timeouts",
    "status_code_mapping",
    "bill_upstream_model",
    "settings",
    "model_mapping",
    "param_override",
    "header_override",
    "limits",
    "proxy",
]


def load_table() -> RoutingTable:
    """Return the routing table of all rows."""
    builder = TableBuilder()
    builder.set_groups(_groups())
    builder.set_options(load_options())
    for channel in _channels(None):
        builder.put(channel)
    return builder.table()


def patch_table(
    table: RoutingTable,
    *,
    channel_ids: Collection[int],
    has_new_groups: bool,
    has_new_options: bool,
) -> RoutingTable:
    """Return `table` with the named channels, and groups or options, read anew."""
    builder = TableBuilder(table)
    if has_new_groups:
        channel_ids = builder.set_groups(_groups()).union(channel_ids)
    if has_new_options:
        builder.set_options(load_options())
    for channel_id in channel_ids:
        builder.remove(channel_id)
    for channel in _channels(list(channel_ids)) if channel_ids else ():
        builder.put(channel)
    return builder.table()


def load_options() -> Options:
    """Return the options in force."""
    return build_options(dict(Option.objects.values_list("name", "value")))


def _groups() -> list[GroupView]:
    rows = Group.objects.values_list("id", "name", "user_groups", "ratio")
    return [
        GroupView(id=group_id, name=name, user_groups=tuple(map(str, users or [])), ratio=ratio)
        for group_id, name, users, ratio in rows
    ]


def _channels(ids: list[int] | None) -> Iterator[ChannelView]:
    """Yield the channels not disabled by hand; `ids` None means all of them."""
    rows = Channel.objects.exclude(status=Status.DISABLED).order_by("id")
    last_id = 0
    while True:
        part = rows.filter(id__gt=last_id)
        if ids is not None:
            part = part.filter(id__in=ids)
        page = list(part.values(*_FIELDS)[:SLICE])
        if not page:
            return
        last_id = page[-1]["id"]
        page_ids = [row["id"] for row in page]
        keys, groups = _keys(page_ids), _group_names(page_ids)
        for row in page:
            yield _view(row, keys=keys[row["id"]], groups=groups[row["id"]])
        time.sleep(PAUSE_S)


def _keys(channel_ids: list[int]) -> dict[int, list[KeyView]]:
    found: dict[int, list[KeyView]] = defaultdict(list)
    rows = ChannelKey.objects.filter(channel_id__in=channel_ids, status=Status.ENABLED).order_by(
        "id"
    )
    for channel_id, key_id, value, limits in rows.values_list(
        "channel_id", "id", "value", "limits"
    ):
        rates = _rates(limits, f"key {key_id}")
        found[channel_id].append(KeyView(id=key_id, value=value, rates=rates))
    return found


def _group_names(channel_ids: list[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    links = Channel.groups.through.objects.filter(channel_id__in=channel_ids)
    for channel_id, name in links.values_list("channel_id", "group__name"):
        found[channel_id].append(name)
    return found


def _view(row: dict[str, Any], *, keys: list[KeyView], groups: list[str]) -> ChannelView:
    """Return the row as a value. Bad JSON in a row costs that setting, not the relay."""
    return ChannelView(
        id=row["id"],
        name=row["name"],
        provider=row["provider"],
        base_url=row["base_url"].rstrip("/"),
        keys=tuple(keys),
        key_mode=row["key_mode"],
        models=_models(row),
        groups=tuple(sorted(groups)),
        priority=row["priority"],
        weight=row["weight"],
        is_enabled=row["status"] == Status.ENABLED,
        limits=_limits(row),
        status_map=_status_map(row),
        bill_upstream_model=row["bill_upstream_model"],
        settings=_mapping(row, "settings") or MappingProxyType({}),
        model_mapping=_mapping(row, "model_mapping"),
        param_override=_mapping(row, "param_override"),
        header_override=_mapping(row, "header_override"),
        rates=_rates(row["limits"], row["name"]),
        proxy=row["proxy"],
    )


def _models(row: dict[str, Any]) -> tuple[str, ...]:
    names = row["model_names"]
    if not isinstance(names, list):
        log.warning("channel models ignored: not a list", channel=row["name"])
        return ()
    return tuple(name for name in names if isinstance(name, str))


def _mapping(row: dict[str, Any], name: str) -> MappingProxyType[str, Any] | None:
    """Return the column as a mapping that can't be changed; None when it is empty."""
    value = row[name] or {}
    if not isinstance(value, dict):
        log.warning("channel setting ignored: not an object", channel=row["name"], setting=name)
        return None
    return MappingProxyType(value) if value else None


def _rates(limits: object, owner: str) -> RateLimits | None:
    if not limits:
        return None
    try:
        rates = RateLimits(**{name: int(value) for name, value in limits.items()})  # type: ignore[attr-defined]  # refused below
    except (TypeError, ValueError, AttributeError):
        log.warning("limits ignored: not readable", owner=owner)
        return None
    return None if rates == RateLimits() else rates


def _limits(row: dict[str, Any]) -> TimeLimits:
    try:
        return TimeLimits(**{k: float(v) for k, v in row["timeouts"].items()})
    except (TypeError, ValueError, AttributeError):
        log.warning("channel timeouts ignored: not readable", channel=row["name"])
        return TimeLimits()


def _status_map(row: dict[str, Any]) -> MappingProxyType[int, int]:
    try:
        pairs = {int(k): int(v) for k, v in row["status_code_mapping"].items()}
    except (TypeError, ValueError, AttributeError):
        log.warning("status_code_mapping ignored: not readable", channel=row["name"])
        pairs = {}
    return MappingProxyType(pairs)
