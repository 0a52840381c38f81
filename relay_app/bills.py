"""What a request's bill is made of: how large the request is, and what its answer used.

Prompts and answers whose usage nobody reported are counted by their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import msgspec

from billing_app.core.money import NANO, show_usd
from billing_app.core.operations import Refused
from billing_app.core.pricing import PriceTable
from billing_app.core.types import TokenView
from billing_app.core.usage import Usage, merged
from billing_app.ledger_writer import Ledger
from billing_app.sessions import Bill, PriceMissingError, Size, Tariff, Terms
from billing_app.trust import LedgerAwayError
from channels_app.core.routing import RoutingTable
from channels_app.core.types import Failure
from relay_app.attempt import EVENT_STREAM, Answer
from relay_app.core import json_edit, multipart
from relay_app.core.attempts import Step
from relay_app.core.estimate import BYTES_A_TOKEN, estimate_seconds, estimate_tokens
from relay_app.core.sse import Splitter, read_event
from relay_app.core.types import Call
from relay_app.dialects.base import Dialect, count_in
from relay_app.errors import BillingUnavailable, InsufficientQuota, ModelPriceMissing, RelayError
from relay_app.shaping import upstream_model
from relay_app.streaming import AnswerStream

# More answers than any endpoint gives to one request.
MAX_ANSWERS = 128


@dataclass(slots=True, kw_only=True)
class RequestBill:
    """What one relayed request does with its money: cover each attempt, charge for the answer.

    `refusal` is why the last attempt that was not covered was not made.
    """

    call: Call
    dialect: Dialect
    bill: Bill
    # What a blocked prompt costs, and the words that tell one; 0: nothing.
    violation_fee_nusd: int = 0
    violation_markers: Sequence[str] = ()
    refusal: RelayError | None = None
    _tariff: Tariff | None = None
    # Of the last attempt that answered with nothing.
    _empty: tuple[Tariff, str] | None = None

    async def covers(self, step: Step) -> bool:
        """Return whether what `step` may cost is reserved; raise BillingUnavailable."""
        try:
            tariff = self.bill.tariff(
                model=step.model or self.call.model,
                group=step.group,
                upstream_model=billed_upstream_model(step),
            )
            refused = await self.bill.reserve(tariff)
        except PriceMissingError as error:
            self.refusal = ModelPriceMissing(
                f"model {str(error)!r} has no price here; tell who runs this relay", param="model"
            )
            return False
        except LedgerAwayError:
            raise BillingUnavailable(
                "the accounts can't be reached now; nothing was sent, try again in 5 s"
            ) from None
        if refused is not None:
            self.refusal = InsufficientQuota(quota_words(refused))
            return False
        self._tariff = tariff
        return True

    def answered(self, answer: Answer) -> None:
        """Charge for the answer, at its end if it is a stream."""
        if answer.stream is None:
            self._settle(answer_usage(answer, self.call))
        else:
            answer.stream.on_end.append(self._stream_ended)

    def empty(self, step: Step) -> None:
        """Remember what the empty answer to `step` costs, if the client gets it after all."""
        assert self._tariff is not None
        self._empty = self._tariff, step.group

    def passed_on(self, failure: Failure) -> str:
        """Charge for the last empty answer: the client gets it after all; return its group."""
        assert self._empty is not None
        self._tariff, group = self._empty
        self._settle(empty_usage(failure, self.dialect, self.call))
        return group

    def close(self, failure: Failure | None) -> None:
        """Refund, unless the request was charged; `failure` is how its last attempt failed."""
        is_violation = failure is not None and violates(failure, self.violation_markers)
        fee_nusd = self.violation_fee_nusd if is_violation else 0
        self.bill.refund(fee_nusd=fee_nusd, reason="violation fee" if is_violation else "")

    async def _stream_ended(self, stream: AnswerStream) -> None:
        self._settle(stream_usage(stream, self.call))

    def _settle(self, usage: Usage) -> None:
        assert self._tariff is not None  # of the attempt that answered
        self.bill.settle(self._tariff, usage)


def open_bill(
    call: Call,
    *,
    token: TokenView,
    routing: RoutingTable,
    prices: PriceTable,
    ledger: Ledger,
    dialect: Dialect,
) -> RequestBill | None:
    """Return the bill of the request; None if its endpoint is free."""
    if call.endpoint.is_free:
        return None
    options = routing.options
    bill = Bill(
        ledger=ledger,
        token=token,
        prices=prices,
        terms=Terms(
            least_prompt_tokens=options.pre_consumed_tokens,
            most_output_tokens=options.reserve_output_tokens_max,
            trust_quota_nusd=int(options.trust_quota * NANO),
            allows_unpriced=options.allow_unpriced_models,
        ),
        request_id=call.request_id,
        size=partial(size_of, call),
        seconds=partial(estimate_seconds, call.body, content_type=call.content_type),
        ratio_of=partial(_ratio, routing, token.user_group),
    )
    fee = options.violation_fee if options.violation_fee_enabled else 0
    return RequestBill(
        call=call,
        dialect=dialect,
        bill=bill,
        violation_fee_nusd=int(fee * NANO),
        violation_markers=options.violation_markers,
    )


def violates(failure: Failure, markers: Sequence[str]) -> bool:
    """Return whether an upstream's answer says that it charged for a blocked prompt."""
    told = f"{failure.code or ''} {failure.type or ''} {failure.message}".lower()
    return failure.is_answered and any(marker.lower() in told for marker in markers)


def _ratio(routing: RoutingTable, user_group: str, group: str) -> Decimal:
    return routing.ratio(user_group=user_group, group=group)


def quota_words(refused: Refused) -> str:
    """Return what was needed and what is there, in USD."""
    whose = {
        "wallet": "the account has {} left",
        "token": "this token's limit leaves {}",
        "daily": "this token's daily limit leaves {} (until 00:00 UTC)",
        "monthly": "this token's monthly limit leaves {} (until the next month, UTC)",
    }[refused.kind]
    left = whose.format(show_usd(refused.available_nusd))
    return f"this request may cost up to {show_usd(refused.needed_nusd)} and {left}"


def size_of(call: Call) -> Size:
    """Return how large the request may become; its prompt is estimated by its length."""
    return Size(
        prompt_tokens=prompt_tokens(call),
        output_tokens=call.max_output_tokens,
        calls=_answer_count(call),
    )


def prompt_tokens(call: Call) -> int:
    """Return about how many tokens the prompt has."""
    return estimate_tokens(call.body, content_type=call.content_type, max_output_tokens=0)


def _answer_count(call: Call) -> int:
    """Return how many answers the request asks for; 1 if neither dialect nor field `n` says."""
    return min(max(call.answer_count or _field_n(call), 1), MAX_ANSWERS)


def _field_n(call: Call) -> int:
    try:
        if multipart.is_form(call.content_type):
            fields = multipart.read_fields(call.body, call.content_type)
            raw = ((fields.get("n") or [None])[0] or "").encode()
        else:
            value = json_edit.split_fields(call.body).get("n", b"")
            raw = bytes(value) if isinstance(value, bytes | msgspec.Raw) else str(value).encode()
    except ValueError:
        return 1
    return count_in(msgspec.Raw(raw))


def billed_upstream_model(step: Step) -> str:
    """Return the upstream's name of the model if the channel bills by it; else empty."""
    if not step.channel.bill_upstream_model:
        return ""
    return upstream_model(step.channel, step.model)


def answer_usage(answer: Answer, call: Call) -> Usage:
    """Return what a whole answer used: as reported, else counted by its length."""
    usage = answer.usage or _counted(call, answer.output_bytes)
    return _with_more(usage, images=answer.images, seconds=answer.seconds)


def stream_usage(stream: AnswerStream, call: Call) -> Usage:
    """Return what a stream used up to its end: as reported, else counted by what was sent.

    A stream that broke off may have reported less than it had sent.
    """
    usage = stream.usage
    if usage is None:
        usage = _counted(call, stream.output_bytes)
    elif not stream.is_whole:
        counted = _counted(call, stream.output_bytes)
        usage = replace(
            usage,
            input_tokens=usage.input_tokens or counted.input_tokens,
            output_tokens=max(usage.output_tokens, counted.output_tokens),
        )
    images = max(usage.images, stream.images)  # some tell all of them at their end
    return _with_more(usage, images=images, seconds=stream.seconds)


def empty_usage(failure: Failure, dialect: Dialect, call: Call) -> Usage:
    """Return what an empty answer that is passed on has used."""
    body = failure.empty_answer or b""
    if not failure.empty_answer_type.startswith(EVENT_STREAM):
        usage = dialect.read_answer(body, failure.empty_answer_type).usage
    else:
        splitter = Splitter()
        usage = _usage_in([*splitter.feed(body), splitter.flush()], dialect)
    return usage or _counted(call, 0)


def _usage_in(events: Iterable[bytes], dialect: Dialect) -> Usage | None:
    usage: Usage | None = None
    for event in events:
        usage = merged(usage, dialect.read_event(*read_event(event)).usage)
    return usage


def _with_more(usage: Usage, *, images: int, seconds: int) -> Usage:
    return replace(usage, images=images, seconds=seconds) if images or seconds else usage


def _counted(call: Call, output_bytes: int) -> Usage:
    output_tokens = -(-output_bytes // BYTES_A_TOKEN)
    return Usage(input_tokens=prompt_tokens(call), output_tokens=output_tokens)
