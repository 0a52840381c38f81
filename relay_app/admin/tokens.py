"""Pages of tokens. A token's key is shown once, on the page that answers its making."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from unfold.contrib.filters.admin import DropdownFilter

from billing_app.core.money import show_usd
from billing_app.models import BillingSession, LedgerEntry, Token, User
from billing_app.services import limit_fault, token_give_key, tokens_set_enabled
from billing_app.usage_report import token_usage
from channels_app.models import Channel
from relay_app.admin.base import (
    HistoryAdmin,
    column,
    link,
    list_action,
    list_of_rows,
    moment_column,
    page_of,
    usd_text,
)
from relay_app.admin.deletion import PlainDeletion
from relay_app.admin.fields import GroupNameField, LimitField, NamesField, UsdField, checked
from relay_app.admin.filters import GroupNameFilter
from relay_app.config_fields import model_name, nearest, network, shown, text
from relay_app.config_notes import closed_to_token, groups_of

AMOUNTS = ("limit_nusd", "daily_limit_nusd", "monthly_limit_nusd")
RATES = ("rpm", "tpm", "concurrency")
STATE_COLOURS = {
    "active": "success",
    "disabled": "warning",
    "expired": "danger",
    "owner inactive": "danger",
    "exhausted": "danger",
}


class StateFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Tokens in one state."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the states."""
        return [(state, state) for state in STATE_COLOURS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Token]) -> QuerySet[Token]:
        """Return the tokens in the chosen state."""
        expired = Q(expires_at__isnull=False, expires_at__lte=timezone.now())
        usable = Q(is_enabled=True, user__is_active=True)
        exhausted = Q(is_unlimited=False, spent_of_it__gte=F("limit_of_it"))
        conditions = {
            "active": usable & ~expired & ~exhausted,
            "disabled": Q(is_enabled=False),
            "owner inactive": Q(is_enabled=True, user__is_active=False),
            "expired": usable & expired,
            "exhausted": usable & ~expired & exhausted,
        }
        condition = conditions.get(self.value() or "")
        if condition is None:
            return queryset
        # Without a row of its account a token has spent nothing.
        return queryset.annotate(
            spent_of_it=Coalesce("account__spent_nusd", 0), limit_of_it=Coalesce("limit_nusd", 0)
        ).filter(condition)


class RestrictionFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Tokens that may less than their owner."""

    title = "restriction"
    parameter_name = "restriction"
    conditions: ClassVar[dict[str, tuple[str, Q]]] = {
        "spending": (
            "spending limits",
            Q(is_unlimited=False)
            | Q(daily_limit_nusd__isnull=False)
            | Q(monthly_limit_nusd__isnull=False),
        ),
        "rates": ("rate limits", Q(rpm__gt=0) | Q(tpm__gt=0) | Q(concurrency__gt=0)),
        "models": ("certain models", ~Q(model_names=[])),
        "addresses": ("certain addresses", ~Q(allow_ips=[])),
        "channel": ("one channel", ~Q(specific_channel="")),
        "expires": ("expires", Q(expires_at__isnull=False)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the kinds of restriction."""
        return [(name, words) for name, (words, _) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Token]) -> QuerySet[Token]:
        """Return the tokens with such a restriction."""
        chosen = self.conditions.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(chosen[1])


class TokenForm(forms.ModelForm[Token]):
    """A token; its group must exist, its models are checked as in a configuration file."""

    model_names = NamesField(
        one=model_name,
        label="Models",
        help_text="Models the token may use, one a line; a * at the end matches any ending. "
        "Empty: all.",
    )
    allow_ips = NamesField(
        one=network,
        rows=3,
        label="Allowed addresses",
        help_text="IP addresses and networks that it may be used from, one a line: "
        "203.0.113.7, 10.0.0.0/8. Empty: anywhere. Behind a proxy see TRUSTED_PROXIES.",
    )
    rpm = LimitField(label="Requests a minute", help_text="0 is no limit.")
    tpm = LimitField(label="Tokens a minute", help_text="0 is no limit.")
    concurrency = LimitField(label="Requests at once", help_text="0 is no limit.")
    limit_nusd = UsdField(
        label="Limit in USD", help_text="The most that it may spend in all, if unlimited is off."
    )
    daily_limit_nusd = UsdField(
        label="Daily limit in USD", help_text="The most in a day (UTC). Empty: no limit."
    )
    monthly_limit_nusd = UsdField(
        label="Monthly limit in USD", help_text="The most in a month (UTC). Empty: no limit."
    )

    class Meta:
        model = Token
        fields = (
            "user",
            "name",
            "group",
            "cross_group_retry",
            "model_names",
            "specific_channel",
            "allow_ips",
            "is_enabled",
            "is_unlimited",
            "limit_nusd",
            "daily_limit_nusd",
            "monthly_limit_nusd",
            "rpm",
            "tpm",
            "concurrency",
            "expires_at",
        )
        help_texts = {
            "is_unlimited": "Not limited beyond what its owner has; off: the limit below counts.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "group" in self.fields:
            self.fields["group"] = GroupNameField(
                present=self.instance.group, empty="the user's group"
            )

    def clean_name(self) -> str:
        """Refuse what a configuration file could not name."""
        name: str = checked(text(100), self.cleaned_data["name"])
        return name

    def clean_specific_channel(self) -> str:
        """Refuse a channel that does not exist, unless it is the one that the token has."""
        typed = self.cleaned_data["specific_channel"]
        name = str(checked(text(100, may_be_empty=True), typed))
        is_new = name and name != self.instance.specific_channel
        if is_new and not Channel.objects.filter(name=name).exists():
            near = nearest(name, Channel.objects.values_list("name", flat=True))
            raise ValidationError(f"There is no channel {shown(name)}{near}.")
        return name

    def clean(self) -> dict[str, Any]:
        """Refuse a channel of its own for one who is not staff, and limits that contradict."""
        data: dict[str, Any] = super().clean() or {}
        owner = data.get("user")
        is_new = not {"user", "specific_channel"}.isdisjoint(self.changed_data)
        if is_new and data.get("specific_channel") and owner and not owner.is_staff:
            name = shown(owner.username)
            self.add_error("specific_channel", f"Only for staff, which user {name} is not.")
        if "limit_nusd" in data:
            fault = limit_fault(
                is_unlimited=bool(data.get("is_unlimited")), limit_nusd=data["limit_nusd"]
            )
            if fault:
                self.add_error("limit_nusd", f"{capfirst(fault)}.")
        return data


def _spent(token: Token) -> int:
    account = getattr(token, "account", None)  # none before the first request
    return account.spent_nusd if account else 0


@admin.register(Token)
class TokenAdmin(PlainDeletion, HistoryAdmin):
    """Tokens of clients."""

    form = TokenForm
    list_display = (
        "full_name",
        "owner",
        "masked",
        "group_name",
        "state",
        "spent",
        "limit",
        "expires",
    )
    list_filter: ClassVar[Any] = (StateFilter, GroupNameFilter, RestrictionFilter)
    list_select_related = ("user", "account")
    search_fields = ("name", "user__username", "hint")
    search_help_text = "Name, owner or the ends of a key"
    autocomplete_fields = ("user",)
    readonly_fields = ("masked", "created", "expires", "state", "spending")
    actions = ("enable_selected", "disable_selected")

    def get_fieldsets(self, request: HttpRequest, obj: Token | None = None) -> Any:
        """Return the page's parts."""
        may_edit = obj is None or self.has_change_permission(request, obj)
        end = "expires_at" if may_edit else "expires"
        who: tuple[Any, ...] = ("user", "name")
        usage = ("state", "spending")
        return [
            (None, {"fields": who if obj is None else (*who, "masked", "created", *usage)}),
            ("What it may use", {"fields": ("group", "cross_group_retry", "model_names")}),
            ("Limits", {"fields": ("is_enabled", end, "is_unlimited", *AMOUNTS, *RATES)}),
            (
                "Where it may be used from, and special cases",
                {"fields": ("allow_ips", "specific_channel"), "classes": ["collapse"]},
            ),
        ]

    def is_on_the_books(self, rows: Sequence[Token]) -> bool:
        """Return whether one of the tokens has paid for something."""
        ids = [token.pk for token in rows]
        named = (model.objects.filter(token__in=ids) for model in (LedgerEntry, BillingSession))
        return any(entries.exists() for entries in named)

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        """Give a new token its key; `response_add` shows it."""
        if not change:
            # An attribute of this object alone: no column, no message, no session.
            obj.new_key = token_give_key(obj)  # type: ignore[attr-defined]  # ours
        super().save_model(request, obj, form, change)
        for note in closed_to_token(obj, groups=groups_of(obj)):
            self.message_user(request, f"{capfirst(note)}.", messages.WARNING)

    def response_add(
        self, request: HttpRequest, obj: Token, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Answer with the key itself: a message would write it to the session's row."""
        context = {
            **self.admin_site.each_context(request),
            "title": "Token made",
            "token": obj,
            "key": obj.new_key,  # type: ignore[attr-defined]  # set by save_model
            "base_url": request.build_absolute_uri("/").rstrip("/"),
            "token_url": page_of(Token, obj.pk),
            "list_url": list_of_rows(Token),
        }
        return TemplateResponse(request, "relay_app/admin/token_made.html", context)

    expires = moment_column("expires_at", "Expires")
    created = moment_column("created_at", "Created")

    @column("Token", ordering="name")
    def full_name(self, token: Token) -> str:
        """Return the name with its owner's: names are unique for each owner only."""
        return f"{token.user.username}/{token.name}"

    @column("Key (masked)", ordering="hint")
    def masked(self, token: Token) -> str:
        """Return all that is kept of the key in clear."""
        return token.hint

    @column("Owner", ordering="user__username")
    def owner(self, token: Token) -> SafeString:
        """Return a link to the user."""
        return link(page_of(User, token.user_id), token.user.username)

    @column("Group", ordering="group")
    def group_name(self, token: Token) -> str:
        """Return the group in force."""
        return token.group or f"{token.user.group} (of the user)"

    @column("State", label=STATE_COLOURS)
    def state(self, token: Token) -> str:
        """Return what keeps the token from working, or that it is active."""
        if not token.is_enabled:
            return "disabled"
        if not token.user.is_active:
            return "owner inactive"
        if token.expires_at is not None and token.expires_at <= timezone.now():
            return "expired"
        limit_nusd = token.total_limit_nusd
        return "active" if limit_nusd is None or _spent(token) < limit_nusd else "exhausted"

    @column("Spent", ordering=Coalesce("account__spent_nusd", 0))
    def spent(self, token: Token) -> str:
        """Return what it has spent in all."""
        return usd_text(_spent(token))

    @column("Limit", ordering="limit_nusd")
    def limit(self, token: Token) -> str:
        """Return the most that it may spend in all."""
        return usd_text(token.total_limit_nusd)

    @column("Spent")
    def spending(self, token: Token) -> str:
        """Return what it has spent in all, today and this month, with the limits of each."""
        usage = token_usage(token.pk)
        spent = (
            ("in all", usage.spent_nusd, usage.limit_nusd),
            ("today", usage.spent_today_nusd, usage.daily_limit_nusd),
            ("this month (UTC)", usage.spent_this_month_nusd, usage.monthly_limit_nusd),
        )
        return ", ".join(
            f"{show_usd(nusd)}{'' if limit_nusd is None else f' of {show_usd(limit_nusd)}'} {when}"
            for when, nusd, limit_nusd in spent
        )

    @list_action("Enable", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        """Enable the tokens that are ticked."""
        self._set_enabled(request, queryset, is_enabled=True)

    @list_action("Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        """Disable the tokens that are ticked."""
        self._set_enabled(request, queryset, is_enabled=False)

    def _set_enabled(
        self, request: HttpRequest, queryset: QuerySet[Token], *, is_enabled: bool
    ) -> None:
        ids = list(queryset.values_list("pk", flat=True))
        count = tokens_set_enabled(token_ids=ids, is_enabled=is_enabled)
        word = "enabled" if is_enabled else "disabled"
        noun = "token" if count == 1 else "tokens"
        self.message_user(request, f"{count} {noun} {word}.", messages.SUCCESS)
