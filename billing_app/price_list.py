"""The bundled price list, and how it gets into the table without touching what was edited.

List prices of the providers in USD, as they were known in December 2026. An operator checks them
against what the upstream really charges: the table counts, not the list.

One row has one price, so the list takes the standard one: prompts of the usual length, the usual
size of a picture or video, what comes after an introductory offer, DeepSeek's working hours.
Models that make pictures have the price of picture tokens as `output`. Speech that is sold by the
character is listed by the token: 4 bytes count as one, so 15 USD per million characters (tts-1)
are 60.

A pattern covers the dates of one model (`gpt-5-20*`) or a closed family (`gemini-1.5-pro*`), never
models that are still to come: those have no price until somebody gives them one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from django.db import transaction

from billing_app.models import OTHER_PRICES, TOKEN_PRICES, Price

NAMES = (*TOKEN_PRICES, *OTHER_PRICES)
LIST = Path(__file__).with_name("price_list.json")


@dataclass(slots=True, kw_only=True)
class PriceChanges:
    """What loading the list did: models added, changed (with their differences), removed because
    the list has them no more, and kept because they had been edited."""

    added: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def counts(self) -> str:
        """Return how many of each, in words."""
        kept = f", {len(self.kept)} kept as edited" if self.kept else ""
        removed = f", {len(self.removed)} removed" if self.removed else ""
        return f"{len(self.added)} added, {len(self.changed)} changed{removed}{kept}"

    @property
    def lines(self) -> list[str]:
        """Return the changes as a diff, one a line."""
        return [
            *(f"+ {model}" for model in self.added),
            *(f"~ {model}: {words}" for model, words in self.changed.items()),
            *(f"- {model}: no longer listed" for model in self.removed),
            *(f"= {model}: edited here, kept" for model in self.kept),
        ]


def bundled_prices() -> Mapping[str, Mapping[str, str]]:
    """Return the list: model to its prices, as text."""
    found: dict[str, dict[str, str]] = json.loads(LIST.read_text())
    return found


@transaction.atomic
def prices_load(
    *, overwrites: bool = False, is_dry: bool = False, only: Collection[str] | None = None
) -> PriceChanges:
    """Bring the table up to the bundled list; return what changed.

    Rows that an operator edited stay, unless `overwrites`; rows that one made are not the list's
    to remove. `is_dry` changes nothing; `only` names the models that it is about: none is removed.
    """
    changes = PriceChanges()
    present = {price.model: price for price in Price.objects.select_for_update()}
    prices = bundled_prices()
    for model, listed in sorted(prices.items()):
        if only is not None and model not in only:
            continue
        price = present.get(model)
        if price is None:
            price = Price(model=model)
            changes.added.append(model)
        elif _values(price) == _wanted(listed):
            if price.bundled != listed and not is_dry:
                Price.objects.filter(pk=price.pk).update(bundled=listed)
            continue
        elif not overwrites and (price.bundled is None or is_edited(price)):
            changes.kept.append(model)
            continue
        else:
            changes.changed[model] = _difference(_values(price), _wanted(listed))
        for name in NAMES:
            setattr(price, name, _wanted(listed)[name])
        price.bundled = dict(listed)
        if not is_dry:
            price.save()
    if only is None:
        unlisted = [price for price in present.values() if price.model not in prices]
        _remove(unlisted, changes, overwrites=overwrites, is_dry=is_dry)
    return changes


def _remove(
    unlisted: Collection[Price], changes: PriceChanges, *, overwrites: bool, is_dry: bool
) -> None:
    """Delete what an earlier list brought: an old pattern must not price newer models."""
    for price in sorted(unlisted, key=lambda price: price.model):
        if price.bundled is None:
            continue
        if not overwrites and is_edited(price):
            changes.kept.append(price.model)
            continue
        changes.removed.append(price.model)
        if not is_dry:
            price.delete()


def is_edited(price: Price) -> bool:
    """Return whether the price came from the list and was edited since."""
    return price.bundled is not None and _values(price) != _wanted(price.bundled)


def _values(price: Price) -> dict[str, Decimal | None]:
    return {name: getattr(price, name) for name in NAMES}


def _wanted(listed: Mapping[str, str]) -> dict[str, Decimal | None]:
    return {name: Decimal(listed[name]) if name in listed else None for name in NAMES}


def _difference(old: Mapping[str, Decimal | None], new: Mapping[str, Decimal | None]) -> str:
    return ", ".join(
        f"{name} {_shown(old[name])} -> {_shown(new[name])}"
        for name in NAMES
        if old[name] != new[name]
    )


def _shown(price: Decimal | None) -> str:
    return "none" if price is None else f"{price.normalize():f}"
