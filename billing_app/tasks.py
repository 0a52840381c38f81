"""Celery tasks of money: refunds, and sessions whose process died."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import shared_task
from django.utils import timezone

from billing_app.core.operations import Done, Operation, Reap, Refund
from billing_app.core.session import State
from billing_app.ledger import run_batch
from billing_app.models import BillingSession, LedgerLease

logger = logging.getLogger(__name__)

BATCH = 500
# A dead lease is kept a while, for people who look for what happened.
KEEP_LEASES = timedelta(hours=1)


@shared_task(ignore_result=True)
def refund_due_sessions() -> int:
    """Refund every session that is marked `refund_due`; return how many were.

    Two workers may run it at once: each session is refunded once.
    """
    due = BillingSession.objects.filter(state=State.REFUND_DUE)
    return _end_all(due, lambda pk: Refund(session_id=pk))


@shared_task(ignore_result=True)
def reap_sessions() -> int:
    """Refund the sessions whose process died, and those that no task was queued for; return how
    many were."""
    now = timezone.now()
    live = LedgerLease.objects.filter(expires_at__gt=now).values("pk")
    orphans = BillingSession.objects.filter(state=State.RESERVED).exclude(lease_id__in=live)
    count = _end_all(orphans, lambda pk: Reap(session_id=pk))
    if count:
        logger.warning("sessions reaped", extra={"count": count})
    LedgerLease.objects.filter(expires_at__lt=now - KEEP_LEASES).delete()
    return count + refund_due_sessions()


def queue_refunds() -> None:
    """Have a worker run `refund_due_sessions`; without a broker the beat task does it later."""
    try:
        refund_due_sessions.apply_async(retry=False)
    except Exception as error:  # noqa: BLE001  # outermost edge: whatever the broker raises
        logger.warning("refunds wait for the next beat", extra={"error": str(error)})


def _end_all(sessions: Any, operation: Callable[[Any], Operation]) -> int:
    """End the sessions in batches; return how many ended here."""
    count = 0
    page = sessions.order_by("pk")
    while True:
        ids = list(page.values_list("pk", flat=True)[:BATCH])
        if not ids:
            return count
        outcomes = run_batch([operation(pk) for pk in ids])
        count += sum(isinstance(outcome, Done) for outcome in outcomes)
        page = page.filter(pk__gt=ids[-1])
