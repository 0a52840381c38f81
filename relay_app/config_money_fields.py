"""Checks of amounts and prices in a configuration file."""

from __future__ import annotations

from decimal import Decimal

from msgspec import UnsetType

from relay_app import config_fields as check

MAX_PRICE_USD = Decimal(1_000_000)


def or_none(one: check.Check) -> check.Check:
    """Return the same check, for a value that may also be null: none."""
    return lambda value, place: None if value is None else one(value, place)


def usd(value: object, place: check.Place) -> int | UnsetType:
    """Return an amount of USD as nano-dollars."""
    amount = check.decimal(places=9, high=check.MAX_BALANCE_USD)(value, place)
    return amount if isinstance(amount, UnsetType) else int(amount * 10**9)


amount = or_none(usd)
price = or_none(check.decimal(places=6, high=MAX_PRICE_USD))
