"""What is kept of each request: gathered while it runs, written after its answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from billing_app.core.types import TokenView
from billing_app.core.usage import Usage
from billing_app.database_thread import DatabaseThread
from relay_app.bills import RequestBill
from relay_app.claims import used_tokens
from relay_app.core.redact import cut
from relay_app.core.types import Tried
from relay_app.errors import UpstreamTimeout, UpstreamUnreachable
from relay_app.limiter import Hold
from relay_app.models import Attempt, RequestLog

log = structlog.get_logger(__name__)

BATCH = 500
# Rows wait this long for company: a request pays a small part of a transaction.
GATHER_S = 0.2
RETRY_S = 1.0
# About 20 s of a full load; past it the oldest are dropped, counted and reported.
MAX_WAITING = 20_000

# Rows of requests that carry no valid token; the log lines tell of all of them.
ANONYMOUS_ROWS_A_SECOND = 1.0
ANONYMOUS_BURST = 500

LINE_MESSAGE = 80  # characters of a failure's text in the log line of its request

NO_ANSWER = frozenset({UpstreamUnreachable.code, UpstreamTimeout.code})

CLIENT_GONE = 499  # nginx's status for a client that hung up
CLIENT_LEFT = "ABORTED"  # the outcome of such a request


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request as it goes on. Ended once, by `end`; later calls change nothing."""

    request_id: str
    endpoint: str
    client_ip: str
    started_s: float = field(default_factory=time.monotonic)
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    token: TokenView | None = None
    model: str = ""
    response_model: str = ""
    is_stream: bool = False
    # Its stream has begun, with comments, before there is an answer.
    is_late: bool = False
    attempts: list[Tried] = field(default_factory=list)
    ttft_s: float | None = None
    usage: Usage | None = None
    status: int = 0
    outcome: str = ""
    message: str = ""
    # The group that served, where it is not the token's own; why attempts ended.
    group: str = ""
    stop_reason: str = ""
    # What it counts against its token's limits while it goes on, and what is left of them.
    hold: Hold | None = None
    # What it costs; None for endpoints that are free.
    bill: RequestBill | None = None
    rate_headers: Mapping[str, str] = field(default_factory=dict)
    duration_s: float = 0.0

    @property
    def is_ended(self) -> bool:
        """Return whether `end` was called."""
        return self.status != 0

    def end(self, *, status: int, outcome: str, message: str = "") -> bool:
        """Close the record; return False if it was closed already."""
        if self.is_ended:
            return False
        self.status, self.outcome, self.message = status, outcome, message + self._why(outcome)
        self.duration_s = time.monotonic() - self.started_s
        if self.hold is not None:
            self._end_hold(self.hold)
        if self.bill is not None:
            self.bill.close(self.attempts[-1].failure if self.attempts else None)
        return True

    def _why(self, outcome: str) -> str:
        """Return how the last attempt failed, where the client is told only that all did."""
        failure = self.attempts[-1].failure if self.attempts else None
        return f": {failure.message}" if failure and outcome in NO_ANSWER else ""

    def _end_hold(self, hold: Hold) -> None:
        """Count the tokens that were used; all is given back if no upstream was asked."""
        if not self.attempts:
            hold.undo()
        elif self.outcome != CLIENT_LEFT and not self.is_begun:
            hold.end(0)
        else:
            hold.end(used_tokens(self.usage))

    @property
    def is_begun(self) -> bool:
        """Return whether an upstream answered, if only the beginning of a stream."""
        return self.ttft_s is not None or any(tried.failure is None for tried in self.attempts)

    @property
    def chain(self) -> str:
        """Return the channels in the order in which they were asked: `5->12->8`."""
        return "->".join(str(tried.channel_id) for tried in self.attempts)

    def describe(self) -> None:
        """Write the log lines: one for the chain if channels changed, one on failure."""
        if len({tried.channel_id for tried in self.attempts}) > 1:
            log.info(
                "retry: " + self.chain,  # noqa: G003  # the line people grep for
                request_id=self.request_id,
                model=cut(self.model),
                attempts=[_line(tried) for tried in self.attempts],
            )
        event, write = {
            "ok": ("request answered", log.debug),
            CLIENT_LEFT: ("client went away", log.info),
        }.get(self.outcome, ("request failed", log.warning))
        write(
            event,
            request_id=self.request_id,
            endpoint=self.endpoint,
            status=self.status,
            outcome=self.outcome,
            message=cut(self.message),
            model=cut(self.model),
            token=f"{self.token.user_name}/{self.token.name}" if self.token else None,
            attempts=[_line(tried) for tried in self.attempts],
            duration_ms=round(self.duration_s * 1000),
        )


class Allowance:
    """A token bucket: `rate` a second, `burst` at once."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._at_s = 0.0

    def take(self, now_s: float) -> bool:
        """Return whether one more is allowed at `now_s`, and count it if so."""
        refilled = self._left + (now_s - self._at_s) * self._rate
        self._left, self._at_s = min(float(self._burst), refilled), now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class LogWriter:
    """Writes ended requests in batches, in the background, and drains on close."""

    def __init__(self) -> None:
        self._waiting: deque[RequestRecord] = deque()
        self._thread = DatabaseThread("request-log")
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._dropped = 0
        self._anonymous = Allowance(rate=ANONYMOUS_ROWS_A_SECOND, burst=ANONYMOUS_BURST)

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._write_for_ever(), name="request-log")

    def put(self, record: RequestRecord) -> None:
        """Take an ended request; returns at once.

        Of requests without a valid token only some get a row: anybody can send them.
        """
        if record.token is None and not self._anonymous.take(time.monotonic()):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(record)

    async def flush(self) -> None:
        """Write all that waits; also wait for a batch that is being written."""
        async with self._lock:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                try:
                    await self._thread.run(partial(write_records, batch))
                except (OperationalError, InterfaceError):
                    self._waiting.extendleft(reversed(batch))
                    raise

    async def close(self) -> None:
        """Write what waits, as far as the database lets us, and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self.flush()
        except DatabaseError as error:
            log.error("request logs lost", count=len(self._waiting), error=str(error))
        await self._thread.close()

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(GATHER_S)
            try:
                await asyncio.shield(self.flush())
            except Exception as error:  # noqa: BLE001  # outermost edge: logs must not end the relay
                log.warning("request logs delayed", error=str(error))
                await asyncio.sleep(RETRY_S)
            if self._dropped:
                log.error("request logs dropped", count=self._dropped)
                self._dropped = 0


def write_records(records: Sequence[RequestRecord]) -> None:
    """Insert the rows of `records` in one transaction.

    A record that the database refuses is left out and logged; the others are written.
    Raises OperationalError or InterfaceError when the database is away.
    """
    try:
        _insert(records)
    except (OperationalError, InterfaceError):
        raise
    except (DatabaseError, ValueError, OverflowError) as error:
        if len(records) == 1:
            request_id = records[0].request_id
            log.error("request log refused", request_id=request_id, error=str(error))
            return
        for record in records:
            write_records([record])


@transaction.atomic
def _insert(records: Sequence[RequestRecord]) -> None:
    rows = RequestLog.objects.bulk_create([_row(record) for record in records])
    Attempt.objects.bulk_create(
        _attempt_row(row, tried)
        for row, record in zip(rows, records, strict=True)
        for tried in record.attempts
    )


def _row(record: RequestRecord) -> RequestLog:
    token, usage = record.token, record.usage
    return RequestLog(
        request_id=record.request_id,
        created_at=record.created_at,
        user_name=_text(token.user_name if token else "", 150),
        token_id=token.id if token else None,
        token_name=_text(token.name if token else "", 100),
        group=_text(record.group or (token.group if token else ""), 100),
        endpoint=_text(record.endpoint, 100),
        request_model=_text(record.model, 200),
        response_model=_text(record.response_model, 200),
        is_stream=record.is_stream,
        status=record.status,
        outcome=_text(record.outcome, 32),
        message=_text(record.message, 200),
        chain=_text(record.chain, 200),
        attempt_count=len(record.attempts),
        stop_reason=_text(record.stop_reason, 64),
        duration_ms=round(record.duration_s * 1000),
        ttft_ms=None if record.ttft_s is None else round(record.ttft_s * 1000),
        input_tokens=usage.input_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        client_ip=_text(record.client_ip, 45),
        **_money(record.bill),
    )


def _money(request_bill: RequestBill | None) -> dict[str, Any]:
    """Return the columns that tell what was paid."""
    if request_bill is None:
        return {}
    bill = request_bill.bill
    return {
        "cost_nusd": bill.cost_nusd,
        "billing": bill.state,
        "billed_model": _text(bill.billed_model, 200),
    }


def _attempt_row(row: RequestLog, tried: Tried) -> Attempt:
    failure = tried.failure
    return Attempt(
        request=row,
        number=tried.number,
        channel_id=tried.channel_id,
        channel_name=_text(tried.channel_name, 100),
        key_id=tried.key_id,
        status=failure.status if failure else tried.status,
        failure_class=failure.failure_class.value if failure else "",
        upstream_type=_text(failure.type if failure else "", 100),
        upstream_code=_text(failure.code if failure else "", 100),
        upstream_request_id=_text(tried.upstream_request_id, 100),
        message=_text(failure.message if failure else "", 200),
        wait_ms=round(tried.wait_s * 1000),
        duration_ms=round(tried.duration_s * 1000),
        decision=_text(tried.decision, 64),
        upstream_model=_text(tried.upstream_model, 200),
    )


def _text(value: str | None, length: int) -> str:
    """Return `value` as every database takes it: no NUL, no lone surrogate, not long."""
    text = (value or "").replace("\x00", "�")
    return cut(text.encode("utf-8", "replace").decode(), length)


def _line(tried: Tried) -> str:
    if tried.failure is None:
        return f"{tried.channel_name}: ok"
    status = f" {tried.failure.status}" if tried.failure.is_answered else ""
    reason = cut(tried.failure.message, LINE_MESSAGE)
    return f"{tried.channel_name}: {tried.failure.failure_class}{status} {reason}"
