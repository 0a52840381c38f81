"""One relayed request, from the parsed body to the answer. Read this file first.

    1. route    routes.find_routes            the channels for token and model, in memory
    2. reserve  billing_app.sessions.Bill     what it may cost, once
    3. pick     core.attempts.AttemptLoop     channel, key and wait; the whole budget
    4. send     attempt.send                  provider builds, transport carries it
    5. judge    core.classify names it, core.retry decides what follows
    6. answer   a body, or a stream past its commit point
    7. settle   for what was used, or refund  once, also for clients that left

Steps 3 to 5 repeat until an attempt answers or the loop ends. This module owns the
order, the clock and the dice; the rules live in `core/`, the sockets in `transport`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import httpx

from billing_app.core.types import TokenView
from channels_app.core.rates import Refused
from channels_app.core.routing import RoutingTable
from channels_app.core.types import Failure, FailureClass
from relay_app import attempt
from relay_app.attempt import Answer
from relay_app.bills import RequestBill
from relay_app.bindings import Binding
from relay_app.claims import (
    KEY,
    limit_words,
    rate_headers,
    room_wait_s,
    step_claim,
    token_claim,
    used_tokens,
)
from relay_app.core.attempts import AttemptLoop, Rolls, Step
from relay_app.core.classify import map_status
from relay_app.core.estimate import estimate_tokens
from relay_app.core.limits import limits_of
from relay_app.core.retry import telling_failure
from relay_app.core.types import Call, Tried
from relay_app.dialects.base import Dialect
from relay_app.errors import (
    STOPPING,
    ModelPriceMissing,
    RateLimitExceeded,
    RelayError,
    UpstreamCapacity,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
    is_stopping,
)
from relay_app.limiter import Hold, Limiter
from relay_app.request_log import RequestRecord
from relay_app.routes import find_routes
from relay_app.shaping import upstream_model
from relay_app.streaming import AnswerStream

# Counts the sends of this process: channels whose keys are used in turn follow it.
_turns: Iterator[int] = itertools.count()


class Clock:
    """The time that budgets and waits are measured by; tests put another in its place."""

    now_s = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


clock = Clock()

ABORTED = Failure(failure_class=FailureClass.ABORTED, message="the client went away")
NO_STREAM = Failure(
    failure_class=FailureClass.SERVER, message="the upstream answered without a stream"
)
STOPPED = Failure(failure_class=FailureClass.ABORTED, message=STOPPING)


async def relay(
    call: Call,
    *,
    token: TokenView,
    routing: RoutingTable,
    dialect: Dialect,
    transports: Mapping[str, httpx.AsyncBaseTransport],
    limiter: Limiter,
    record: RequestRecord,
    bound: Binding | None = None,
) -> Answer:
    """Return the answer of the first attempt that gives one; note each in `record`.

    A request that is `bound` goes to that channel alone.
    Raises RelayError: the upstream's own failure, or why nothing could be sent.
    """
    models = find_routes(
        routing, token=token, model=call.model, dialect=call.endpoint.dialect, bound=bound
    )
    if token.has_rates:
        await _admit(call, token, limiter=limiter, record=record)
    options = routing.options
    loop = AttemptLoop(
        models=models,
        options=options,
        started_s=clock.now_s(),
        has_specific_channel=bool(token.specific_channel),
    )
    room = RoomWait(longest_s=options.all_parked_wait_max)
    while True:
        step = loop.next_step(now_s=clock.now_s(), rolls=_roll(), turn=next(_turns))
        if step is None:
            if await room.wait_for(loop):
                continue
            break
        hold = await _make_ready(call, step, loop=loop, limiter=limiter, bill=record.bill)
        if isinstance(hold, NotReady):
            continue
        began_s = clock.now_s()
        try:
            outcome = await attempt.send(
                call,
                step,
                transport=transports.get(step.channel.provider, transports["http"]),
                dialect=dialect,
                limits=limits_of(step.channel, options, step.model),
                last_failure=loop.failures[-1] if loop.failures else None,
            )
        except asyncio.CancelledError as error:
            _note_cancelled(record, step, began_s, error)
            _end_hold(hold, None)
            raise
        _end_hold(hold, outcome)
        if isinstance(outcome, Answer):
            if not (record.is_late and outcome.is_whole):
                return _answered(record, step, began_s, outcome)
            outcome = NO_STREAM
        failure = map_status(outcome, step.channel.status_map)
        if failure.empty_answer is not None and record.bill is not None:
            record.bill.empty(step)
        decision = loop.failed(failure, now_s=clock.now_s())
        _note(record, step, began_s, failure=failure, decision=decision.reason)
    record.stop_reason = loop.stop_reason or "all full"
    return _last_resort(loop, record)


async def _admit(call: Call, token: TokenView, *, limiter: Limiter, record: RequestRecord) -> None:
    """Count the request against its token's limits, until `record` ends; raise
    RateLimitExceeded."""
    taken = await limiter.take(token_claim(token, tokens=_tokens(call)))
    record.rate_headers = rate_headers(token, taken.rooms[0])
    if isinstance(taken, Refused):
        raise RateLimitExceeded(
            f"this token may make {limit_words(token, taken.limit)};"
            f" try again in {max(1, math.ceil(taken.wait_s))} s",
            retry_after_s=max(1.0, taken.wait_s),
        )
    record.hold = taken


class NotReady:
    """The step can't be taken; the loop was told."""


NOT_READY = NotReady()


async def _make_ready(
    call: Call, step: Step, *, loop: AttemptLoop, limiter: Limiter, bill: RequestBill | None
) -> Hold | NotReady | None:
    """Reserve what the step may cost, wait as it says, and take what it needs of its channel and
    key."""
    if bill is not None and not await bill.covers(step):
        loop.not_covered()
        return NOT_READY
    if step.wait_s:
        await clock.sleep(step.wait_s)
    if step.channel.rates is None and (step.key is None or step.key.rates is None):
        return None
    taken = await limiter.take(step_claim(step, tokens=_tokens(call)))
    if isinstance(taken, Refused):
        loop.refused(
            is_key=taken.meter.startswith(KEY), room_at_s=clock.now_s() + room_wait_s(taken)
        )
        return NOT_READY
    return taken


def _note_cancelled(
    record: RequestRecord, step: Step, began_s: float, error: asyncio.CancelledError
) -> None:
    if is_stopping(error):
        _note(record, step, began_s, failure=STOPPED, decision="relay stopped")
    else:
        _note(record, step, began_s, failure=ABORTED, decision="client gone")


def _end_hold(hold: Hold | None, outcome: Answer | Failure | None) -> None:
    """End `hold`, if there is one, now or with the stream that goes on; None: aborted."""
    if hold is None:
        return
    if outcome is None:
        hold.end()
    elif isinstance(outcome, Failure):
        hold.end(0)
    elif outcome.stream is None:
        hold.end(used_tokens(outcome.usage))
    else:
        outcome.stream.on_end.append(partial(_end_with_stream, hold))


async def _end_with_stream(hold: Hold, stream: AnswerStream) -> None:
    hold.end(used_tokens(stream.usage))


def _tokens(call: Call) -> int:
    return estimate_tokens(
        call.body, content_type=call.content_type, max_output_tokens=call.max_output_tokens
    )


@dataclass(slots=True, kw_only=True)
class RoomWait:
    """How long a request has waited for channels that are all full; `longest_s` in all."""

    longest_s: float
    until_s: float | None = None

    async def wait_for(self, loop: AttemptLoop) -> bool:
        """Wait until one that was full may have room; return False if that is too far off."""
        room_at_s, now_s = loop.room_at_s, clock.now_s()
        if room_at_s is None:
            return False
        if self.until_s is None:
            self.until_s = now_s + self.longest_s
        if room_at_s > self.until_s:
            return False
        await clock.sleep(max(0.0, room_at_s - now_s))
        loop.forget_full()
        return True


def _roll() -> Rolls:
    return Rolls(channel=random.random(), key=random.random(), wait=random.random())


def _note(
    record: RequestRecord,
    step: Step,
    began_s: float,
    *,
    decision: str,
    failure: Failure | None = None,
    answer: Answer | None = None,
) -> None:
    told = answer or failure
    record.attempts.append(
        Tried(
            number=step.number,
            channel_id=step.channel.id,
            channel_name=step.channel.name,
            key_id=step.key.id if step.key else None,
            failure=failure,
            wait_s=step.wait_s,
            duration_s=clock.now_s() - began_s,
            decision=decision,
            status=answer.status if answer else None,
            upstream_request_id=told.upstream_request_id if told else "",
            upstream_model=upstream_model(step.channel, step.model),
        )
    )


async def _note_end(record: RequestRecord, began_s: float, stream: AnswerStream) -> None:
    """Note how the stream of the last attempt ended, unless it is whole."""
    if stream.is_whole:
        return
    failure, decision = stream.failure, "answer begun"
    if failure is None:
        failure, decision = ABORTED, "client gone"
    elif stream.is_interrupted:
        decision = "relay stopped"
    record.attempts[-1] = replace(
        record.attempts[-1],
        failure=failure,
        decision=decision,
        duration_s=clock.now_s() - began_s,
    )


def _answered(record: RequestRecord, step: Step, began_s: float, answer: Answer) -> Answer:
    """Return the answer, noted and charged for: at its end, if it is a stream."""
    record.group = step.group
    _note(record, step, began_s, answer=answer, decision="answered")
    if answer.stream is not None:
        answer.stream.on_end.append(partial(_note_end, record, began_s))
    if record.bill is not None:
        record.bill.answered(answer)
    return answer


def _last_resort(loop: AttemptLoop, record: RequestRecord) -> Answer:
    """Return an empty answer if that is the truest thing left to tell, else raise why all
    attempts failed, or why none was paid for."""
    bill = record.bill
    is_full = loop.room_at_s is not None
    if bill is not None and bill.refusal is not None and not (loop.failures or is_full):
        is_unpriced = isinstance(bill.refusal, ModelPriceMissing)
        record.stop_reason = "no price" if is_unpriced else "not covered"
        raise bill.refusal
    failure = telling_failure(loop.failures)
    if failure is None or failure.empty_answer is None:
        raise _final_error(loop)
    answer = Answer(status=200, content_type=failure.empty_answer_type, body=failure.empty_answer)
    if record.is_late and answer.is_whole:
        raise _final_error(loop)
    if bill is not None:
        record.group = bill.passed_on(failure)
    return answer


def _final_error(loop: AttemptLoop) -> RelayError:
    """Return what the client is told when every attempt failed (spec 01 section 8):
    the last failure that got an HTTP answer, else why none did."""
    failure = telling_failure(loop.failures)
    if failure is not None:
        return UpstreamFailed(failure)
    if not loop.failures and loop.room_at_s is not None:
        wait_s = max(1.0, loop.room_at_s - clock.now_s())
        text = f"all channels for this model are at their limits; try again in {wait_s:.0f} s"
        return UpstreamCapacity(text, retry_after_s=wait_s)
    count = len(loop.failures)
    attempts = "1 attempt" if count == 1 else f"{count} attempts"
    if loop.failures and loop.failures[-1].failure_class is FailureClass.TIMEOUT:
        return UpstreamTimeout(f"no upstream answered in time ({attempts})")
    if {f.failure_class for f in loop.failures} == {FailureClass.CHANNEL_CONFIG}:
        return UpstreamUnreachable(
            "nothing could be sent to an upstream: what serves this model is not set up"
            f" completely here; tell who runs this relay ({attempts})"
        )
    return UpstreamUnreachable(f"no upstream gave an answer ({attempts})")
