"""Pages of prices, with the bundled list."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.contrib.filters.admin import DropdownFilter

from billing_app.models import OTHER_PRICES, TOKEN_PRICES, Price
from billing_app.price_list import bundled_prices, is_edited, prices_load
from relay_app.admin.base import (
    EMPTY,
    HistoryAdmin,
    button,
    column,
    counted,
    go_to,
    list_action,
    list_of_rows,
)

SHOWN = 20  # names in one message


class PriceKindFilter(DropdownFilter):  # type: ignore[misc]  # unfold is untyped
    """Prices by what they count, or where they came from."""

    title = "kind"
    parameter_name = "kind"
    conditions: ClassVar[dict[str, tuple[str, Q]]] = {
        "tokens": ("by token", Q(input__isnull=False) | Q(output__isnull=False)),
        "call": ("by call", Q(per_call__isnull=False)),
        "image": ("by picture", Q(per_image__isnull=False)),
        "pattern": ("of a pattern", Q(model__endswith="*")),
        "own": ("made here", Q(bundled__isnull=True)),
        "list": ("of the list", Q(bundled__isnull=False)),
    }
    edited = "edited"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the kinds."""
        kinds = [(name, words) for name, (words, _) in self.conditions.items()]
        return [*kinds, (self.edited, "of the list, edited")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Price]) -> QuerySet[Price]:
        """Return the prices of the chosen kind."""
        if self.value() == self.edited:
            listed = Price.objects.filter(bundled__isnull=False)
            return queryset.filter(pk__in=[price.pk for price in listed if is_edited(price)])
        chosen = self.conditions.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(chosen[1])


def _price_column(field: str, description: str) -> Any:
    @column(description, ordering=F(field).asc(nulls_last=True))
    def shown(_page: Any, price: Price) -> str:
        """Return the price without the zeros that the column pads it with."""
        value = getattr(price, field)
        return EMPTY if value is None else f"{value.normalize():f}"

    return shown


@admin.register(Price)
class PriceAdmin(HistoryAdmin):
    """What models cost, in USD per million tokens or per call."""

    list_display = ("model", "in_", "cached", "write", "out", "call", "image", "source")
    list_filter: ClassVar[Any] = (PriceKindFilter,)
    search_fields = ("model",)
    actions_list = ("load_list",)
    actions = ("restore_selected",)
    fieldsets = (
        (None, {"fields": ("model",)}),
        ("USD per million tokens", {"fields": TOKEN_PRICES}),
        ("Otherwise", {"fields": OTHER_PRICES}),
    )

    in_ = _price_column("input", "Input")
    cached = _price_column("cached_input", "Cached")
    write = _price_column("cache_write", "Cache write")
    out = _price_column("output", "Output")
    call = _price_column("per_call", "Per call")
    image = _price_column("per_image", "Per picture")

    @column("From", label={"list": "info", "list, edited": "warning", "here": "success"})
    def source(self, price: Price) -> str:
        """Return whether the price came from the bundled list, and is as it was there."""
        if price.bundled is None:
            return "here"
        return "list, edited" if is_edited(price) else "list"

    @button(
        "Load the bundled list",
        icon="download",
        permissions=["change"],
        question="Adds the models that are missing, brings others up to date and removes what it no"
        " longer lists; prices that were made or edited here stay.",
    )
    def load_list(self, request: HttpRequest, form: Any) -> HttpResponse:
        """Load the list and say what it changed."""
        changes = prices_load()
        text = f"{changes.counts}."
        for word, names in (("Changed", [*changes.changed]), ("Kept", changes.kept)):
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                text += f" {word}: {', '.join(names[:SHOWN])}{more}."
        self.message_user(request, text, messages.SUCCESS)
        return go_to(request, list_of_rows(Price))

    @list_action("Copy from the bundled list", permissions=["change"])
    def restore_selected(self, request: HttpRequest, prices: QuerySet[Price]) -> None:
        """Give the ticked prices what the bundled list says."""
        names = set(prices.values_list("model", flat=True))
        changes = prices_load(overwrites=True, only=names)
        count = counted(len(changes.changed), "price")
        self.message_user(request, f"{count} changed.", messages.SUCCESS)
        if missing := sorted(names.difference(bundled_prices())):
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            words = f"Not in the bundled list: {', '.join(missing[:SHOWN])}{more}."
            self.message_user(request, words, messages.WARNING)
