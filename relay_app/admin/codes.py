"""Pages of redemption codes. Codes are shown once, on the page that answers their making."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from billing_app.core.money import show_usd, usd_to_nusd
from billing_app.models import RedemptionCode, User
from billing_app.services import MAX_BATCH_NAME, MAX_CODES, codes_create
from relay_app.admin.base import (
    EMPTY,
    PlainAdmin,
    column,
    counted,
    link,
    list_action,
    list_button,
    list_of_rows,
    log_rows,
    moment_column,
    page_of,
    usd_column,
)
from relay_app.admin.fields import PlainDecimalField

MAX_USD = Decimal(10**6)
MAX_DAYS = 3650
STATE_COLOURS = {
    "open": "success",
    "redeemed": "info",
    "expired": "danger",
    "disabled": "warning",
}


def state_of(code: RedemptionCode) -> str:
    """Return what keeps the code from being redeemed, or that it is open."""
    if code.redeemed_at is not None:
        return "redeemed"
    if not code.is_enabled:
        return "disabled"
    is_expired = code.expires_at is not None and code.expires_at <= timezone.now()
    return "expired" if is_expired else "open"


class StateFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Codes in one state."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the states."""
        return [(state, state) for state in STATE_COLOURS]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[RedemptionCode]
    ) -> QuerySet[RedemptionCode]:
        """Return the codes in the chosen state."""
        waiting = Q(redeemed_at=None)
        usable = waiting & Q(is_enabled=True)
        ahead = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        conditions = {
            "open": usable & ahead,
            "redeemed": ~waiting,
            "expired": usable & ~ahead,
            "disabled": waiting & Q(is_enabled=False),
        }
        condition = conditions.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class CodesForm(forms.Form):
    """Asks for a batch of new codes."""

    batch = forms.CharField(
        label="Batch",
        max_length=MAX_BATCH_NAME,
        help_text="A name for all of them, to find them by.",
        widget=UnfoldAdminTextInputWidget(),
    )
    count = forms.IntegerField(
        label="How many",
        min_value=1,
        max_value=MAX_CODES,
        widget=UnfoldAdminIntegerFieldWidget(),
    )
    amount = PlainDecimalField(
        label="USD each",
        max_digits=19,
        decimal_places=9,
        max_value=MAX_USD,
        help_text="What each pays in.",
    )
    days = forms.IntegerField(
        label="Days until they expire",
        required=False,
        min_value=1,
        max_value=MAX_DAYS,
        help_text="Empty: never.",
        widget=UnfoldAdminIntegerFieldWidget(),
    )

    def clean_batch(self) -> str:
        """Refuse the name of a batch that is there: a form that is sent twice makes one."""
        name: str = self.cleaned_data["batch"]
        if RedemptionCode.objects.filter(batch=name).exists():
            raise ValidationError("There is a batch of this name already; choose another.")
        return name

    def clean_amount(self) -> Decimal:
        """Refuse codes that are worth nothing."""
        amount: Decimal = self.cleaned_data["amount"]
        if amount <= 0:
            raise ValidationError("A code must be worth more than 0.")
        return amount


@admin.register(RedemptionCode)
class RedemptionCodeAdmin(PlainAdmin):
    """Codes that pay in; shown once, when they are made."""

    list_display = (
        "hint",
        "batch",
        "amount",
        "state",
        "created",
        "expires",
        "by",
        "redeemed",
    )
    list_filter: ClassVar[Any] = (StateFilter,)
    search_fields = ("batch", "hint", "redeemed_by__username")
    search_help_text = "Batch, ends of a code or who redeemed it"
    list_select_related = ("redeemed_by",)
    actions_list = ("make",)
    actions = ("disable_selected",)
    readonly_fields = (
        "hint",
        "batch",
        "amount",
        "state",
        "created",
        "expires",
        "by",
        "redeemed",
    )
    fields = (*readonly_fields, "is_enabled")

    amount = usd_column("amount_nusd", "Amount")
    created = moment_column("created_at", "Made")
    expires = moment_column("expires_at", "Expires")
    redeemed = moment_column("redeemed_at", "Redeemed")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: codes are made in batches."""
        return False

    def has_make_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may make codes, each of which is money."""
        return bool(request.user.has_perm("billing_app.add_redemptioncode"))

    def has_delete_permission(
        self, request: HttpRequest, obj: RedemptionCode | None = None
    ) -> bool:
        """Return False: redeemed ones explain entries, others can be disabled."""
        return False

    @column("State", label=STATE_COLOURS)
    def state(self, code: RedemptionCode) -> str:
        """Return whether the code can be redeemed."""
        return state_of(code)

    @column("By", ordering="redeemed_by__username")
    def by(self, code: RedemptionCode) -> SafeString | str:
        """Return a link to who redeemed it."""
        user = code.redeemed_by
        return link(page_of(User, user.pk), user.username) if user else EMPTY

    @list_button("Make codes", icon="add", permissions=["make"])
    def make(self, request: HttpRequest) -> HttpResponse:
        """Ask for a batch; answer with its codes, which are written down nowhere else."""
        form = CodesForm(request.POST if request.method == "POST" else None)
        context = {
            **self.admin_site.each_context(request),
            "title": "Make codes",
            "opts": self.opts,
            "form": form,
            "list_url": list_of_rows(RedemptionCode),
        }
        if not form.is_valid():
            return TemplateResponse(request, "relay_app/admin/codes_make.html", context)
        context |= {
            "title": "Codes made",
            "codes": self._made(request, **form.cleaned_data),
            "amount": show_usd(usd_to_nusd(form.cleaned_data["amount"])),
            "batch": form.cleaned_data["batch"],
        }
        return TemplateResponse(request, "relay_app/admin/codes_made.html", context)

    def _made(
        self, request: HttpRequest, *, batch: str, count: int, amount: Decimal, days: int | None
    ) -> list[str]:
        codes = codes_create(
            batch=batch,
            count=count,
            amount_nusd=usd_to_nusd(amount),
            expires_at=None if days is None else timezone.now() + timedelta(days=days),
        )
        rows = RedemptionCode.objects.filter(batch=batch)
        log_rows(request, rows, flag=ADDITION, words="Made.")
        return codes

    @list_action("Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, codes: QuerySet[RedemptionCode]) -> None:
        """Disable the codes that are ticked and neither redeemed nor disabled yet."""
        rows = list(codes.filter(redeemed_at=None, is_enabled=True))
        ids = [code.pk for code in rows]
        count = RedemptionCode.objects.filter(pk__in=ids, redeemed_at=None).update(is_enabled=False)
        log_rows(request, rows, flag=CHANGE, words="Disabled.")
        self.message_user(request, f"{counted(count, 'code')} disabled.", messages.SUCCESS)
