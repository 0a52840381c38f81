"""Pages of prices, with the bundled list."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.contrib.filters.admin import DropdownFilter

from billing_app.models import OTHER_PRICES, TOKEN_PRICES, Price
from billing_app.price_list import prices_load
from relay_app.admin.base import (
    EMPTY,
    HistoryAdmin,
    button,
    column,
    go_to,
    list_action,
    list_of_rows,
)

SHOWN_LINES = 20


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
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the kinds."""
        return [(name, words) for name, (words, _) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Price]) -> QuerySet[Price]:
        """Return the prices of the chosen kind."""
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

    @column("From", label={"list": "info", "here": "success"})
    def source(self, price: Price) -> str:
        """Return whether the price came from the bundled list."""
        return "here" if price.bundled is None else "list"

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
        lines = changes.lines[:SHOWN_LINES]
        more = len(changes.lines) - len(lines)
        text = "; ".join(lines) + (f" and {more} more" if more > 0 else "")
        self.message_user(request, text or "Nothing was changed.", messages.SUCCESS)
        return go_to(request, list_of_rows(Price))

    @list_action("Copy from the bundled list", permissions=["change"])
    def restore_selected(self, request: HttpRequest, prices: QuerySet[Price]) -> None:
        """Give the ticked prices what the bundled list says."""
        changes = prices_load(overwrites=True, only=set(prices.values_list("model", flat=True)))
        self.message_user(request, f"{len(changes.changed)} prices changed.", messages.SUCCESS)
