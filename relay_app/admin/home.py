"""The first page of the admin: what failed lately, how the channels are, where to go on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count
from django.http import HttpRequest
from django.utils import timezone

from channels_app.models import Channel, Status
from relay_app.admin.base import list_of_rows
from relay_app.admin.channels import STATUS_COLOURS, STATUS_WORDS
from relay_app.admin.navigation import may_see
from relay_app.admin.why import PERMISSION, status_colour, why_url
from relay_app.models import RequestLog

FAILURES = 10
# Failures have no index of their own: without an end, a table of successes is read whole.
DAYS = 7

admin.site.index_template = "relay_app/admin/home.html"
admin.site.index_title = "Overview"


def home(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the first page, with what the user may see."""
    may_see_requests = request.user.has_perm(PERMISSION)
    may_see_channels = may_see(request, "channels_app.view_channel")
    return context | {
        "may_see_requests": may_see_requests,
        "may_see_channels": may_see_channels,
        "failures": _failures() if may_see_requests else [],
        "failures_url": list_of_rows(RequestLog, "outcome=failed"),
        "days": DAYS,
        "channel_counts": _channel_counts() if may_see_channels else [],
    }


def _failures() -> list[dict[str, Any]]:
    """Return the requests that failed last, newest first."""
    since = timezone.now() - timedelta(days=DAYS)
    rows = RequestLog.objects.filter(created_at__gte=since).exclude(outcome="ok")
    return [
        {"row": row, "url": why_url(row.request_id), "colour": status_colour(row.status)}
        for row in rows.order_by("-created_at")[:FAILURES]
    ]


def _channel_counts() -> list[dict[str, Any]]:
    """Return how many channels there are in each status."""
    rows = Channel.objects.order_by().values_list("status").annotate(Count("pk"))
    found = dict(rows)
    return [
        {
            "word": STATUS_WORDS[status],
            "count": found.get(status, 0),
            "colour": STATUS_COLOURS[status],
            "url": list_of_rows(Channel, f"status__exact={status}"),
        }
        for status in Status.values
    ]
