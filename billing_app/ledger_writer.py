"""The one writer of ledger operations in a relay process: many requests, few transactions.

Requests put operations on a queue. A loop takes all that wait and runs them as one batch on a
thread of its own; those who reserve wait for the outcome, all else is only owed to the database
and waits there for as long as the database is away.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog
from django.db import InterfaceError, OperationalError

from billing_app.core.operations import (
    Done,
    Fee,
    Ignored,
    Limits,
    MarkRefundDue,
    Operation,
    Outcome,
    Raise,
    Refund,
    Refused,
    Reserve,
    Settle,
)
from billing_app.core.types import TokenView
from billing_app.database_thread import DatabaseThread
from billing_app.ledger import Failed, renew_lease_now, run_batch
from billing_app.tasks import queue_refunds
from billing_app.trust import LedgerAwayError, Trust

T = TypeVar("T")

log = structlog.get_logger(__name__)

BATCH = 256
# Past it nobody is trusted any more; reservations are refused by the time they would wait.
MAX_WAITING = 20_000
# How long a request waits for its reservation while the database is away.
RESERVE_S = 5.0
RETRY_S = 0.5
# How long what nobody waits for is kept for company: a busy process writes 50 times a second.
GATHER_S = 0.02
RENEW_S = 20.0
# How long a process that stops waits for the database to take what is owed to it.
CLOSE_S = 15.0


class LedgerRefusedError(Exception):
    """The database refused the operation itself; the log has the reason."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    operation: Operation
    outcome: asyncio.Future[Outcome | Failed] | None = None
    # It was in a batch whose end is not known.
    may_be_done: bool = False

    @property
    def if_wanted(self) -> _Waiting | None:
        """Return itself; if the request that asked has gone, what undoes it, if anything must."""
        if self.outcome is None or not self.outcome.done():
            return self
        if self.may_be_done and isinstance(self.operation, Reserve):
            return _Waiting(operation=MarkRefundDue(session_id=self.operation.session_id))
        return None


class Ledger:
    """Puts operations on the queue of this process' writer, and knows balances for 2 s."""

    def __init__(self) -> None:
        self.lease_id = uuid.uuid4()
        self.transactions = 0  # batches that were run, for metrics
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()  # somebody waits for an outcome
        self._closing = asyncio.Event()
        self._threads = {name: DatabaseThread(f"ledger-{name}") for name in ("write", "read")}
        self._broker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-broker")
        self._broker_work: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._renewed_s = -math.inf
        self._is_writing = False
        self._trust = Trust(self.read)

    def start(self) -> None:
        """Begin to write."""
        self._tasks = [
            asyncio.create_task(self._write_for_ever(), name="ledger-write"),
            asyncio.create_task(self._renew_for_ever(), name="ledger-renew"),
        ]

    async def close(self) -> None:
        """Write what is owed, as far as the database lets us within 15 s, and end."""
        self._closing.set()
        self._wake.set()
        self._urgent.set()
        _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S) if self._tasks else ((), ())
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._waiting:
            log.error("ledger operations lost", operations=[w.operation for w in self._waiting])
        for thread in self._threads.values():
            await thread.close()
        self._broker.shutdown(wait=False)

    async def flush(self) -> None:
        """Return once all that is owed now has been written."""
        while self._waiting or self._is_writing:  # for tests and shutdowns
            self._urgent.set()
            await asyncio.sleep(0.005)

    async def read(self, work: Callable[[], T]) -> T:
        """Return what `work` reads from the database, on the reading thread."""
        try:
            return await self._threads["read"].run(work)
        except (OperationalError, InterfaceError) as error:
            raise LedgerAwayError(str(error)) from error

    # -- what requests ask for ---------------------------------------------------------------

    async def reserve(
        self,
        session_id: uuid.UUID,
        token: TokenView,
        amount_nusd: int,
        *,
        request_id: str,
        waited_s: float = 0.0,
    ) -> Done | Refused:
        """Hold the amount, or return who has too little; raise LedgerAwayError after 5 s, with
        what the request has waited for the database before."""
        return await self._ask(
            Reserve(
                session_id=session_id,
                request_id=request_id,
                wallet_id=token.user_id,
                token_id=token.id,
                amount_nusd=amount_nusd,
                lease_id=self.lease_id,
                limits=limits_of(token),
            ),
            within_s=RESERVE_S - waited_s,
        )

    async def raise_to(
        self, session_id: uuid.UUID, token: TokenView, amount_nusd: int
    ) -> Done | Refused:
        """Hold so much in all for an open session; raise LedgerAwayError."""
        operation = Raise(session_id=session_id, amount_nusd=amount_nusd, limits=limits_of(token))
        return await self._ask(operation, within_s=RESERVE_S)

    def settle(
        self, session_id: uuid.UUID, token: TokenView, amount_nusd: int, *, request_id: str
    ) -> None:
        """Charge what was used; written as soon as the database takes it."""
        self._put(
            Settle(
                session_id=session_id,
                request_id=request_id,
                wallet_id=token.user_id,
                token_id=token.id,
                amount_nusd=amount_nusd,
            )
        )

    def mark_refund_due(self, session_id: uuid.UUID) -> None:
        """Have what the session holds given back by a task."""
        self._put(MarkRefundDue(session_id=session_id))

    def refund(self, session_id: uuid.UUID) -> None:
        """Give back what the session holds, without a task."""
        self._put(MarkRefundDue(session_id=session_id))
        self._put(Refund(session_id=session_id))

    def fee(
        self,
        session_id: uuid.UUID,
        token: TokenView,
        amount_nusd: int,
        *,
        reason: str,
        request_id: str,
    ) -> None:
        """Charge a failed request for what its provider charges."""
        self._put(
            Fee(
                session_id=session_id,
                request_id=request_id,
                wallet_id=token.user_id,
                token_id=token.id,
                amount_nusd=amount_nusd,
                reason=reason,
            )
        )

    async def trusts(
        self, session_id: uuid.UUID, token: TokenView, amount_nusd: int, *, quota_nusd: int
    ) -> bool:
        """Return whether the request may go on without a reservation, and count it if so."""
        if len(self._waiting) > MAX_WAITING // 2:
            return False
        return await self._trust.gives(session_id, token, amount_nusd, quota_nusd=quota_nusd)

    def forget(self, session_id: uuid.UUID) -> None:
        """End a trusted request that costs nothing."""
        self._trust.end(session_id)

    def forget_balance(self, wallet_id: int) -> None:
        """Read the balance anew when it is next needed: somebody else has changed it."""
        self._trust.forget(wallet_id)

    # -- the queue ---------------------------------------------------------------------------

    def _put(self, operation: Operation) -> None:
        self._waiting.append(_Waiting(operation=operation))
        self._wake.set()

    async def _ask(self, operation: Reserve | Raise, *, within_s: float) -> Done | Refused:
        if len(self._waiting) >= MAX_WAITING:
            raise LedgerAwayError("the queue of the ledger is full")
        future: asyncio.Future[Outcome | Failed] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(operation=operation, outcome=future))
        self._wake.set()
        self._urgent.set()
        try:
            async with asyncio.timeout(within_s):
                outcome = await future
        except TimeoutError:
            if not future.done() or future.cancelled():
                raise LedgerAwayError("no answer from the database") from None
            outcome = future.result()  # it came at the last moment
        except asyncio.CancelledError:
            if not future.cancelled() and isinstance(operation, Reserve):
                self._undo(operation, future.result())
            raise
        if isinstance(outcome, Done | Refused):
            return outcome
        if isinstance(outcome, Ignored) and outcome.state is not None:
            # Run twice: the connection broke after the database had carried it out.
            return Done(balance_nusd=0)
        raise LedgerAwayError("the database refused the reservation")

    def _undo(self, operation: Operation, outcome: Outcome | Failed) -> None:
        """Give back what was reserved for a request that had gone."""
        if isinstance(operation, Reserve) and isinstance(outcome, Done | Ignored):
            self.mark_refund_due(operation.session_id)

    async def _write_for_ever(self) -> None:
        while True:
            if not self._waiting:
                if self._closing.is_set():
                    return
                await self._wake.wait()
                self._wake.clear()
            await self._gather()
            self._is_writing = True
            has_written = await self._write_some()
            self._is_writing = False
            if not has_written:
                await self._pause(RETRY_S)

    async def _gather(self) -> None:
        """Wait for company, but not while somebody waits for an outcome."""
        if len(self._waiting) < BATCH:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._urgent.wait()
        if not self._closing.is_set():
            self._urgent.clear()

    async def _write_some(self) -> bool:
        """Run one batch of what waits; return False if the database is away."""
        count = min(BATCH, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(count)]
        batch = [wanted for waiting in batch if (wanted := waiting.if_wanted)]
        if not batch:
            return True
        operations = [waiting.operation for waiting in batch]
        lease_id = None
        if time.monotonic() - self._renewed_s >= RENEW_S:
            lease_id = self.lease_id
        work = partial(run_batch, operations, lease_id=lease_id)
        try:
            outcomes = await self._threads["write"].run(work)
        except (OperationalError, InterfaceError) as error:
            log.warning("ledger delayed", error=str(error), waiting=len(self._waiting) + len(batch))
            for waiting in batch:
                waiting.may_be_done = True
            self._waiting.extendleft(reversed(batch))
            return False
        except Exception:  # outermost edge: a fault here must not end the writer
            log.exception("ledger batch failed", operations=operations)
            outcomes = [Failed(error=LedgerRefusedError()) for _ in batch]
        self.transactions += 1
        if lease_id is not None:
            self._renewed_s = time.monotonic()
        for waiting, outcome in zip(batch, outcomes, strict=True):
            self._deliver(waiting, outcome)
        if any(isinstance(operation, MarkRefundDue) for operation in operations):
            self._queue_refunds()
        return True

    def _deliver(self, waiting: _Waiting, outcome: Outcome | Failed) -> None:
        operation = waiting.operation
        if isinstance(outcome, Ignored) and not isinstance(operation, Reserve):
            log.warning("ledger operation came late", operation=operation, state=outcome.state)
        if isinstance(operation, Settle | Fee):
            self._trust.end(operation.session_id)
        if isinstance(outcome, Failed) and isinstance(operation, Settle):
            self.mark_refund_due(operation.session_id)  # nothing may stay reserved for ever
        if isinstance(outcome, Done) and isinstance(operation, Reserve | Settle | Fee):
            self._trust.learn(operation.wallet_id, operation.token_id, outcome.balance_nusd)
        if waiting.outcome is None:
            return
        if waiting.outcome.done():
            self._undo(operation, outcome)
        else:
            waiting.outcome.set_result(outcome)

    # -- beside it ---------------------------------------------------------------------------

    def _queue_refunds(self) -> None:
        """Have the worker refund what is due; one message at a time is under way."""
        if self._broker_work is None or self._broker_work.done():
            loop = asyncio.get_running_loop()
            self._broker_work = loop.run_in_executor(self._broker, queue_refunds)

    async def _renew_for_ever(self) -> None:
        while not self._closing.is_set():
            await self._pause(RENEW_S / 4)
            if time.monotonic() - self._renewed_s < RENEW_S:
                continue
            try:
                await self._threads["write"].run(partial(renew_lease_now, self.lease_id))
                self._renewed_s = time.monotonic()
            except Exception as error:  # noqa: BLE001  # outermost edge: tried again soon
                log.warning("ledger lease not renewed", error=str(error))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(seconds, 0.05))  # what closes must not spin


def limits_of(token: TokenView) -> Limits:
    """Return what the token may spend."""
    return Limits(
        total_nusd=token.limit_nusd,
        daily_nusd=token.daily_limit_nusd,
        monthly_nusd=token.monthly_limit_nusd,
    )
