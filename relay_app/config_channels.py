"""Plan the channels of a configuration file: their fields, keys, groups and status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone
from msgspec import UNSET, UnsetType, structs

from channels_app.models import Channel, ChannelKey, Group
from channels_app.services import channel_key_new, status_by_hand
from relay_app.config_channel_fields import Kept
from relay_app.config_fields import without_password
from relay_app.config_file import Config
from relay_app.config_notes import in_no_group
from relay_app.config_plan import Plan, chunks, difference, is_new, need_group, said, take, validate
from relay_app.config_rows import ChannelRow, KeyRow
from relay_app.providers.registry import ADAPTERS, settings_fault

STATUS_REASON = "configuration file"
ATTRIBUTES = {
    "type": "provider",
    "key_mode": "key_mode",
    "models": "model_names",
    "priority": "priority",
    "weight": "weight",
    "auto_ban": "auto_ban",
    "model_mapping": "model_mapping",
    "param_override": "param_override",
    "header_override": "header_override",
    "status_code_mapping": "status_code_mapping",
    "timeouts": "timeouts",
    "fault_domain": "fault_domain",
    "proxy": "proxy",
    "supports_prefill": "supports_prefill",
    "health_scope": "health_scope",
    "test_model": "test_model",
    "bill_upstream_model": "bill_upstream_model",
    "limits": "limits",
    "settings": "settings",
}
# An address that ends in a version has it already, be it another one than the usual.
_VERSION = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?$")


@dataclass(frozen=True, slots=True)
class _Present:
    """What the database holds of one channel besides its row."""

    keys: dict[str, ChannelKey] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)


def plan_channels(plan: Plan, config: Config, groups: Mapping[str, Group]) -> None:
    """Plan the channels, each with its keys and groups."""
    names = [row.name for row in config.channels]
    channels: dict[str, Channel] = Channel.objects.in_bulk(names, field_name="name")
    present = _present([channel.pk for channel in channels.values()])
    for row in config.channels:
        channel = channels.get(row.name) or Channel(name=row.name)
        there = present.get(channel.pk) or _Present()
        fields, words = _take_fields(plan, row, channel)
        # The row goes before its keys and groups, which need its id.
        plan.save(channel, fields)
        words += _plan_keys(plan, row, channel, there.keys)
        words += _plan_groups(plan, row, channel, present=there.groups, groups=groups)
        plan.say(channel, f"channel {row.name}", words=words)


def _present(channel_ids: list[int]) -> dict[int, _Present]:
    found = {channel_id: _Present() for channel_id in channel_ids}
    for part in chunks(channel_ids):
        # Values stay encrypted: keys are told apart by their hashes.
        for key in ChannelKey.objects.filter(channel_id__in=part).defer("value"):
            found[key.channel_id].keys[key.value_hash] = key
        links = Channel.groups.through.objects.filter(channel_id__in=part)
        for channel_id, name in links.values_list("channel_id", "group__name"):
            found[channel_id].groups.add(name)
    return found


def _take_fields(plan: Plan, row: ChannelRow, channel: Channel) -> tuple[list[str], list[str]]:
    """Set what the file names; return the changed fields and words for them."""
    if is_new(channel) and row.is_sound:
        if isinstance(row.type, UnsetType):
            plan.refuse(f"{row.path}.type", "is missing; a new channel wants one")
        if not row.groups:
            plan.notices.append(f"{row.path}: {in_no_group(row.name)}")
    row = _with_kept(plan, row, channel)
    fields, words = take(row, channel, ATTRIBUTES)
    validate(plan, row, channel, fields=fields, names={"name": "name", **ATTRIBUTES})
    if {"settings", "provider"}.intersection(fields):
        fault = settings_fault(channel.provider, channel.settings)
        if fault is not None:
            plan.refuse(f"{row.path}.settings", fault)
    url = _base_url(plan, row, channel, has_new_type="provider" in fields)
    if url != channel.base_url:
        words.append(difference("base_url", channel.base_url, url))
        fields.append("base_url")
        channel.base_url = url
    if _take_enabled(row, channel):
        words.append(f"enabled {said(not row.enabled)} -> {said(row.enabled)}")
        fields += ["status", "status_reason"]
        channel.status_changed_at = timezone.now()
        fields.append("status_changed_at")
    return fields, words


def _with_kept(plan: Plan, row: ChannelRow, channel: Channel) -> ChannelRow:
    """Return `row` with what the channel has in the places of `{kept: true}`."""
    changes: dict[str, Any] = {}
    if isinstance(row.proxy, Kept):
        changes["proxy"] = _kept(plan, f"{row.path}.proxy", row.proxy, {"": channel.proxy}, "")
    for key in ("header_override", "settings"):
        named, present = getattr(row, key), getattr(channel, key)
        if named is UNSET or not any(isinstance(one, Kept) for one in named.values()):
            continue
        changes[key] = {
            name: _kept(plan, f"{row.path}.{key}.{name}", one, present, name)
            if isinstance(one, Kept)
            else one
            for name, one in named.items()
        }
    return structs.replace(row, **changes) if changes else row


def _kept(plan: Plan, path: str, kept: Kept, present: Mapping[str, Any], name: str) -> Any:
    found = present.get(name, "")
    if found == "":
        plan.refuse(path, f"the channel has nothing here that could be kept; {kept.advice}")
    return found


def _base_url(plan: Plan, row: ChannelRow, channel: Channel, *, has_new_type: bool) -> str:
    """Return the channel's address, with the ending that its type expects if it is new."""
    url = channel.base_url if isinstance(row.base_url, UnsetType) else row.base_url
    adapter = ADAPTERS.get(channel.provider)
    is_as_before = url == channel.base_url and not (is_new(channel) or has_new_type)
    if adapter is None or is_as_before:
        return url
    if adapter.needs_base_url and not url and row.is_sound:
        plan.refuse(f"{row.path}.base_url", f"is missing; type {channel.provider} wants one")
    full = with_suffix(url, adapter.base_url_suffix)
    if full not in (url, channel.base_url):
        shown = without_password(full)
        plan.notices.append(f"{row.path}.base_url: {adapter.base_url_suffix} was added: {shown}")
    return full


def with_suffix(url: str, suffix: str) -> str:
    """Return `url` ending in `suffix`, unless it is empty or ends in a version already."""
    if not url or url.endswith(suffix) or _VERSION.search(url):
        return url
    return url + suffix


def _take_enabled(row: ChannelRow | KeyRow, target: Channel | ChannelKey) -> bool:
    """Set the by-hand status that the file names; return whether it changed."""
    if isinstance(row.enabled, UnsetType):
        return False
    status = status_by_hand(target.status, is_enabled=row.enabled)
    if status == target.status:
        return False
    target.status = status
    target.status_reason = "" if row.enabled else STATUS_REASON
    return True


def _plan_keys(
    plan: Plan, row: ChannelRow, channel: Channel, present: Mapping[str, ChannelKey]
) -> list[str]:
    """Plan the keys: matched by value, so that those which stay keep their status."""
    if isinstance(row.keys, UnsetType):
        return []
    added = changed = 0
    gone = dict(present)
    for wanted in row.keys:
        key = gone.pop(wanted.value_hash, None)
        is_present = key is not None
        if key is None:
            if isinstance(wanted.key, UnsetType):
                plan.refuse(wanted.path, _no_such_key(wanted))
                continue
            key = channel_key_new(channel=channel, value=wanted.key)
        fields, _ = take(wanted, key, {"limits": "limits"})
        if _take_enabled(wanted, key):
            fields += ["status", "status_reason"]
        plan.save(key, fields)
        added += not is_present
        changed += is_present and bool(fields)
    plan.deletes += gone.values()
    if not (added or changed or gone):
        return []
    return [f"keys +{added} -{len(gone)}" + (f" ~{changed}" if changed else "")]


def _no_such_key(row: KeyRow) -> str:
    otherwise = "write the key out" if row.env is UNSET else f"set the variable {row.env}"
    return f"the channel has no key with this hash; {otherwise}"


def _plan_groups(
    plan: Plan,
    row: ChannelRow,
    channel: Channel,
    *,
    present: set[str],
    groups: Mapping[str, Group],
) -> list[str]:
    """Plan which groups the channel joins and leaves."""
    if isinstance(row.groups, UnsetType):
        return []
    for name in row.groups:
        need_group(plan, f"{row.path}.groups", name, groups)
    joined = [name for name in row.groups if name in groups and name not in present]
    left = sorted(present.difference(row.groups))
    plan.joins += [(channel, groups[name]) for name in joined]
    # Of a group that goes away, its links go too.
    plan.leaves += [(channel, groups[name]) for name in left if name in groups]
    return [f"groups +{len(joined)} -{len(left)}"] if joined or left else []
