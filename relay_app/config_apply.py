"""Apply a configuration file: hold it against the database and write, all or nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import Model
from simple_history.utils import bulk_create_with_history

from billing_app.models import User, open_wallets
from channels_app.models import Channel, ChannelKey
from channels_app.services import options_set
from relay_app import signals
from relay_app.config_channels import plan_channels
from relay_app.config_file import Config, preset_options
from relay_app.config_plan import (
    Plan,
    check_auto_groups,
    chunks,
    plan_groups,
    plan_options,
    plan_users,
)
from relay_app.config_prices import plan_prices
from relay_app.config_prune import note_stranded, plan_prune
from relay_app.config_text import ConfigError
from relay_app.config_tokens import plan_tokens

# Names the lock to PostgreSQL; any number that nothing else of the project uses.
LOCK_ID = 7_101_520_331
PROGRESS_EVERY = 500  # channels; smaller files say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was done: one line for each thing that changed, and what people should know."""

    lines: list[str]
    notices: list[str]


def config_apply(
    config: Config,
    *,
    is_dry_run: bool = False,
    is_prune: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Write what `config` says and the database does not; return the differences.

    Rows that are as the file wants them are not saved. With `is_dry_run` everything is
    done and rolled back; `is_prune` takes away what named sections do not have. Raises
    ConfigError with all problems; then nothing has changed.
    """
    with transaction.atomic():
        config_lock()
        plan = _plan(config, is_prune=is_prune)
        if plan.problems:
            raise ConfigError(*plan.problems)
        _write(plan, progress)
        if is_dry_run:
            transaction.set_rollback(True)
    return Applied(lines=plan.lines, notices=plan.notices)


def preset_apply(name: str, *, is_dry_run: bool = False) -> list[str]:
    """Set the options of a preset as a file that names it would; return the differences."""
    return config_apply(Config(options=preset_options(name)), is_dry_run=is_dry_run).lines


def config_lock() -> None:
    """Make a second apply wait for this transaction. SQLite's exclude each other."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_ID])


def _plan(config: Config, *, is_prune: bool) -> Plan:
    plan = Plan(problems=list(config.problems))
    plan_options(plan, config)
    groups = plan_groups(plan, config)
    if is_prune:
        plan_prune(plan, config, groups)
    check_auto_groups(plan, config, groups)
    plan_channels(plan, config, groups)
    users = plan_users(plan, config, groups)
    plan_tokens(plan, config, groups=groups, users=users)
    plan_prices(plan, config)
    if is_prune:
        note_stranded(plan)
    return plan


def _write(plan: Plan, progress: Callable[[str], None]) -> None:
    options_set(values=plan.options)
    _delete(plan, progress)
    new: defaultdict[type[Model], list[Model]] = defaultdict(list)
    for row, fields in plan.saves:
        if fields is None:
            new[type(row)].append(row)
    # In the order of planning: a row comes after those that it belongs to.
    for model, rows in new.items():
        _insert(model, rows, progress)
    changed = [(row, fields) for row, fields in plan.saves if fields is not None]
    for done, (row, fields) in enumerate(changed, start=1):
        row.save(update_fields=fields)
        if done % PROGRESS_EVERY == 0:
            progress(f"{done} of {len(changed)} changed rows")
    _write_groups(plan)


def _delete(plan: Plan, progress: Callable[[str], None]) -> None:
    """Delete in bulk; the signals of each row still tell the snapshot and the history."""
    gone: defaultdict[type[Model], list[int]] = defaultdict(list)
    for row in plan.deletes:
        gone[type(row)].append(row.pk)
    channel_ids = gone.pop(Channel, [])
    for number, part in enumerate(chunks(channel_ids, size=PROGRESS_EVERY), start=1):
        # Secrets stay encrypted: those that no key opens any more can be deleted too.
        ChannelKey.objects.filter(channel_id__in=part).defer("value").delete()
        Channel.objects.filter(pk__in=part).defer("proxy").delete()
        if len(part) == PROGRESS_EVERY:
            progress(f"{number * PROGRESS_EVERY} of {len(channel_ids)} channels deleted")
    for part in chunks(gone.pop(ChannelKey, [])):
        ChannelKey.objects.filter(pk__in=part).defer("value").delete()
    for model, ids in gone.items():
        for part in chunks(ids):
            model._default_manager.filter(pk__in=part).delete()  # noqa: SLF001 - public API


def _insert(model: type[Model], rows: list[Model], progress: Callable[[str], None]) -> None:
    """Insert new rows in bulk, with their history, and tell the snapshot of them."""
    section, attribute = signals.WATCHED[model._meta.label]  # noqa: SLF001 - public API
    done = 0
    for part in chunks(rows, size=PROGRESS_EVERY):
        created = bulk_create_with_history(list(part), model, default_change_reason=None)
        if model is User:
            open_wallets(created)
        ids = [getattr(row, attribute) for row in part]
        signals.note(section, ids, using=connection.alias)
        done += len(part)
        if model is Channel and done % PROGRESS_EVERY == 0:
            progress(f"{done} of {len(rows)} channels")


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
