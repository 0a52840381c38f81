"""Admin pages of request logs: read-only, with the attempts of each request."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline

from relay_app.models import Attempt, RequestLog


class ReadOnly:
    """No adding, no changing: these rows say what happened."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class AttemptInline(ReadOnly, TabularInline):
    """The attempts of one request, in order."""

    model = Attempt
    extra = 0
    fields = (
        "number",
        "channel_name",
        "status",
        "failure_class",
        "message",
        "wait_ms",
        "duration_ms",
        "decision",
    )


@admin.register(RequestLog)
class RequestLogAdmin(ReadOnly, ModelAdmin):
    """Requests and how they ended."""

    list_display = (
        "created_at",
        "request_id",
        "token_name",
        "request_model",
        "status",
        "outcome",
        "chain",
        "duration_ms",
    )
    list_filter = ("status", "is_stream", "group")
    search_fields = ("request_id", "token_name", "request_model")
    date_hierarchy = "created_at"
    show_full_result_count = False
    inlines = (AttemptInline,)
