"""One relayed request, from the parsed body to the answer. Read this file first.

    1. route    routes.find_routes            the channels for token and model, in memory
    2. pick     core.attempts.AttemptLoop     channel, key and wait; the whole budget
    3. send     attempt.send                  provider builds, transport carries it
    4. judge    core.classify names it, core.retry decides what follows
    5. answer   a body, or a stream past its commit point

Steps 2 to 4 repeat until an attempt answers or the loop ends. This module owns the
order, the clock and the dice; the rules live in `core/`, the sockets in `transport`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Mapping

import httpx

from billing_app.core.types import TokenView
from channels_app.core.routing import RoutingTable
from channels_app.core.types import Failure, FailureClass
from relay_app import attempt
from relay_app.attempt import Answer
from relay_app.core.attempts import AttemptLoop, Rolls, Step, telling_failure
from relay_app.core.classify import map_status
from relay_app.core.limits import limits_of
from relay_app.core.types import Call, Tried
from relay_app.dialects.base import Dialect
from relay_app.errors import (
    RelayError,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from relay_app.request_log import RequestRecord
from relay_app.routes import find_routes
from relay_app.shaping import upstream_model

# Counts the sends of this process: channels whose keys are used in turn follow it.
_turns: Iterator[int] = itertools.count()


class Clock:
    """The time that budgets and waits are measured by; tests put another in its place."""

    now_s = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


clock = Clock()

ABORTED = Failure(failure_class=FailureClass.ABORTED, message="the client went away")


async def relay(
    call: Call,
    *,
    token: TokenView,
    routing: RoutingTable,
    dialect: Dialect,
    transports: Mapping[str, httpx.AsyncBaseTransport],
    record: RequestRecord,
) -> Answer:
    """Return the answer of the first attempt that gives one; note each in `record`.

    Raises RelayError: the upstream's own failure, or why nothing could be sent.
    """
    loop = AttemptLoop(
        models=find_routes(routing, token=token, model=call.model, dialect=call.endpoint.dialect),
        options=routing.options,
        started_s=clock.now_s(),
        has_specific_channel=bool(token.specific_channel),
    )
    while step := loop.next_step(now_s=clock.now_s(), rolls=_roll(), turn=next(_turns)):
        if step.wait_s:
            await clock.sleep(step.wait_s)
        began_s = clock.now_s()
        try:
            outcome = await attempt.send(
                call,
                step,
                transport=transports.get(step.channel.provider, transports["http"]),
                dialect=dialect,
                limits=limits_of(step.channel, routing.options, step.model),
                last_failure=loop.failures[-1] if loop.failures else None,
            )
        except asyncio.CancelledError:
            _note(record, step, began_s, failure=ABORTED, decision="client gone")
            raise
        if isinstance(outcome, Answer):
            record.group = step.group
            _note(record, step, began_s, status=outcome.status, decision="answered")
            return outcome
        failure = map_status(outcome, step.channel.status_map)
        decision = loop.failed(failure, now_s=clock.now_s())
        _note(record, step, began_s, failure=failure, decision=decision.reason)
    record.stop_reason = loop.stop_reason
    return _last_resort(loop)


def _roll() -> Rolls:
    return Rolls(channel=random.random(), key=random.random(), wait=random.random())


def _note(
    record: RequestRecord,
    step: Step,
    began_s: float,
    *,
    decision: str,
    failure: Failure | None = None,
    status: int | None = None,
) -> None:
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
            status=status,
            upstream_model=upstream_model(step.channel, step.model),
        )
    )


def _last_resort(loop: AttemptLoop) -> Answer:
    """Return an empty answer if that is the truest thing left to tell, else raise why all
    attempts failed."""
    failure = telling_failure(loop.failures)
    if failure is None or failure.empty_answer is None:
        raise _final_error(loop)
    return Answer(status=200, content_type=failure.empty_answer_type, body=failure.empty_answer)


def _final_error(loop: AttemptLoop) -> RelayError:
    """Return what the client is told when every attempt failed (spec 01 section 8):
    the last failure that got an HTTP answer, else why none did."""
    failure = telling_failure(loop.failures)
    if failure is not None:
        return UpstreamFailed(failure)
    attempts = len(loop.failures)
    if loop.failures and loop.failures[-1].failure_class is FailureClass.TIMEOUT:
        return UpstreamTimeout(f"no upstream answered in time ({attempts} attempts)")
    return UpstreamUnreachable(f"no upstream gave an answer ({attempts} attempts)")
