"""Plan the tokens of a configuration file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from msgspec import UnsetType
from msgspec.structs import replace

from billing_app.models import Token, User
from billing_app.services import key_hash, key_hint, limit_fault
from channels_app.models import Channel, Group
from relay_app.config_fields import nearest, shown
from relay_app.config_file import Config
from relay_app.config_notes import closed_to_token
from relay_app.config_plan import AUTO, Plan, chunks, is_new, need_group, take, validate
from relay_app.config_rows import TokenRow

ATTRIBUTES = {
    "group": "group",
    "unlimited": "is_unlimited",
    "limit_usd": "limit_nusd",
    "daily_limit_usd": "daily_limit_nusd",
    "monthly_limit_usd": "monthly_limit_nusd",
    "enabled": "is_enabled",
    "models": "model_names",
    "expires_at": "expires_at",
    "cross_group_retry": "cross_group_retry",
    "specific_channel": "specific_channel",
    "allow_ips": "allow_ips",
    "rpm": "rpm",
    "tpm": "tpm",
    "concurrency": "concurrency",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What tokens refer to, as it will be."""

    groups: Mapping[str, Group]
    channels: Collection[str]
    # Hash of a key → the token that has it.
    owners: dict[str, str]


def plan_tokens(
    plan: Plan, config: Config, *, groups: Mapping[str, Group], users: Mapping[str, User]
) -> None:
    """Plan the tokens. What is pruned must be planned before, so that its keys are free."""
    tokens = {(token.user_id, token.name): token for token in _tokens_of(config, users)}
    around = _Around(
        groups=groups, channels=_channels(plan, config), owners=_key_owners(plan, config)
    )
    # Asked for once, and only when a name is wrong.
    known_users = cache(lambda: (*users, *User.objects.values_list("username", flat=True)[:1000]))
    for row in config.tokens:
        if row.user not in users:
            hint = nearest(row.user, known_users())
            plan.refuse(f"{row.path}.user", f"no user {shown(row.user)}{hint}")
            continue
        user = users[row.user]
        token = tokens.get((user.pk, row.name)) or Token(user=user, name=row.name)
        _check_references(plan, row, token, user=user, around=around)
        _plan_token(plan, row, token, around)


def _check_references(
    plan: Plan, row: TokenRow, token: Token, *, user: User, around: _Around
) -> None:
    """Note what the row names and nobody has. What stays as it is was checked when it came."""
    if row.group not in ("", AUTO, token.group):
        need_group(plan, f"{row.path}.group", row.group, around.groups)
    name, path = row.specific_channel, f"{row.path}.specific_channel"
    if isinstance(name, UnsetType) or name in ("", token.specific_channel):
        return
    if not user.is_staff:
        plan.refuse(path, f"user {shown(user.username)} is not staff, as it must be for this")
    if name not in around.channels:
        plan.refuse(path, f"no channel {shown(name)}{nearest(name, around.channels)}")


def _plan_token(plan: Plan, row: TokenRow, token: Token, around: _Around) -> None:
    label = f"{row.user}/{row.name}"
    found = _hash(row)
    if found is None and is_new(token) and row.is_sound:
        plan.refuse(row.path, "a new token wants key or key_hash")
    if found is not None and around.owners.setdefault(found, label) != label:
        plan.refuse(row.path, f"its key is already used by token {around.owners[found]}")
    row = _with_both_limits(row, token)
    token.limit_nusd = token.limit_nusd if is_new(token) else _stored_limit(token)
    fields, words = take(row, token, ATTRIBUTES)
    if row.is_sound and (is_new(token) or not {"is_unlimited", "limit_nusd"}.isdisjoint(fields)):
        fault = limit_fault(is_unlimited=token.is_unlimited, limit_nusd=token.limit_nusd)
        if fault:
            plan.refuse(f"{row.path}.limit_usd", fault)
    if found is not None and token.key_hash != found:
        token.key_hash = found
        token.hint = "…" if isinstance(row.key, UnsetType) else key_hint(row.key)
        fields += ["key_hash", "hint"]
        words.append("key replaced")
    if is_new(token) or "group" in fields:
        notes = closed_to_token(token, groups=around.groups)
        plan.notices += [f"{row.path}: {note}" for note in notes]
    validate(plan, row, token, fields=fields, names={"name": "name", **ATTRIBUTES})
    plan.save(token, fields)
    plan.say(token, f"token {label}", words=words)


def _with_both_limits(row: TokenRow, token: Token) -> TokenRow:
    """Return the row with what one of `unlimited` and `limit_usd` says of the other."""
    if isinstance(row.unlimited, UnsetType) and not isinstance(row.limit_usd, UnsetType):
        return replace(row, unlimited=row.limit_usd is None)
    if row.unlimited is True and not token.is_unlimited and isinstance(row.limit_usd, UnsetType):
        return replace(row, limit_usd=None)
    return row


def _stored_limit(token: Token) -> int | None:
    """Return the limit in the database; limited to nothing named is limited to 0."""
    return token.limit_nusd if token.is_unlimited else token.total_limit_nusd


def _channels(plan: Plan, config: Config) -> set[str]:
    """Return the names of all channels that will be there, if any token names one."""
    if not any(row.specific_channel for row in config.tokens):
        return set()
    gone = {row.name for row in plan.deletes if isinstance(row, Channel)}
    present = Channel.objects.values_list("name", flat=True)
    return {row.name for row in config.channels}.union(present) - gone


def _key_owners(plan: Plan, config: Config) -> dict[str, str]:
    hashes = sorted({found for row in config.tokens if (found := _hash(row)) is not None})
    gone = {row.pk for row in plan.deletes if isinstance(row, Token)}
    gone_users = {row.pk for row in plan.deletes if isinstance(row, User)}
    return {
        owner.key_hash: f"{owner.user.username}/{owner.name}"
        for part in chunks(hashes)
        for owner in Token.objects.filter(key_hash__in=part).select_related("user")
        if owner.pk not in gone and owner.user_id not in gone_users
    }


def _hash(row: TokenRow) -> str | None:
    if not isinstance(row.key, UnsetType):
        return key_hash(row.key)
    return None if isinstance(row.key_hash, UnsetType) else row.key_hash


def _tokens_of(config: Config, users: Mapping[str, User]) -> Iterator[Token]:
    for rows in chunks(config.tokens):
        owners = {users[row.user].pk for row in rows if row.user in users}
        yield from Token.objects.filter(
            user_id__in=owners - {None}, name__in={row.name for row in rows}
        )
