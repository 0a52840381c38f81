"""Pages of wallets and ledger entries. Balances change only by entries."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminTextInputWidget

from billing_app.core.money import show_usd, usd_to_nusd
from billing_app.core.operations import Kind
from billing_app.models import BillingSession, LedgerEntry, Token, Wallet
from billing_app.services import CreditRefusedError, Paid, wallet_credit
from relay_app.admin.base import (
    EMPTY,
    PlainAdmin,
    ReadOnly,
    column,
    go_to,
    link,
    list_of_rows,
    log_rows,
    moment_column,
    page_of,
    usd_column,
    usd_text,
)
from relay_app.admin.base import button as dialog_button
from relay_app.admin.fields import PlainDecimalField
from relay_app.admin.filters import MomentFilter
from relay_app.admin.why import KINDS, why_url

MAX_USD = Decimal(10**9)


class BalanceFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Wallets with money, without, or with less than nothing."""

    title = "balance"
    parameter_name = "balance"
    conditions: ClassVar[dict[str, tuple[str, dict[str, int]]]] = {
        "positive": ("has money", {"available_nusd__gt": 0}),
        "none": ("has nothing left", {"available_nusd__lte": 0}),
        "negative": ("overdrawn", {"available_nusd__lt": 0}),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the kinds of balance."""
        return [(name, words) for name, (words, _) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Wallet]) -> QuerySet[Wallet]:
        """Return the wallets with such a balance."""
        chosen = self.conditions.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(**chosen[1])


class KindFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Entries of one kind."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the kinds."""
        return list(KINDS.items())

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[LedgerEntry]
    ) -> QuerySet[LedgerEntry]:
        """Return the entries of the chosen kind."""
        return queryset.filter(kind=self.value()) if self.value() else queryset


class AmountForm(BaseDialogForm):  # type: ignore[misc]  # unfold is untyped
    """Asks for an amount of USD and why, under the name of the account and what it has."""

    form_before_template = "relay_app/admin/balance.html"

    amount = PlainDecimalField(label="USD", max_digits=19, decimal_places=9, max_value=MAX_USD)
    reason = forms.CharField(
        label="Reason",
        max_length=200,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "stays with the entry"}),
    )
    # Made when the dialog is: whatever is sent twice is paid once.
    key = forms.UUIDField(required=False, initial=uuid.uuid4, widget=forms.HiddenInput)

    def get_before_template_context(
        self, request: HttpRequest, object_id: int | str | None = None
    ) -> dict[str, Any]:
        """Return whose wallet it is."""
        wallet = get_object_or_404(Wallet.objects.select_related("user"), pk=object_id)
        return {"wallet": wallet, "available": show_usd(wallet.available_nusd)}

    def clean_amount(self) -> Decimal:
        """Refuse what pays nothing in."""
        amount: Decimal = self.cleaned_data["amount"]
        if amount <= 0:
            raise ValidationError("A top-up must be more than 0; take money out by Adjust.")
        return amount


class AdjustmentForm(AmountForm):
    """The same; a negative amount takes money out."""

    amount = PlainDecimalField(
        label="USD, negative to take out",
        max_digits=19,
        decimal_places=9,
        min_value=-MAX_USD,
        max_value=MAX_USD,
    )

    def clean_amount(self) -> Decimal:
        """Refuse what changes nothing."""
        amount: Decimal = self.cleaned_data["amount"]
        if not amount:
            raise ValidationError("An adjustment of 0 changes nothing.")
        return amount


@admin.register(Wallet)
class WalletAdmin(ReadOnly, PlainAdmin):
    """What accounts have. Paid in and corrected by entries with a reason."""

    list_display = ("owner", "available", "reserved", "spent", "credits", "entries_link")
    list_display_links = ("owner",)
    list_filter: ClassVar[Any] = (BalanceFilter,)
    list_select_related = ("user",)
    search_fields = ("user__username",)
    search_help_text = "Name of the account"
    ordering = ("user__username",)
    fields = ("owner", "available", "reserved_link", "spent", "credits", "entries_link")
    readonly_fields = fields
    actions_detail = ("top_up", "adjust")

    available = usd_column("available_nusd", "Available")
    reserved = usd_column("reserved_nusd", "Reserved")
    spent = usd_column("spent_nusd", "Spent")
    credits = usd_column("credited_nusd", "Credits")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let a wallet go with its account, never alone; entries keep both."""
        match = request.resolver_match
        return match is None or "billing_app_wallet" not in (match.url_name or "")

    def has_pay_permission(self, request: HttpRequest, object_id: object = None) -> bool:
        """Return whether the user may pay in and correct."""
        return bool(request.user.has_perm("billing_app.change_wallet"))

    def get_form(
        self, request: HttpRequest, obj: Wallet | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the page's form, with words for what can't be told by a name."""
        words = {"credits": "Top-ups and codes, less what was taken out."}
        return super().get_form(request, obj, change, **kwargs, help_texts=words)

    @column("Account", ordering="user__username")
    def owner(self, wallet: Wallet) -> str:
        """Return the name of the account."""
        return wallet.user.username

    @column("Reserved")
    def reserved_link(self, wallet: Wallet) -> SafeString:
        """Return what is reserved, as a link to the sessions that hold it."""
        url = list_of_rows(BillingSession, f"state=open&wallet__pk__exact={wallet.pk}")
        return link(url, usd_text(wallet.reserved_nusd))

    @column("Entries")
    def entries_link(self, wallet: Wallet) -> SafeString:
        """Return a link to the wallet's entries."""
        return link(list_of_rows(LedgerEntry, f"wallet__pk__exact={wallet.pk}"), "entries")

    @dialog_button(
        "Top up",
        icon="add_card",
        permissions=["pay"],
        question="Pays USD in; the entry stays for ever.",
        form_class=AmountForm,
    )
    def top_up(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Pay in."""
        return self._pay(request, form, object_id, Kind.TOP_UP)

    @dialog_button(
        "Adjust",
        icon="balance",
        permissions=["pay"],
        question="Corrects the balance by an entry of its own, which stays for ever.",
        form_class=AdjustmentForm,
    )
    def adjust(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Correct the balance."""
        return self._pay(request, form, object_id, Kind.ADJUSTMENT)

    def _pay(self, request: HttpRequest, form: Any, object_id: str, kind: Kind) -> HttpResponse:
        wallet: Wallet | None = self.get_object(request, object_id)
        if wallet is None:
            raise Http404(f"no wallet {object_id}")
        try:
            paid = wallet_credit(
                user_id=wallet.pk,
                amount_nusd=usd_to_nusd(form.cleaned_data["amount"]),
                reason=form.cleaned_data["reason"],
                actor_id=request.user.pk,
                kind=kind,
                idempotency_key=form.cleaned_data["key"],
            )
        except (CreditRefusedError, ValueError) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            level = messages.WARNING if paid.is_repeat else messages.SUCCESS
            words = _paid_words(wallet, paid)
            self.message_user(request, words, level)
            if not paid.is_repeat:
                words = f"{words} Reason: {form.cleaned_data['reason']}"
                log_rows(request, [wallet], flag=CHANGE, words=words)
        return go_to(request, page_of(Wallet, wallet.pk))


def _paid_words(wallet: Wallet, paid: Paid) -> str:
    amount, balance = show_usd(abs(paid.amount_nusd)), show_usd(paid.balance_nusd)
    direction = "in" if paid.amount_nusd > 0 else "out"
    if paid.is_repeat:
        return f"This was paid {direction} already, and not again: {amount}."
    return f"{amount} paid {direction}: {wallet.user.username} has {balance}."


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnly, PlainAdmin):
    """Every change of what is available in a wallet. Nothing here is ever changed."""

    list_display = (
        "moment",
        "wallet_link",
        "kind_words",
        "amount",
        "balance",
        "token_link",
        "request_link",
        "reason",
        "actor",
    )
    list_display_links = None
    list_filter: ClassVar[Any] = (
        ("created_at", MomentFilter),
        KindFilter,
    )
    list_select_related = ("wallet__user", "token", "session", "actor")
    search_fields = ("wallet__user__username", "reason", "session__request_id", "token__name")
    search_help_text = "Account, token, request id or reason"
    show_full_result_count = False

    moment = moment_column("created_at", "When")
    amount = usd_column("amount_nusd", "Amount", is_signed=True)
    balance = usd_column("balance_nusd", "Balance after")

    @column("Kind", ordering="kind")
    def kind_words(self, entry: LedgerEntry) -> str:
        """Return what the entry is for."""
        return KINDS.get(entry.kind, entry.kind)

    @column("Account", ordering="wallet__user__username")
    def wallet_link(self, entry: LedgerEntry) -> SafeString:
        """Return a link to the wallet."""
        return link(page_of(Wallet, entry.wallet_id), entry.wallet.user.username)

    @column("Token", ordering="token__name")
    def token_link(self, entry: LedgerEntry) -> SafeString | str:
        """Return a link to the token, if one spent it."""
        return link(page_of(Token, entry.token_id), entry.token) if entry.token_id else EMPTY

    @column("Request")
    def request_link(self, entry: LedgerEntry) -> SafeString | str:
        """Return a link to the request's why page, if one did it."""
        if entry.session is None:
            return EMPTY
        return link(why_url(entry.session.request_id), entry.session.request_id[:8])
