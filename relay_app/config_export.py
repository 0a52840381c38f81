"""The configuration in the database as a file that changes nothing when it is applied.

Secrets are left out unless asked for; placeholders stand for them. A key is
`{env: NAME, hash: SHA-256}`: the variable if it is set, else the channel's key with that hash.
A proxy or header is `{env: NAME, kept: true}`: the variable, else what the channel has.
Applying such a file where neither is there is refused; nothing is lost in silence.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import yaml
from django.db import transaction
from django.db.models import F, Model, QuerySet

from billing_app.models import Price, Token, User, Wallet
from channels_app.models import Channel, ChannelKey, Group, Option, Status
from channels_app.options import OPTIONS, OptionError, build_options
from relay_app import config_channels, config_prices, config_tokens
from relay_app.config_apply import PROGRESS_EVERY, config_lock
from relay_app.config_channel_fields import set_limits
from relay_app.config_fields import MAX_BALANCE_USD
from relay_app.config_file import AUTO_GROUPS, VERSION
from relay_app.config_plan import AUTO, GROUP_ATTRIBUTES, NANO, USER_ATTRIBUTES, said, same
from relay_app.config_prune import some
from relay_app.config_rows import (
    ChannelRow,
    GroupRow,
    PriceRow,
    Row,
    TokenRow,
    UserRow,
    file_fields,
)
from relay_app.references import option_naming, tokens_of, users_of

# Settings of provider types that are no secrets; others may be, such as a private key.
PLAIN_SETTINGS = frozenset({"api_version", "behaviour", "location", "project", "region"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The document of a file, and what of the database it can't say."""

    document: dict[str, Any]
    notices: list[str]


class _Dumper(yaml.CSafeDumper):
    """Writes everything out where it stands, without `&anchors`."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_text(document: dict[str, Any]) -> str:
    """Return the text of a file with this document."""
    return yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )


def config_export(
    *, with_keys: bool = False, progress: Callable[[str], None] = lambda _: None
) -> Exported:
    """Return all options, groups, channels, users and tokens; secrets only `with_keys`."""
    notices: list[str] = []
    with transaction.atomic():
        config_lock()  # so that no other file is applied halfway through
        document = {
            "version": VERSION,
            "options": _options(notices),
            "groups": _groups(notices),
            "auto_groups": _auto_groups(),
            "channels": list(_channels(with_keys=with_keys, progress=progress)),
            "users": [_user(user, notices) for user in _by(User.objects.all(), "username")],
            "tokens": _tokens(notices),
            "prices": [
                _row(PriceRow, price, {"model": "model", **config_prices.ATTRIBUTES})
                for price in _by(Price.objects.all(), "model")
            ],
        }
        _note_balances(notices)
    return Exported(document=document, notices=notices)


def _note_balances(notices: list[str]) -> None:
    """Say that what wallets have now is not in the file, if it is not what they began with."""
    moved = Wallet.objects.exclude(available_nusd=F("user__opening_balance_nusd"))
    names = list(moved.order_by("user__username").values_list("user__username", flat=True))
    if names:
        notices.append(
            "balance_usd is what an account began with, not what it has now; another database"
            f" would begin with it again. They differ for {some(names)}"
        )


def _options(notices: list[str]) -> dict[str, Any]:
    """Return what differs from the defaults."""
    found = {}
    for option in _named(Option):
        spec = OPTIONS.get(option.name)
        if option.name == AUTO_GROUPS:
            continue
        try:
            value = None if spec is None else spec.stored(option.value)
        except OptionError as error:
            notices.append(f"option left out, its default counts: {error}")
            continue
        if spec is None:
            notices.append(f"option {option.name} left out: this version does not know it")
        elif not same(value, spec.stored(spec.default)):
            if isinstance(value, float) and value.is_integer():
                value = int(value)  # as people write it
            found[option.name] = _sorted(value)
    return found


def _groups(notices: list[str]) -> list[dict[str, Any]]:
    """Return the groups, and an empty one for each name that has none: it serves as little,
    and without it no other database would take the file."""
    groups = {group.name: group for group in _named(Group)}
    # Every user begins in group default, whether it is there or not.
    of_users = _names(User, "group") - {"default"}
    named = {*_auto_groups(), *of_users, *_names(Token, "group")}
    for name in sorted(named - {"", AUTO, *groups}):
        groups[name] = Group(name=name, ratio=Decimal(1))
        notices.append(
            f"group {name} does not exist but is named by {_namers(name)}:"
            " it is written as a group without channels"
        )
    return [_row(GroupRow, groups[name], GROUP_ATTRIBUTES) for name in sorted(groups)]


def _names(model: type[Model], column: str) -> set[str]:
    rows = model._default_manager.order_by()  # noqa: SLF001 - public API
    return set(rows.values_list(column, flat=True).distinct())


def _namers(group: str) -> str:
    found = [*users_of([group]), *tokens_of([group]), *option_naming([group])]
    return some([namer.title for namer in found])


def _auto_groups() -> list[str]:
    stored = Option.objects.filter(name=AUTO_GROUPS).values_list("name", "value")
    return list(build_options(dict(stored)).auto_groups)


def _channels(*, with_keys: bool, progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    keys: defaultdict[int, list[ChannelKey]] = defaultdict(list)
    rows = ChannelKey.objects.order_by("pk")
    for key in rows if with_keys else rows.defer("value"):
        keys[key.channel_id].append(key)
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for channel_id, name in Channel.groups.through.objects.values_list("channel_id", "group__name"):
        groups[channel_id].append(name)
    names = _Names()
    for number, channel in enumerate(_named(Channel), start=1):
        secrets = _Secrets(names=names, channel=channel.name, are_shown=with_keys)
        yield _row(
            ChannelRow,
            channel,
            {**config_channels.ATTRIBUTES, "base_url": "base_url"},
            keys=[_key(key, secrets) for key in keys[channel.pk]],
            groups=sorted(groups[channel.pk]),
            enabled=channel.status != Status.DISABLED,
            proxy=secrets.proxy(channel.proxy),
            header_override=secrets.headers(channel.header_override),
            settings=secrets.settings(channel.settings),
        )
        if number % PROGRESS_EVERY == 0:
            progress(f"{number} channels")


def _key(key: ChannelKey, secrets: _Secrets) -> Any:
    more: dict[str, Any] = {}
    if key.status == Status.DISABLED:
        more["enabled"] = False
    if limits := set_limits(key.limits):
        more["limits"] = limits
    if not secrets.are_shown:
        return {"env": secrets.next_key(), "hash": key.value_hash, **more}
    return {"key": key.value, **more} if more else key.value


def _user(user: User, notices: list[str]) -> dict[str, Any]:
    row = _row(UserRow, user, {"name": "username", **USER_ATTRIBUTES})
    balance = Decimal(user.opening_balance_nusd) / NANO
    if 0 <= balance <= MAX_BALANCE_USD:
        row["balance_usd"] = said(balance)
    else:
        notices.append(f"user {user.username}: balance {said(balance)} left out")
    return row


def _tokens(notices: list[str]) -> list[dict[str, Any]]:
    attributes = {"name": "name", "key_hash": "key_hash", **config_tokens.ATTRIBUTES}
    channels = _names(Channel, "name")
    rows = []
    tokens = Token.objects.select_related("user")
    for token in sorted(tokens, key=lambda token: (token.user.username, token.name)):
        row = _row(TokenRow, token, attributes, user=token.user.username)
        if not token.is_unlimited:
            row["limit_usd"] = said(Decimal(token.total_limit_nusd or 0) / NANO)
        elif token.limit_nusd is not None:  # from before both were refused together
            del row["limit_usd"]
        if reason := _why_no_channel(token, channels):
            # Without its channel it could use all: it must not work.
            row |= {"specific_channel": "", "enabled": False}
            notices.append(
                f"token {token.user.username}/{token.name} is written as disabled, without its"
                f" channel {token.specific_channel}: {reason}"
            )
        rows.append(row)
    return rows


def _why_no_channel(token: Token, channels: Collection[str]) -> str:
    """Return why no file could name the token's channel; empty if it could, or has none."""
    if not token.specific_channel:
        return ""
    if token.specific_channel not in channels:
        return "there is no such channel"
    return "" if token.user.is_staff else f"user {token.user.username} is not staff"


def _named(model: type[Model]) -> list[Any]:
    return _by(model._default_manager.all(), "name")  # noqa: SLF001 - public API


def _by(rows: QuerySet[Any], attribute: str) -> list[Any]:
    """Return the rows in an order that is the same in every database."""
    return sorted(rows, key=lambda row: str(getattr(row, attribute)))


def _row(kind: type[Row], instance: Model, attributes: Any, **known: Any) -> dict[str, Any]:
    """Return every key that a row of this kind may name, but for those without a value here."""
    row: dict[str, Any] = {}
    for key in file_fields(kind):
        if key in known:
            row[key] = known[key]
        elif key in attributes or key == "name":
            value = getattr(instance, attributes.get(key, key))
            row[key] = set_limits(value) if key == "limits" else _plain(value)
            if key.endswith("_usd") and value is not None:
                row[key] = said(Decimal(value) / NANO)
    return row


def _plain(value: Any) -> Any:
    """Return a column's value as the file has it."""
    if isinstance(value, Decimal):
        return said(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return _sorted(value)


def _sorted(value: Any) -> Any:
    """Return `value` with sorted mappings: databases keep no order of them."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of environment variables, each given once."""

    _taken: set[str] = field(default_factory=set)

    def give(self, *words: str) -> str:
        """Return a new name made of `words`."""
        plain = (re.sub(r"[^A-Z0-9]+", "_", word.upper()).strip("_") for word in words)
        name = found = "_".join(["RELAY", *filter(None, plain)])
        number = 1
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found


@dataclass(slots=True, kw_only=True)
class _Secrets:
    """What stands in the file for the secrets of one channel."""

    names: _Names
    channel: str
    are_shown: bool
    _keys: int = 0

    def next_key(self) -> str:
        """Return the name of the variable for the next key."""
        self._keys += 1
        return self.names.give("key", self.channel, str(self._keys))

    def proxy(self, value: str) -> Any:
        """Return the proxy, or what stands for it."""
        return value if self.are_shown else self._kept(value, "proxy", self.channel)

    def headers(self, value: Any) -> Any:
        """Return the headers; any may be a credential."""
        value = _sorted(value)
        if self.are_shown or not isinstance(value, dict):
            return value
        return {name: self._kept(one, "header", self.channel, name) for name, one in value.items()}

    def settings(self, value: Any) -> Any:
        """Return the settings without those that may be secret."""
        value = _sorted(value)
        if self.are_shown or not isinstance(value, dict):
            return value
        return {
            name: {"kept": True}
            if name not in PLAIN_SETTINGS and one and isinstance(one, str | list | dict)
            else one
            for name, one in value.items()
        }

    def _kept(self, value: Any, *words: str) -> Any:
        return {"env": self.names.give(*words), "kept": True} if value else value
