"""Who names a group or a channel by its name: no foreign key tells, since names are stored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Model, QuerySet

from billing_app.models import Token, User
from channels_app.models import Channel, Option
from channels_app.options import build_options
from relay_app.config_file import AUTO_GROUPS


@dataclass(frozen=True, slots=True)
class Namer:
    """A row that names another, and what it is called: `user alice`, `token alice/ci`."""

    row: Model
    title: str


def users_of(groups: Collection[str]) -> list[Namer]:
    """Return the users whose group is one of `groups`."""
    users = User.objects.filter(group__in=groups).order_by("username")
    return [Namer(user, f"user {user.username}") for user in users]


def tokens_of(groups: Collection[str]) -> list[Namer]:
    """Return the tokens that name one of `groups` themselves."""
    return _tokens(Token.objects.filter(group__in=groups))


def tokens_for(channels: Collection[str]) -> list[Namer]:
    """Return the tokens that may use one of `channels` alone."""
    return _tokens(Token.objects.filter(specific_channel__in=channels))


def channels_in(groups: Collection[str]) -> list[Namer]:
    """Return the channels of `groups`."""
    channels = Channel.objects.filter(groups__name__in=groups).defer("proxy")
    return [Namer(row, f"channel {row.name}") for row in channels.order_by("name").distinct()]


def option_naming(groups: Collection[str]) -> list[Namer]:
    """Return option AutoGroups if it names one of `groups`."""
    option = Option.objects.filter(name=AUTO_GROUPS).first()
    if option is None or not set(groups).intersection(
        build_options({option.name: option.value}).auto_groups
    ):
        return []
    return [Namer(option, f"option {AUTO_GROUPS}")]


def _tokens(tokens: QuerySet[Token]) -> list[Namer]:
    return [
        Namer(token, f"token {token.user.username}/{token.name}")
        for token in tokens.select_related("user").order_by("user__username", "name")
    ]
