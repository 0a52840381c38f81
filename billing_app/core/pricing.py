"""Prices: which one a model has, and what a request costs by it. Exact, rounded once.

A price per million tokens in USD is a thousand times as many nano-dollars a token, so amounts
are sums of integers and fractions; no float and no decimal context comes near them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from billing_app.core.money import NANO, round_half_away
from billing_app.core.usage import Usage

# nano-dollars a token of a price of 1 USD per million tokens
NUSD_A_TOKEN = NANO // 1_000_000
# Names that clients make up must not fill the memory.
MAX_CACHED = 10_000
MAX_CACHED_NAME = 200

ONE = Decimal(1)


@dataclass(frozen=True, kw_only=True)
class PriceView:
    """The price of a model or of a pattern with a trailing `*`: USD per million tokens, per call,
    per picture and per second. An empty part costs as much as what it is a part of."""

    model: str
    input: Decimal | None = None
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None
    cache_write_1h: Decimal | None = None
    output: Decimal | None = None
    reasoning_output: Decimal | None = None
    image_input: Decimal | None = None
    audio_input: Decimal | None = None
    audio_output: Decimal | None = None
    per_call: Decimal | None = None
    per_image: Decimal | None = None
    per_second: Decimal | None = None

    @cached_property
    def rates(self) -> Rates:
        """Return the price as nano-dollars, empty parts filled in; worked out once."""
        plain, output = self.input or Decimal(0), self.output or Decimal(0)
        write = _first(self.cache_write, plain)
        return Rates(
            input=_a_token(plain),
            cached_input=_a_token(_first(self.cached_input, plain)),
            cache_write=_a_token(write),
            cache_write_1h=_a_token(_first(self.cache_write_1h, write)),
            image_input=_a_token(_first(self.image_input, plain)),
            audio_input=_a_token(_first(self.audio_input, plain)),
            output=_a_token(output),
            reasoning_output=_a_token(_first(self.reasoning_output, output)),
            audio_output=_a_token(_first(self.audio_output, output)),
            per_call=_each(self.per_call),
            per_image=_each(self.per_image),
            per_second=_each(self.per_second),
        )

    @cached_property
    def is_free(self) -> bool:
        """Return whether nothing costs anything by it."""
        return not any(getattr(self.rates, name) for name in Rates.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Nano-dollars a token, a call, a picture, a second; whole numbers are ints."""

    input: int | Fraction
    cached_input: int | Fraction
    cache_write: int | Fraction
    cache_write_1h: int | Fraction
    image_input: int | Fraction
    audio_input: int | Fraction
    output: int | Fraction
    reasoning_output: int | Fraction
    audio_output: int | Fraction
    per_call: int | Fraction
    per_image: int | Fraction
    per_second: int | Fraction


def _first(value: Decimal | None, otherwise: Decimal) -> Decimal:
    return otherwise if value is None else value


def _a_token(usd_per_mtok: Decimal) -> int | Fraction:
    return _whole(Fraction(usd_per_mtok) * NUSD_A_TOKEN)


def _each(usd: Decimal | None) -> int | Fraction:
    return _whole(Fraction(usd or 0) * NANO)


def _whole(value: Fraction) -> int | Fraction:
    """Return an int where it is one: sums of ints are several times as fast."""
    return value.numerator if value.denominator == 1 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """All prices. Never changes; a changed price makes a new table."""

    by_model: Mapping[str, PriceView] = field(default_factory=dict)
    # Without their `*`, longest first.
    patterns: tuple[tuple[str, PriceView], ...] = ()
    _found: dict[str, PriceView | None] = field(default_factory=dict, repr=False)

    def find(self, model: str) -> PriceView | None:
        """Return the price of the name itself, else of the longest pattern that fits it."""
        exact = self.by_model.get(model)
        if exact is not None:
            return exact
        try:
            return self._found[model]
        except KeyError:
            found = next((p for prefix, p in self.patterns if model.startswith(prefix)), None)
        if len(model) <= MAX_CACHED_NAME:
            if len(self._found) >= MAX_CACHED:
                self._found.clear()
            self._found[model] = found
        return found


def price_table(prices: Iterable[PriceView]) -> PriceTable:
    """Return the table of these prices."""
    rows = list(prices)
    patterns = [(p.model[:-1], p) for p in rows if p.model.endswith("*")]
    return PriceTable(
        by_model={price.model: price for price in rows if not price.model.endswith("*")},
        patterns=tuple(sorted(patterns, key=lambda pair: -len(pair[0]))),
    )


def amount_nusd(price: PriceView, usage: Usage, *, ratio: Decimal = ONE, calls: int = 1) -> int:
    """Return what `usage` costs in nano-dollars, rounded once, half away from zero.

    What costs anything costs at least 1. Parts that are larger than what they are parts of, as
    some upstreams report, are cut to it: nothing ever turns negative.
    """
    rates = price.rates
    if price.per_call is not None:
        base = rates.per_call * max(calls, 1)
    else:
        base = _input_cost(rates, usage) + _output_cost(rates, usage)
    base += rates.per_image * max(usage.images, 0) + rates.per_second * max(usage.seconds, 0)
    return _final(base, ratio)


def estimate_nusd(
    price: PriceView,
    *,
    prompt_tokens: int,
    output_tokens: int,
    ratio: Decimal = ONE,
    calls: int = 1,
    seconds: int = 0,
) -> int:
    """Return what a request of this size may cost in nano-dollars; `output_tokens` is what its
    `calls` answers may have in all."""
    usage = Usage(
        input_tokens=prompt_tokens,
        output_tokens=output_tokens,
        images=calls if price.per_image is not None else 0,
        seconds=seconds,
    )
    return amount_nusd(price, usage, ratio=ratio, calls=calls)


def _input_cost(rates: Rates, usage: Usage) -> int | Fraction:
    """Return the price of the prompt: each part at its own rate, at most once. What was cached is
    cheaper for that, whatever it is."""
    left = max(usage.input_tokens, 0)
    cost: int | Fraction = 0
    for tokens, rate in (
        (usage.cached_input_tokens, rates.cached_input),
        (usage.cache_write_1h_tokens, rates.cache_write_1h),
        (usage.cache_write_tokens - usage.cache_write_1h_tokens, rates.cache_write),
        (usage.audio_input_tokens - usage.cached_audio_input_tokens, rates.audio_input),
        (usage.image_input_tokens - usage.cached_image_input_tokens, rates.image_input),
    ):
        if tokens > 0:
            part = min(tokens, left)
            left -= part
            cost += part * rate
    return cost + left * rates.input


def _output_cost(rates: Rates, usage: Usage) -> int | Fraction:
    left = max(usage.output_tokens, 0)
    cost: int | Fraction = 0
    for tokens, rate in (
        (usage.reasoning_tokens, rates.reasoning_output),
        (usage.audio_output_tokens, rates.audio_output),
    ):
        if tokens > 0:
            part = min(tokens, left)
            left -= part
            cost += part * rate
    return cost + left * rates.output


def _final(base: int | Fraction, ratio: Decimal) -> int:
    if not base or not ratio:
        return 0
    if ratio == 1 and isinstance(base, int):
        return base
    return max(1, round_half_away(Fraction(base) * Fraction(ratio)))
