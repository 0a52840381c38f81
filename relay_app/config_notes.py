"""What is allowed but hardly meant: said of files, by commands and in the admin alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from billing_app.models import Token
from channels_app.models import Group
from relay_app.config_fields import nearest, shown
from relay_app.routes import AUTO


def unknown_user_groups(names: Collection[str], *, groups: Collection[str]) -> list[str]:
    """Return a line for each of the groups of users that no user can be in yet."""
    return [
        f"no user is in {shown(name)} yet{nearest(name, groups)}"
        for name in names
        if name not in groups
    ]


def in_no_group(channel_name: str) -> str:
    """Return the line for a channel without groups."""
    return f"{channel_name} is in no group, so no token can use it"


def closed_to_token(token: Token, *, groups: Mapping[str, Group]) -> list[str]:
    """Return a line if the group that the token uses is closed to its user."""
    name, user_group = token.group or token.user.group, token.user.group
    group = groups.get(name)
    if token.specific_channel or name == AUTO or group is None or not group.user_groups:
        return []
    if user_group in group.user_groups:
        return []
    return [
        f"group {shown(name)} is not open to users of group {shown(user_group)}:"
        " requests with this token are refused"
    ]


def groups_of(token: Token) -> dict[str, Group]:
    """Return the groups that the token may use by its own or its user's, by name."""
    names = {token.group, token.user.group}
    return {group.name: group for group in Group.objects.filter(name__in=names)}
