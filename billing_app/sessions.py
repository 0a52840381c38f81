"""The bill of one request: estimate, reserve, then settle or refund, once. The only door to the
ledger's writer.

A `Bill` belongs to one request and knows what an attempt would cost; the ledger knows the
balances. What a request costs nothing for (free endpoints, models without a price where that is
allowed, price or ratio 0) reaches neither the queue nor the database.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal

import structlog

from billing_app.core.operations import Refused
from billing_app.core.pricing import PriceTable, PriceView, amount_nusd, estimate_nusd
from billing_app.core.types import TokenView
from billing_app.core.usage import Usage
from billing_app.ledger_writer import Ledger

log = structlog.get_logger(__name__)

# The most that one request costs, whatever its upstream says that it used: 1 million USD.
MAX_COST_NUSD = 10**15


class PriceMissingError(Exception):
    """The model has no price, and models without one are not served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What options say of bills. Amounts in nano-dollars, lengths in tokens."""

    least_prompt_tokens: int
    most_output_tokens: int
    trust_quota_nusd: int
    allows_unpriced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a request may become: `calls` is how many answers it asks for."""

    prompt_tokens: int
    output_tokens: int
    calls: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """What a model costs in a group; `price` None: nothing, since it has none."""

    model: str
    price: PriceView | None
    ratio: Decimal


@dataclass(slots=True, kw_only=True)
class Bill:
    """One request's money. Begun by `reserve`, ended once by `settle` or `refund`.

    `size` is called when first needed: a model that is priced by the call needs the number of
    answers, others the length of the prompt. `seconds` is called only for prices by the second:
    about how many the request has, where its answer does not tell.
    """

    ledger: Ledger
    token: TokenView
    prices: PriceTable
    terms: Terms
    request_id: str
    size: Callable[[], Size]
    ratio_of: Callable[[str], Decimal]
    seconds: Callable[[], int] = lambda: 0
    session_id: uuid.UUID = field(default_factory=uuid.uuid4)
    # The refusal that kept an attempt from being made.
    refused: Refused | None = None
    # What the client pays in the end; None while nothing is settled.
    cost_nusd: int | None = None
    billed_model: str = ""
    state: str = ""  # for the log: reserved, trusted, free, unpriced, settled, refunded
    _reserved_nusd: int = 0
    _size: Size | None = None
    _is_open: bool = False
    _is_ended: bool = False

    def tariff(self, *, model: str, group: str, upstream_model: str = "") -> Tariff:
        """Return what `model` costs in `group`, by the price of `upstream_model` if that is given.

        Raises PriceMissingError.
        """
        price = self.prices.find(upstream_model or model)
        if price is None and not self.terms.allows_unpriced:
            raise PriceMissingError(model)
        return Tariff(model=model, price=price, ratio=self.ratio_of(group))

    def estimate_nusd(self, tariff: Tariff) -> int:
        """Return what the request may cost, as far as it can be told before it is answered: at
        least 1, so that wallet and limits are looked at, unless it costs nothing in any case."""
        if tariff.price is None or tariff.ratio == 0 or tariff.price.is_free:
            return 0
        if self._size is None:
            self._size = self.size()
        size = self._size
        amount_nusd = estimate_nusd(
            tariff.price,
            prompt_tokens=max(size.prompt_tokens, self.terms.least_prompt_tokens),
            output_tokens=min(size.output_tokens * size.calls, self.terms.most_output_tokens),
            ratio=tariff.ratio,
            calls=size.calls,
            seconds=self._seconds(tariff.price),
        )
        return min(max(amount_nusd, 1), MAX_COST_NUSD)

    async def reserve(self, tariff: Tariff) -> Refused | None:
        """Make sure that the request can be paid for as `tariff` says; return who refuses.

        The first call reserves or trusts; later ones raise the reservation where a switch makes
        the request dearer. Raises LedgerAwayError when the database does not answer in time.
        """
        amount_nusd = self.estimate_nusd(tariff)
        if amount_nusd <= self._reserved_nusd or (self._is_open and self.state == "trusted"):
            return None
        if self.refused is not None and amount_nusd >= self.refused.needed_nusd:
            return self.refused
        began_s = time.monotonic()
        if not self._is_open and await self.ledger.trusts(
            self.session_id, self.token, amount_nusd, quota_nusd=self.terms.trust_quota_nusd
        ):
            self._is_open, self.state = True, "trusted"
            return None
        if self._is_open:
            outcome = await self.ledger.raise_to(self.session_id, self.token, amount_nusd)
        else:
            outcome = await self.ledger.reserve(
                self.session_id,
                self.token,
                amount_nusd,
                request_id=self.request_id,
                waited_s=time.monotonic() - began_s,
            )
        if isinstance(outcome, Refused):
            self.refused = outcome
            return outcome
        self._is_open, self.state, self._reserved_nusd = True, "reserved", amount_nusd
        return None

    def settle(self, tariff: Tariff, usage: Usage) -> None:
        """Charge for `usage`: at once in the ledger's queue, soon in the database."""
        if self._is_ended:
            return
        self._is_ended = True
        calls = 1
        if tariff.price is None:
            self.state, self.cost_nusd = "unpriced", 0
        else:
            if tariff.price.per_call is not None and self._size is not None:
                calls = self._size.calls
            if tariff.price.per_second is not None and not usage.seconds:
                usage = replace(usage, seconds=self._seconds(tariff.price))
            cost_nusd = amount_nusd(tariff.price, usage, ratio=tariff.ratio, calls=calls)
            self.cost_nusd = min(cost_nusd, MAX_COST_NUSD)
        self.billed_model = tariff.price.model if tariff.price else tariff.model
        if not (self._is_open or self.cost_nusd):
            self.state = self.state or "free"
            return
        self.state = "settled"
        self.ledger.settle(self.session_id, self.token, self.cost_nusd, request_id=self.request_id)

    def _seconds(self, price: PriceView) -> int:
        return self.seconds() if price.per_second is not None else 0

    def refund(self, *, fee_nusd: int = 0, reason: str = "") -> None:
        """Give back what was reserved, and charge a fee of the provider's, if there is one."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._is_open and self.state == "trusted":
            self.ledger.forget(self.session_id)
        elif self._is_open:
            if fee_nusd:
                self.ledger.refund(self.session_id)  # now: the fee comes after it
            else:
                self.ledger.mark_refund_due(self.session_id)
            self.state = "refunded"
        if fee_nusd:
            self.ledger.fee(
                self.session_id,
                self.token,
                fee_nusd,
                reason=reason,
                request_id=self.request_id,
            )
            self.cost_nusd, self.state = fee_nusd, "fee"
