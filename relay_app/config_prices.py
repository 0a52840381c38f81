"""Plan the prices of a configuration file."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from billing_app.models import OTHER_PRICES, TOKEN_PRICES, Price
from relay_app.config_file import Config
from relay_app.config_plan import Plan, take, validate
from relay_app.config_rows import PriceRow

ATTRIBUTES = {name: name for name in (*TOKEN_PRICES, *OTHER_PRICES)}


def plan_prices(plan: Plan, config: Config) -> None:
    """Plan the prices; what a row does not name stays."""
    names = [row.model for row in config.prices]
    prices: dict[str, Price] = Price.objects.in_bulk(names, field_name="model")
    for row in config.prices:
        price = prices.get(row.model) or Price(model=row.model)
        fields, words = take(row, price, ATTRIBUTES)
        validate(plan, row, price, fields=fields, names={"name": "model", **ATTRIBUTES})
        if row.is_sound:  # else what it lacks is what was refused already
            _check(plan, row, price)
        plan.save(price, fields)
        plan.say(price, f"price {row.model}", words=words)


def _check(plan: Plan, row: PriceRow, price: Price) -> None:
    try:
        price.clean()
    except ValidationError as error:
        plan.refuse(row.path, " ".join(error.messages))


def prune_prices(plan: Plan, config: Config) -> None:
    """Plan to delete the prices that the file does not have."""
    names = {row.model for row in config.prices}
    for price in Price.objects.only("model").order_by("model"):
        if price.model not in names:
            plan.delete(price, f"price {price.model}")
