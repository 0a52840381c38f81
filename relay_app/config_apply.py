"""Apply a configuration file: hold it against the database and write, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.db import connection, transaction

from channels_app.models import Channel
from channels_app.services import options_set
from relay_app import signals
from relay_app.config_channels import plan_channels
from relay_app.config_file import Config
from relay_app.config_plan import Plan, plan_groups, plan_options, plan_tokens, plan_users
from relay_app.config_text import ConfigError

# Names the lock to PostgreSQL; any number that nothing else of the project uses.
LOCK_ID = 7_101_520_331
PROGRESS_EVERY = 500  # channels; smaller files say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was done: one line for each thing that changed, and what people should know."""

    lines: list[str]
    notices: list[str]


def config_apply(
    config: Config, *, is_dry_run: bool = False, progress: Callable[[str], None] = lambda _: None
) -> Applied:
    """Write what `config` says and the database does not; return the differences.

    Rows that are as the file wants them are not saved. With `is_dry_run` everything is
    done and rolled back. Raises ConfigError with all problems; then nothing has changed.
    """
    with transaction.atomic():
        _lock()
        plan = _plan(config)
        if plan.problems:
            raise ConfigError(*plan.problems)
        _write(plan, progress)
        if is_dry_run:
            transaction.set_rollback(True)
    return Applied(lines=plan.lines, notices=plan.notices)


def _lock() -> None:
    """Make a second apply wait for this one. SQLite's transactions exclude each other."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_ID])


def _plan(config: Config) -> Plan:
    plan = Plan(problems=list(config.problems))
    plan_options(plan, config)
    groups = plan_groups(plan, config)
    plan_channels(plan, config, groups)
    users = plan_users(plan, config, groups)
    plan_tokens(plan, config, groups=groups, users=users)
    return plan


def _write(plan: Plan, progress: Callable[[str], None]) -> None:
    options_set(values=plan.options)
    for gone in plan.deletes:
        gone.delete()
    total = sum(isinstance(row, Channel) for row, _ in plan.saves)
    written = 0
    for row, fields in plan.saves:
        if fields is None:
            row.save(force_insert=True)
        else:
            row.save(update_fields=fields)
        if isinstance(row, Channel):
            written += 1
            if written % PROGRESS_EVERY == 0:
                progress(f"{written} of {total} channels")
    _write_groups(plan)


def _write_groups(plan: Plan) -> None:
    """Write who joins and leaves which group, in bulk, and tell the snapshot of it."""
    through = Channel.groups.through
    through.objects.bulk_create(
        [through(channel_id=channel.pk, group_id=group.pk) for channel, group in plan.joins],
        batch_size=PROGRESS_EVERY,
    )
    for channel, group in plan.leaves:
        through.objects.filter(channel_id=channel.pk, group_id=group.pk).delete()
    channel_ids = {channel.pk for channel, _ in [*plan.joins, *plan.leaves]}
    if channel_ids:
        signals.note("channels", channel_ids, using=connection.alias)
