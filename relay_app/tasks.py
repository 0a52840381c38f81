"""Celery tasks that keep the relay's own tables small."""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import shared_task
from django.db.models.functions import Now
from django.utils import timezone

from channels_app.routing_table import load_options
from relay_app.models import RequestLog, SnapshotChange

logger = logging.getLogger(__name__)

# Processes look back 90 s; older changes are of no use to anyone.
KEEP_CHANGES = timedelta(minutes=30)
BATCH = 1_000


@shared_task(ignore_result=True)
def prune_snapshot_changes() -> int:
    """Delete changes that every process has taken in; return how many."""
    deleted, _ = SnapshotChange.objects.filter(changed_at__lt=Now() - KEEP_CHANGES).delete()
    return deleted


@shared_task(ignore_result=True)
def prune_request_logs() -> int:
    """Delete request logs older than option RequestLogDays; return how many.

    In batches, each a short transaction, so that writers are never held up for long.
    """
    days = load_options().request_log_days
    if not days:
        return 0
    cutoff = timezone.now() - timedelta(days=days)
    total = 0
    while True:
        old = RequestLog.objects.filter(created_at__lt=cutoff).order_by("pk")
        ids = list(old.values_list("pk", flat=True)[:BATCH])
        if not ids:
            break
        RequestLog.objects.filter(pk__in=ids).delete()
        total += len(ids)
    if total:
        logger.info("request logs pruned", extra={"count": total})
    return total
