"""Plan what `--prune` takes away: rows of the named sections that the file does not have.

Requests must stay accounted for: tokens and users that have any in the log are disabled
instead of deleted. Users of the admin are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Count, Model

from billing_app.models import LedgerEntry, Token, User
from channels_app.models import Channel, Group, Option
from channels_app.options import OPTIONS, build_options
from relay_app.config_file import AUTO_GROUPS, Config
from relay_app.config_plan import Plan, chunks, option_change, same
from relay_app.config_prices import prune_prices
from relay_app.models import RequestLog
from relay_app.references import tokens_of, users_of

SHOWN_NAMES = 3  # of those that a notice counts


def plan_prune(plan: Plan, config: Config, groups: dict[str, Group]) -> None:
    """Plan what goes away, also from `groups`.

    Comes before the rest is planned, so that nothing counts on what goes away and the keys
    of tokens are free.
    """
    if "options" in config.sections:
        _prune_options(plan, config)
    if "channels" in config.sections:
        names = {row.name for row in config.channels}
        for channel in Channel.objects.only("name").order_by("name"):
            if channel.name not in names:
                plan.delete(channel, f"channel {channel.name}")
    if "users" in config.sections:
        _prune_users(plan, config)
    if "tokens" in config.sections:
        _prune_tokens(plan, config)
    if "prices" in config.sections:
        prune_prices(plan, config)
    if "groups" in config.sections:
        _prune_groups(plan, config, groups)


def _prune_options(plan: Plan, config: Config) -> None:
    """Options go back to their defaults; rows of other versions are left alone."""
    named = set(config.options)
    if "auto_groups" not in config.sections and AUTO_GROUPS not in named:
        named.add(AUTO_GROUPS)  # a section of its own
    for option in Option.objects.order_by("name"):
        spec = OPTIONS.get(option.name)
        if spec is None or option.name in named:
            continue
        default = spec.stored(spec.default)
        if same(option.value, default):
            continue
        plan.deletes.append(option)
        plan.lines.append(f"- option {option_change(option.name, option.value, default)}")


def _prune_users(plan: Plan, config: Config) -> None:
    """Users whose tokens the file has stay as well."""
    named = {row.name for row in config.users} | {row.user for row in config.tokens}
    gone = [
        user
        for user in User.objects.annotate(token_count=Count("tokens")).order_by("username")
        if user.username not in named
    ]
    kept = [user.username for user in gone if user.is_staff or user.is_superuser]
    if kept:
        plan.notices.append(f"users: {some(kept)}: of the admin, never pruned")
    gone = [user for user in gone if not (user.is_staff or user.is_superuser)]
    used = _with_logs("user_name", [user.username for user in gone])
    paid = _with_entries("wallet_id", [user.pk for user in gone])
    for user in gone:
        if user.username not in used and user.pk not in paid:
            count = user.token_count
            plan.delete(user, f"user {user.username}" + (f", tokens -{count}" if count else ""))
        elif user.is_active:
            user.is_active = False
            plan.save(user, ["is_active"])
            what = "the log has requests" if user.username in used else "the ledger has entries"
            plan.lines.append(f"~ user {user.username}: disabled, as {what} of it")


def _prune_tokens(plan: Plan, config: Config) -> None:
    named = {(row.user, row.name) for row in config.tokens}
    gone_users = {row.pk for row in plan.deletes if isinstance(row, User)}
    gone = [
        token
        for token in Token.objects.select_related("user").order_by("user__username", "name")
        if (token.user.username, token.name) not in named and token.user_id not in gone_users
    ]
    pks = [token.pk for token in gone]
    used = _with_logs("token_id", pks) | _with_entries("token_id", pks)
    for token in gone:
        label = f"token {token.user.username}/{token.name}"
        if token.pk not in used:
            plan.delete(token, label)
        elif token.is_enabled:
            token.is_enabled = False
            plan.save(token, ["is_enabled"])
            plan.lines.append(f"~ {label}: disabled, as the log has requests of it")


def _prune_groups(plan: Plan, config: Config, groups: dict[str, Group]) -> None:
    """Groups that go away can't be named by anything else in the file."""
    named = {row.name for row in config.groups}
    for name in sorted(groups.keys() - named):
        plan.delete(groups.pop(name), f"group {name}")


def note_stranded(plan: Plan) -> None:
    """Say who will still be of a group that goes away: nothing is left that it could use.

    Comes last: the file may give them another group.
    """
    names = {row.name for row in plan.deletes if isinstance(row, Group)}
    if not names:
        return
    gone = {(type(row), row.pk) for row in plan.deletes}
    planned = {(type(row), row.pk): row for row, _ in plan.saves}

    def still(row: Model) -> bool:
        key = (type(row), row.pk)
        return key not in gone and getattr(planned.get(key, row), "group", "") in names

    labels = [n.title for n in (*users_of(names), *tokens_of(names)) if still(n.row)]
    if names.intersection(_auto_groups(plan)):
        labels.append(f"option {AUTO_GROUPS}")
    if labels:
        plan.notices.append(f"groups: {some(labels)}: still of a group that is deleted")


def _auto_groups(plan: Plan) -> tuple[str, ...]:
    stored = dict(Option.objects.filter(name=AUTO_GROUPS).values_list("name", "value"))
    is_reset = any(isinstance(row, Option) and row.name == AUTO_GROUPS for row in plan.deletes)
    return build_options({} if is_reset else stored | plan.options).auto_groups


def some(names: list[str]) -> str:
    """Return the first of `names`, and how many more there are."""
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _with_entries(column: str, values: Sequence[Any]) -> set[Any]:
    """Return those of `values` that the ledger speaks of in this column."""
    entries = LedgerEntry.objects.order_by().values_list(column, flat=True).distinct()
    return {pk for part in chunks(values) for pk in entries.filter(**{f"{column}__in": part})}


def _with_logs(column: str, values: Sequence[Any]) -> set[Any]:
    """Return those of `values` that stand in this column of the request log."""
    logs = RequestLog.objects.order_by().values_list(column, flat=True).distinct()
    return {found for part in chunks(values) for found in logs.filter(**{f"{column}__in": part})}
