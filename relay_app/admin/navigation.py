"""The sidebar, and what the search of the admin finds beyond its pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from unfold.dataclasses import SearchResult

from billing_app.models import Token, User
from channels_app.models import Channel
from relay_app.admin.base import page_of
from relay_app.admin.why import PERMISSION, request_id_in, why_url

FOUND_EACH = 10  # rows of each kind; more would hide the other kinds
_REQUEST_ID = re.compile(r"[0-9a-f]{32}")

# Title, icon, page, permission.
SECTIONS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    (
        "Traffic",
        (
            ("Requests", "list_alt", "admin:relay_app_requestlog_changelist", PERMISSION),
            ("Why?", "troubleshoot", "why", PERMISSION),
        ),
    ),
    (
        "Routing",
        (
            (
                "Channels",
                "cable",
                "admin:channels_app_channel_changelist",
                "channels_app.view_channel",
            ),
            (
                "Groups",
                "workspaces",
                "admin:channels_app_group_changelist",
                "channels_app.view_group",
            ),
            ("Options", "tune", "admin:channels_app_option_changelist", "channels_app.view_option"),
        ),
    ),
    (
        "Money",
        (
            ("Wallets", "wallet", "admin:billing_app_wallet_changelist", "billing_app.view_wallet"),
            (
                "Ledger",
                "receipt_long",
                "admin:billing_app_ledgerentry_changelist",
                "billing_app.view_ledgerentry",
            ),
            (
                "Sessions",
                "hourglass_top",
                "admin:billing_app_billingsession_changelist",
                "billing_app.view_billingsession",
            ),
            ("Prices", "sell", "admin:billing_app_price_changelist", "billing_app.view_price"),
            (
                "Codes",
                "redeem",
                "admin:billing_app_redemptioncode_changelist",
                "billing_app.view_redemptioncode",
            ),
        ),
    ),
    (
        "Clients",
        (
            ("Users", "person", "admin:billing_app_user_changelist", "billing_app.view_user"),
            ("Tokens", "key", "admin:billing_app_token_changelist", "billing_app.view_token"),
            ("Roles", "badge", "admin:auth_group_changelist", "auth.view_group"),
        ),
    ),
)


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the sidebar's sections, with the pages that the user may see."""
    sections = []
    for title, pages in SECTIONS:
        items = [
            {"title": name, "icon": icon, "link": reverse(page)}
            for name, icon, page, permission in pages
            if may_see(request, permission)
        ]
        if items:
            sections.append({"title": title, "separator": True, "items": items})
    return sections


def search(request: HttpRequest, term: str) -> list[SearchResult]:
    """Return a request by its id, and channels, users and tokens by their names."""
    found = []
    request_id = request_id_in(term)
    if _REQUEST_ID.fullmatch(request_id) and request.user.has_perm(PERMISSION):
        found.append(_result(request_id, "Why page of a request", why_url(request_id), "search"))
    names: Iterable[tuple[Any, str, tuple[str, ...], str]] = (
        (Channel, "name", ("name",), "Channel"),
        (User, "username", ("username",), "User"),
        (Token, "name", ("user__username", "name"), "Token"),
    )
    for model, field, parts, kind in names:
        label = model._meta.label_lower.replace(".", ".view_")  # noqa: SLF001 - public API
        if not may_see(request, label):
            continue
        rows = model.objects.filter(**{f"{field}__icontains": term}).order_by(field)
        for pk, *shown in rows.values_list("pk", *parts)[:FOUND_EACH]:
            found.append(_result("/".join(shown), kind, page_of(model, pk), "arrow_forward"))
    return found


def may_see(request: HttpRequest, permission: str) -> bool:
    """Return whether the user may view the rows, or change them, which includes it."""
    return request.user.has_perm(permission) or request.user.has_perm(
        permission.replace(".view_", ".change_")
    )


def _result(title: str, description: str, link: str, icon: str) -> SearchResult:
    return SearchResult(title=title, description=description, link=link, icon=icon)
