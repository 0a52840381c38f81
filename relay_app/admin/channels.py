"""Pages of channels: the list with its filters and actions, and one channel's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.contrib import admin, messages
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import (
    ChoicesDropdownFilter,
    DropdownFilter,
    RelatedDropdownFilter,
    TextFilter,
)

from channels_app.models import Channel, ChannelKey, Group, Status
from channels_app.services import channel_copy, channels_set_enabled
from relay_app.admin.base import (
    EMPTY,
    HistoryAdmin,
    button,
    column,
    go_to,
    links,
    list_action,
    list_of_rows,
    moment_column,
    page_of,
)
from relay_app.admin.channel_forms import ChannelForm, ChannelKeyInline, DisableForm
from relay_app.admin.deletion import PlainDeletion, lost_service, namers_of_channels
from relay_app.config_fields import without_password
from relay_app.providers.registry import ADAPTERS
from relay_app.references import Namer

STATUS_COLOURS = {
    Status.ENABLED.value: "success",
    Status.DISABLED.value: "warning",
    Status.AUTO_DISABLED.value: "danger",
}
STATUS_WORDS = {
    Status.ENABLED.value: "enabled",
    Status.DISABLED.value: "disabled by hand",
    Status.AUTO_DISABLED.value: "disabled automatically",
}


class TypeFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Channels of one provider type."""

    title = "type"
    parameter_name = "provider"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the provider types."""
        return [(name, name) for name in ADAPTERS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Channel]) -> QuerySet[Channel]:
        """Return the channels of the chosen type."""
        return queryset.filter(provider=self.value()) if self.value() else queryset


class ModelTextFilter(TextFilter):  # type: ignore[misc]  # unfold is untyped
    """Channels with a model whose name contains a text."""

    title = "model name"
    parameter_name = "model"

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the channels that list such a model."""
        return queryset.filter(models_text__icontains=self.value()) if self.value() else queryset


class SpecialFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Channels with something that most have not."""

    title = "special"
    parameter_name = "special"
    conditions: ClassVar[dict[str, tuple[str, Q]]] = {
        "limits": ("rate limits", ~Q(limits={})),
        "timeouts": ("time limits of its own", ~Q(timeouts={})),
        "mapping": ("model mapping", ~Q(model_mapping={})),
        "overrides": ("overrides", ~Q(param_override={}) | ~Q(header_override={})),
        "fault_domain": ("fault domain", ~Q(fault_domain="")),
        "by_model": ("health by model", Q(health_scope=Channel.HealthScope.MODEL)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return what there is to have."""
        return [(name, words) for name, (words, _) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Channel]) -> QuerySet[Channel]:
        """Return the channels that have it."""
        chosen = self.conditions.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(chosen[1])


@admin.register(Channel)
class ChannelAdmin(PlainDeletion, HistoryAdmin):
    """Every setting of a channel on one page."""

    form = ChannelForm
    inlines = (ChannelKeyInline,)
    autocomplete_fields = ("groups",)
    list_display = (
        "name",
        "number",
        "status_badge",
        "type",
        "group_links",
        "model_count",
        "key_count",
        "priority",
        "weight",
    )
    list_editable = ("priority", "weight")
    list_filter: ClassVar[Any] = (
        ("status", ChoicesDropdownFilter),
        TypeFilter,
        ("groups", RelatedDropdownFilter),
        ModelTextFilter,
        SpecialFilter,
    )
    search_fields = ("name", "base_url", "models_text", "fault_domain")
    search_help_text = "Name, address, model or fault domain"
    actions = ("enable_selected", "disable_selected", "copy_selected")
    actions_row = ("enable", "disable", "copy")
    actions_detail = ("enable", "disable", "copy")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        """Return channels with what their columns and the search need."""
        queryset: QuerySet[Channel] = super().get_queryset(request)
        return (
            queryset.prefetch_related("groups")
            .alias(models_text=Cast("model_names", TextField()))
            .annotate(keys_in_use=_key_count(Q(status=Status.ENABLED)), keys_in_all=_key_count(Q()))
        )

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Return whether channels may be added; unfold's buttons also pass a row."""
        may_add: bool = super().has_add_permission(request)
        return may_add

    def get_fieldsets(self, request: HttpRequest, obj: Channel | None = None) -> Any:
        """Return the page's parts; what may hold credentials is for editors only."""
        may_edit = self.has_change_permission(request, obj)
        changes: list[str] = ["model_mapping", "param_override"]
        changes += ["header_override"] if may_edit else ["header_names"]
        network = ["proxy_state"]
        if may_edit:
            has_proxy = obj is not None and bool(obj.proxy)
            network = ["new_proxy", *(["is_proxy_removed"] if has_proxy else []), "settings"]
        address = "base_url" if may_edit else "address"
        state = ["status", "auto_ban"]
        if obj is not None:
            state += ["status_reason", "status_changed", "created"]
        return (
            (None, {"fields": ("name", "provider", address)}),
            ("Routing", {"fields": ("groups", "model_names", ("priority", "weight"))}),
            ("State", {"fields": state}),
            ("Keys and tests", {"fields": ("key_mode", "test_model")}),
            (
                "Limits and health",
                {
                    "fields": (
                        "limits",
                        "timeouts",
                        "status_code_mapping",
                        ("health_scope", "fault_domain"),
                    ),
                    "classes": ["collapse"],
                },
            ),
            ("Changes to requests", {"fields": changes, "classes": ["collapse"]}),
            (
                "Proxy and special cases",
                {
                    "fields": (*network, "supports_prefill", "bill_upstream_model"),
                    "classes": ["collapse"],
                },
            ),
        )

    def get_readonly_fields(
        self, request: HttpRequest, obj: Channel | None = None
    ) -> tuple[str, ...]:
        """Keep the status for the buttons: a form opened earlier must not undo what the
        relay did meanwhile."""
        fields = (
            "status_reason",
            "status_changed",
            "created",
            "address",
            "header_names",
            "proxy_state",
        )
        return (*fields, "status") if obj else fields

    def save_model(self, request: HttpRequest, obj: Channel, form: Any, change: bool) -> None:
        """Save the channel and say what was completed."""
        super().save_model(request, obj, form, change)
        for notice in getattr(form, "notices", ()):
            self.message_user(request, notice, messages.WARNING)

    def blockers(self, rows: Sequence[Channel]) -> list[Namer]:
        """Return the tokens that may use one of the channels alone."""
        return namers_of_channels(rows)

    def losses(self, rows: Sequence[Channel]) -> list[SafeString]:
        """Return which groups lose what, and who is in them."""
        return lost_service(rows)

    status_changed = moment_column("status_changed_at", "Status changed")
    created = moment_column("created_at", "Created")

    @column("Base URL")
    def address(self, channel: Channel) -> str:
        """Return the address without a password in it."""
        return without_password(channel.base_url)

    @column("Headers to override")
    def header_names(self, channel: Channel) -> str:
        """Return the names of the headers: their values may be credentials."""
        return ", ".join(channel.header_override or ()) or EMPTY

    @column("Proxy")
    def proxy_state(self, channel: Channel) -> str:
        """Return whether there is a proxy, which may have a password."""
        return "set" if channel.proxy else "none"

    @column("Id", ordering="pk")
    def number(self, channel: Channel) -> str:
        """Return the id, which log lines and chains name."""
        return str(channel.pk)

    @column("Status", ordering="status")
    def status_badge(self, channel: Channel) -> SafeString:
        """Return the word for the status, and below it why the channel is not in use."""
        word = STATUS_WORDS.get(channel.status, channel.status)
        colours = {"text": word, "type": STATUS_COLOURS.get(channel.status, "")}
        badge = render_to_string("unfold/helpers/label.html", colours)
        reason = "" if channel.status == Status.ENABLED else channel.status_reason
        if not reason:
            return badge
        note = '<p class="relay-note relay-reason" title="{}">{}</p>'
        return format_html("<div>{}" + note + "</div>", badge, reason, reason)

    @column("Type", ordering="provider")
    def type(self, channel: Channel) -> str:
        """Return the provider type."""
        return channel.provider

    @column("Groups")
    def group_links(self, channel: Channel) -> SafeString | str:
        """Return links to the channel's groups."""
        return links((page_of(Group, g.pk), g.name) for g in channel.groups.all())

    @column("Models")
    def model_count(self, channel: Channel) -> int:
        """Return how many models the channel lists."""
        return len(channel.model_names or ())

    @column("Keys", ordering="keys_in_all")
    def key_count(self, channel: Any) -> str:
        """Return how many keys there are, and how many of them are in use if not all."""
        in_use, in_all = channel.keys_in_use, channel.keys_in_all
        return str(in_all) if in_use == in_all else f"{in_use} of {in_all}"

    @list_action("Enable", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Channel]) -> None:
        """Enable the channels that are ticked."""
        self._set_enabled(request, list(queryset.values_list("pk", flat=True)), is_enabled=True)

    @list_action("Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Channel]) -> None:
        """Disable the channels that are ticked."""
        self._set_enabled(request, list(queryset.values_list("pk", flat=True)), is_enabled=False)

    @list_action("Copy with keys", permissions=["add"])
    def copy_selected(
        self, request: HttpRequest, queryset: QuerySet[Channel]
    ) -> HttpResponse | None:
        """Copy the channels that are ticked; lead to the copy if it is one."""
        copies = [channel_copy(channel=channel) for channel in queryset]
        names = ", ".join(copy.name for copy in copies)
        self.message_user(request, f"Copied, disabled by hand: {names}", messages.SUCCESS)
        return HttpResponseRedirect(page_of(Channel, copies[0].pk)) if len(copies) == 1 else None

    @button(
        "Enable",
        icon="play_arrow",
        permissions=["change"],
        question="Requests may be sent to the channel again.",
    )
    def enable(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Enable one channel."""
        channel = self._channel(request, object_id)
        self._set_enabled(request, [channel.pk], is_enabled=True)
        return self._back(request)

    @button(
        "Disable",
        icon="pause",
        permissions=["change"],
        question="No further request is sent to the channel; running ones go on.",
        form_class=DisableForm,
    )
    def disable(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Disable one channel, with a reason."""
        channel = self._channel(request, object_id)
        reason = form.cleaned_data["reason"]
        self._set_enabled(request, [channel.pk], is_enabled=False, reason=reason)
        return self._back(request)

    @button(
        "Copy",
        icon="content_copy",
        permissions=["add"],
        question="Makes a channel with the same settings, groups and keys, disabled by hand.",
    )
    def copy(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Copy one channel and lead to the copy."""
        copy = channel_copy(channel=self._channel(request, object_id))
        self.message_user(request, f"This is {copy.name}, disabled by hand.", messages.SUCCESS)
        return go_to(request, page_of(Channel, copy.pk))

    def _channel(self, request: HttpRequest, object_id: str) -> Channel:
        channel: Channel | None = self.get_object(request, object_id)
        if channel is None:
            raise Http404(f"no channel {object_id}")
        return channel

    def _set_enabled(
        self, request: HttpRequest, channel_ids: list[int], *, is_enabled: bool, reason: str = ""
    ) -> None:
        who = request.user.get_username()
        why = f"{who}: {reason}" if reason else f"by {who}"
        count = channels_set_enabled(channel_ids=channel_ids, is_enabled=is_enabled, reason=why)
        word = "enabled" if is_enabled else "disabled"
        noun = "channel" if count == 1 else "channels"
        self.message_user(request, f"{count} {noun} {word}.", messages.SUCCESS)

    def _back(self, request: HttpRequest) -> HttpResponse:
        """Return to the page that the dialog was opened on."""
        # Its path alone: behind a proxy the scheme and host may be others than ours.
        page = urlsplit(request.headers.get("HX-Current-URL", ""))
        url = f"{page.path}?{page.query}" if page.query else page.path
        return go_to(request, url or list_of_rows(Channel))


def _key_count(condition: Q) -> Coalesce:
    """Return a count of keys that does not multiply with other joins."""
    keys = ChannelKey.objects.filter(condition, channel=OuterRef("pk")).order_by()
    count = keys.values("channel").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(count, output_field=IntegerField()), 0)
