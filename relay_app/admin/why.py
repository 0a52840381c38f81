"""The why page: one request by its id, who asked for what, and what each attempt met."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode

from billing_app.core.money import show_usd
from billing_app.core.operations import Kind
from billing_app.models import BillingSession, Token, User
from channels_app.models import Channel, ChannelKey, Group
from relay_app.admin.base import page_of, usd_text
from relay_app.models import Attempt, RequestLog

PERMISSION = "relay_app.view_requestlog"
# Error texts end in "(request id: ...)"; people paste all of it.
_IN_ERROR_TEXT = re.compile(r"request[ _-]?id\W{1,4}([\w-]{1,64})", re.IGNORECASE)
ID_CHARS = 64  # what the column holds

# What followed an attempt, by the reason that the retry decision gave.
DECISIONS = {
    "next key": "The key is at fault: the same channel was asked with another one.",
    "same channel": "Such a fault passes: the same channel was asked again.",
    "model fallback": "No channel was left for this model: another one was asked for.",
    "answered": "It answered: the request ended here.",
    "client gone": "The client had hung up, so nobody waited for another attempt.",
    "relay stopped": "The relay was told to stop and could not wait for it any longer.",
    "answer begun": "Part of the answer had been sent, so it could not begin anew.",
    "specific channel": "The client asked for this channel alone.",
    "affinity": "The client is bound to this channel.",
    "channel error": "The channel is set up wrongly: another attempt was allowed.",
    "not curable": "No channel would answer this request differently.",
    "no attempts left": "The budget of attempts (option RetryTimes) was used up.",
    "status 2xx": "The upstream called it a success, which is not asked for twice.",
    "no answer": "No HTTP answer came: another attempt was allowed.",
    "status 504 or 524": "A 504 or 524 is never sent again: the upstream may still work on it.",
    "retryable status": "The status is one that another attempt may cure.",
    "fault of the account": "The account is at fault, so another channel may do better.",
    "status not retryable": "The status is not among those that another attempt may cure.",
    "no channel left": "No other channel was left to ask.",
    "all full": "All channels that were left were at their limits.",
    "no switches left": "No more changes of channel were allowed (MaxSwitchesPerRequest).",
    "not covered": "The account or the token has too little money for it: nothing was sent.",
    "no price": "The model has no price, and option AllowUnpricedModels is off: nothing was sent.",
    "total time limit": "The time for all attempts (option TotalTimeout) was over.",
}


# What entries of the ledger are for.
KINDS = {
    Kind.TOP_UP.value: "top-up",
    Kind.ADJUSTMENT.value: "adjustment",
    Kind.REDEMPTION.value: "code redeemed",
    Kind.RESERVE.value: "reserved",
    Kind.SETTLE.value: "settled",
    Kind.REFUND.value: "refunded",
    Kind.TASK_REFUND.value: "task refunded",
    Kind.FEE.value: "fee",
}


# What became of a request's money, by the state of its bill.
BILLS = {
    "settled": "charged by what was used",
    "refunded": "failed, so what was reserved is given back",
    "trusted": "failed; nothing was reserved, as the account has more than TrustQuota",
    "reserved": "reserved, not settled yet",
    "free": "it cost nothing",
    "unpriced": "the model has no price, which option AllowUnpricedModels allows",
    "fee": "the provider's fee for a blocked prompt",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One attempt as the page shows it."""

    attempt: Attempt
    channel_url: str
    key_hint: str
    colour: str
    decision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLine:
    """One entry of the ledger as the page shows it."""

    created_at: datetime
    kind: str
    amount: str
    balance: str


def why_url(request_id: str) -> str:
    """Return the address of a request's why page."""
    return f"{reverse('why')}?{urlencode({'id': request_id})}"


def request_id_in(text: str) -> str:
    """Return the request id in what somebody pasted: the id alone or a whole error text."""
    found = _IN_ERROR_TEXT.search(text)
    return found[1] if found else text.strip()


def status_colour(status: int | None) -> str:
    """Return the colour of an HTTP status; None is no answer at all."""
    if status is None or status >= 500:
        return "danger"
    return "success" if 200 <= status < 300 else "warning"


def why(request: HttpRequest) -> HttpResponse:
    """Show the request that `?id=` names, or say why there is none."""
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    wanted = request_id_in(request.GET.get("id", ""))
    row = _find(wanted)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Why?",
        "wanted": wanted[:ID_CHARS],
        "row": row,
        "days": _days_kept(),
    }
    if row is not None:
        context |= {
            "lines": _lines(list(row.attempts.order_by("number"))),
            "colour": status_colour(row.status),
            "cost": show_usd(row.cost_nusd or 0),
            "bill": BILLS.get(row.billing, row.billing),
            "ratio": _ratio(row),
            **_books(request, row),
            "stop": DECISIONS.get(row.stop_reason, row.stop_reason),
            "user_url": _url_of_user(row),
            "token_url": _url_of_token(row),
        }
    status = 404 if wanted and row is None else 200
    return TemplateResponse(request, "relay_app/admin/why.html", context, status=status)


def _find(wanted: str) -> RequestLog | None:
    if not wanted or len(wanted) > ID_CHARS or "\x00" in wanted:
        return None
    return RequestLog.objects.filter(request_id=wanted.lower()).first() or (
        RequestLog.objects.filter(request_id=wanted).first()
    )


def _lines(attempts: Collection[Attempt]) -> list[AttemptLine]:
    """Return the attempts with what can still be said of their channels and keys."""
    channels = set(
        Channel.objects.filter(pk__in={a.channel_id for a in attempts}).values_list("pk", flat=True)
    )
    hints = dict(
        ChannelKey.objects.filter(pk__in={a.key_id for a in attempts if a.key_id}).values_list(
            "pk", "hint"
        )
    )
    return [
        AttemptLine(
            attempt=attempt,
            channel_url=page_of(Channel, attempt.channel_id)
            if attempt.channel_id in channels
            else "",
            key_hint=hints.get(attempt.key_id, "deleted") if attempt.key_id else "none",
            colour=status_colour(attempt.status if not attempt.failure_class else 500),
            decision=DECISIONS.get(attempt.decision, attempt.decision),
        )
        for attempt in attempts
    ]


def _books(request: HttpRequest, row: RequestLog) -> dict[str, Any]:
    """Return the entries of the request and the page of its session, as far as they may be
    seen."""
    found: dict[str, Any] = {}
    session = BillingSession.objects.filter(request_id=row.request_id).first()
    if session is None:
        return found
    if request.user.has_perm("billing_app.view_billingsession"):
        found["session_url"] = page_of(BillingSession, session.pk)
    if request.user.has_perm("billing_app.view_ledgerentry"):
        found["entries"] = [
            EntryLine(
                created_at=entry.created_at,
                kind=KINDS.get(entry.kind, entry.kind),
                amount=usd_text(entry.amount_nusd, is_signed=True),
                balance=usd_text(entry.balance_nusd),
            )
            for entry in session.entries.order_by("pk")
        ]
    return found


def _ratio(row: RequestLog) -> str:
    """Return the ratio of the request's group as it is now; empty if it is 1 or changed nothing."""
    from channels_app.routing_table import load_options

    if not row.cost_nusd:
        return ""
    user_group = User.objects.filter(username=row.user_name).values_list("group", flat=True)
    ratio = load_options().group_group_ratio.get(user_group.first() or "", {}).get(row.group)
    if ratio is None:
        ratio = Group.objects.filter(name=row.group).values_list("ratio", flat=True).first()
    return "" if ratio in (None, 1) else f"{ratio.normalize():f}"


def _url_of_user(row: RequestLog) -> str:
    user = User.objects.filter(username=row.user_name).only("pk").first()
    return page_of(User, user.pk) if user else ""


def _url_of_token(row: RequestLog) -> str:
    is_there = row.token_id is not None and Token.objects.filter(pk=row.token_id).exists()
    return page_of(Token, row.token_id) if is_there else ""


def _days_kept() -> int:
    from channels_app.routing_table import load_options

    return load_options().request_log_days
