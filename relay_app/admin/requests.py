"""The list of requests, to be read only. A row leads to its why page."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Exists, OuterRef, Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import (
    BooleanRadioFilter,
    DropdownFilter,
    FieldTextFilter,
    RangeNumericFilter,
    TextFilter,
)
from unfold.paginator import InfinitePaginator

from billing_app.models import Token
from channels_app.core.types import FailureClass
from relay_app.admin.base import (
    EMPTY,
    PlainAdmin,
    ReadOnly,
    column,
    link,
    moment_column,
    page_of,
    usd_column,
)
from relay_app.admin.filters import GroupNameFilter, MomentFilter
from relay_app.admin.why import status_colour, why_url
from relay_app.errors import RelayError
from relay_app.models import Attempt, RequestLog


class OutcomeFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Requests that went well, that failed, or that failed in one way."""

    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the outcomes."""
        classes = [(name.value, _in_words(name.value)) for name in FailureClass]
        own = [(code, f"relay: {_in_words(code)}") for code in sorted(_codes(RelayError))]
        return [("ok", "ok"), ("failed", "any failure"), *classes, *own]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[RequestLog]
    ) -> QuerySet[RequestLog]:
        """Return the requests with the chosen outcome."""
        if not self.value():
            return queryset
        if self.value() == "failed":
            return queryset.exclude(outcome="ok")
        return queryset.filter(outcome=self.value())


def _codes(kind: type[RelayError]) -> set[str]:
    """Return the codes of the relay's own errors, from `kind` down."""
    codes = {kind.code} - {None}
    return codes.union(*map(_codes, kind.__subclasses__()))  # type: ignore[return-value]  # no None


def _in_words(name: str) -> str:
    return name.lower().replace("_", " ")


class ChannelUsedFilter(TextFilter):  # type: ignore[misc]  # unfold is untyped
    """Requests with an attempt on a channel, given by its id or a part of its name."""

    title = "channel used (name or id)"
    parameter_name = "channel"

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[RequestLog]
    ) -> QuerySet[RequestLog]:
        """Return the requests that were sent there."""
        wanted = (self.value() or "").strip()
        if not wanted:
            return queryset
        attempts = Attempt.objects.filter(request=OuterRef("pk"))
        # Nineteen digits may be more than a column of 64 bits can hold.
        if wanted.isdecimal() and len(wanted) < 19:
            return queryset.filter(Exists(attempts.filter(channel_id=int(wanted))))
        return queryset.filter(Exists(attempts.filter(channel_name__icontains=wanted)))


@admin.register(RequestLog)
class RequestLogAdmin(ReadOnly, PlainAdmin):
    """Requests and how they ended."""

    list_display = (
        "why",
        "moment",
        "token_link",
        "asked",
        "model_name",
        "status_badge",
        "outcome",
        "channels",
        "cost",
        "duration",
    )
    list_display_links = None
    list_filter: ClassVar[Any] = (
        ("created_at", MomentFilter),
        ("status", RangeNumericFilter),
        OutcomeFilter,
        ("is_stream", BooleanRadioFilter),
        GroupNameFilter,
        ("user_name", FieldTextFilter),
        ("token_name", FieldTextFilter),
        ("request_model", FieldTextFilter),
        ChannelUsedFilter,
    )
    search_fields = ("request_id", "token_name", "user_name", "request_model")
    search_help_text = "Request id, token, user or model"
    # Counting a large table takes longer than reading a page of it.
    paginator = InfinitePaginator
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[RequestLog]:
        """Return requests with the names of the channels they were sent to."""
        queryset: QuerySet[RequestLog] = super().get_queryset(request)
        names = Attempt.objects.only("request_id", "channel_id", "channel_name")
        return queryset.prefetch_related(Prefetch("attempts", names.order_by("number")))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Lead to the why page, which says all that is known."""
        row = self.get_object(request, object_id)
        return HttpResponseRedirect(why_url(row.request_id if row else object_id))

    @column("Request")
    def why(self, row: RequestLog) -> SafeString:
        """Return a link to the why page; the first digits tell requests apart."""
        return link(why_url(row.request_id), row.request_id[:8])

    moment = moment_column("created_at", "When")

    @column("Token", ordering="token_name")
    def token_link(self, row: RequestLog) -> SafeString | str:
        """Return a link to the token, which may be gone: its page then says so."""
        if row.token_id is None:
            return EMPTY
        return link(page_of(Token, row.token_id), f"{row.user_name}/{row.token_name}")

    @column("Endpoint", ordering="endpoint")
    def asked(self, row: RequestLog) -> SafeString:
        """Return the method and the path, whether or not there is such an endpoint."""
        return format_html('<span class="relay-endpoint">{}</span>', row.endpoint)

    @column("Model", ordering="request_model")
    def model_name(self, row: RequestLog) -> str:
        """Return the model that was asked for; lists of models have none."""
        return row.request_model or EMPTY

    @column("Channels")
    def channels(self, row: RequestLog) -> SafeString | str:
        """Return the channels' names in the order they were asked, by their ids in a tooltip."""
        names = " → ".join(attempt.channel_name for attempt in row.attempts.all())
        if not names:
            return EMPTY
        return format_html('<span class="relay-chain" title="ids {}">{}</span>', row.chain, names)

    @column(
        "Status",
        ordering="status",
        label={"ok": "success", "client": "warning", "server": "danger"},
    )
    def status_badge(self, row: RequestLog) -> tuple[str, str]:
        """Return the status with its colour."""
        kinds = {"success": "ok", "warning": "client", "danger": "server"}
        return kinds[status_colour(row.status)], str(row.status)

    cost = usd_column("cost_nusd", "Cost")

    @column("Duration", ordering="duration_ms")
    def duration(self, row: RequestLog) -> str:
        """Return the duration in seconds, or in milliseconds below one."""
        ms = row.duration_ms
        return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.2f} s"
