"""The list of billing sessions, to be read only: what each request holds or was charged."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.paginator import InfinitePaginator

from billing_app.core.session import HOLDING, State
from billing_app.models import BillingSession, LedgerEntry, Token, Wallet
from relay_app.admin.base import (
    EMPTY,
    PlainAdmin,
    ReadOnly,
    column,
    link,
    list_of_rows,
    moment_column,
    page_of,
    usd_column,
)
from relay_app.admin.filters import MomentFilter
from relay_app.admin.why import why_url

STATES = {
    State.RESERVED.value: "reserved",
    State.REFUND_DUE.value: "refund due",
    State.SETTLED.value: "settled",
    State.REFUNDED.value: "refunded",
    State.REAPED.value: "reaped",
}
STATE_COLOURS = {
    STATES[State.RESERVED]: "info",
    STATES[State.REFUND_DUE]: "warning",
    STATES[State.SETTLED]: "success",
    STATES[State.REAPED]: "danger",
}
OPEN = "open"


class StateFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Sessions in one state, or in any that still holds money."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the states."""
        words = {**STATES, State.REAPED.value: "reaped: the process died"}
        return [(OPEN, "open: reserved or refund due"), *words.items()]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[BillingSession]
    ) -> QuerySet[BillingSession]:
        """Return the sessions in the chosen state."""
        if not self.value():
            return queryset
        states = HOLDING if self.value() == OPEN else {self.value()}
        return queryset.filter(state__in=states)


@admin.register(BillingSession)
class BillingSessionAdmin(ReadOnly, PlainAdmin):
    """Sessions of money: open ones first, then those that ended last."""

    list_display = (
        "moment",
        "state_badge",
        "owner",
        "token_link",
        "request_link",
        "reserved",
        "charged",
        "fee",
        "ended",
    )
    list_filter: ClassVar[Any] = (("created_at", MomentFilter), StateFilter)
    list_select_related = ("wallet__user", "token__user")
    search_fields = ("request_id", "wallet__user__username", "token__name")
    search_help_text = "Request id, account or token"
    # The end has an index; open sessions have none yet.
    ordering: ClassVar[Any] = (F("ended_at").desc(nulls_first=True),)
    paginator = InfinitePaginator
    show_full_result_count = False
    fields = (*list_display, "entries_link")
    readonly_fields = fields

    moment = moment_column("created_at", "Begun")
    ended = moment_column("ended_at", "Ended")
    reserved = usd_column("reserved_nusd", "Reserved")
    charged = usd_column("settled_nusd", "Charged")
    fee = usd_column("fee_nusd", "Fee")

    @column("State", ordering="state", label=STATE_COLOURS)
    def state_badge(self, session: BillingSession) -> str:
        """Return the state."""
        return STATES.get(session.state, session.state)

    @column("Account", ordering="wallet__user__username")
    def owner(self, session: BillingSession) -> SafeString:
        """Return a link to the wallet."""
        return link(page_of(Wallet, session.wallet_id), session.wallet.user.username)

    @column("Token", ordering="token__name")
    def token_link(self, session: BillingSession) -> SafeString | str:
        """Return a link to the token."""
        return link(page_of(Token, session.token_id), session.token) if session.token_id else EMPTY

    @column("Request", ordering="request_id")
    def request_link(self, session: BillingSession) -> SafeString:
        """Return a link to the request's why page."""
        return link(why_url(session.request_id), session.request_id[:8])

    @column("Entries")
    def entries_link(self, session: BillingSession) -> SafeString:
        """Return a link to the session's entries in the ledger."""
        return link(list_of_rows(LedgerEntry, f"session__pk__exact={session.pk}"), "entries")
