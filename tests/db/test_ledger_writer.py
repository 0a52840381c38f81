"""The ledger's writer: few transactions, a bounded queue, a database that is away for a while."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from django.db import OperationalError

from billing_app import ledger_writer, trust
from billing_app.audit import audit
from billing_app.core.operations import Done, Operation, Refused
from billing_app.core.pricing import PriceView, price_table
from billing_app.core.types import TokenView
from billing_app.ledger import run_batch
from billing_app.ledger_models import OPEN_STATES
from billing_app.ledger_writer import Ledger
from billing_app.models import BillingSession, LedgerEntry, Token, User, Wallet
from billing_app.services import token_create, wallet_credit
from billing_app.sessions import Bill, Size, Terms
from billing_app.tasks import refund_due_sessions
from billing_app.trust import LedgerAwayError
from tests.conftest import empty_tables

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def token(transactional_db: None) -> Iterator[Token]:
    empty_tables()
    user = User.objects.create_user("alice")
    token, _ = token_create(user=user, name="t")
    yield token
    empty_tables()


class Database:
    """Stands before `run_batch`: may be away, or keep batches waiting until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = False
        self.loses_commit = False  # the next batch is carried out, its end is not told
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.refunds_queued = 0
        monkeypatch.setattr(ledger_writer, "run_batch", self._run_batch)
        monkeypatch.setattr(ledger_writer, "RETRY_S", 0.01)
        monkeypatch.setattr(ledger_writer, "queue_refunds", self._queue_refunds)
        monkeypatch.setattr(trust, "READ_AGAIN_S", 0.0)
        read = trust._balances_of

        def balances_of(*ids: int) -> tuple[int, int]:
            self._fail_if_away()
            return read(*ids)

        monkeypatch.setattr(trust, "_balances_of", balances_of)

    def _fail_if_away(self) -> None:
        if self.is_away:
            raise OperationalError("connection refused")

    def _run_batch(self, operations: Sequence[Operation], **kwargs: Any) -> Any:
        self.arrived.set()
        assert self.gate.wait(10)
        self._fail_if_away()
        outcomes = run_batch(operations, **kwargs)
        if self.loses_commit:
            self.loses_commit, self.is_away = False, True
            self._fail_if_away()
        return outcomes

    def _queue_refunds(self) -> None:
        self.refunds_queued += 1


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(monkeypatch)


def view(token: Token, **limits: Any) -> TokenView:
    return TokenView(
        id=token.pk, name="t", user_id=token.user_id, user_name="alice", group="", **limits
    )


@asynccontextmanager
async def writing() -> AsyncIterator[Ledger]:
    ledger = Ledger()
    ledger.start()
    try:
        yield ledger
    finally:
        await ledger.close()


def run(work: Callable[[Ledger], Coroutine[Any, Any, Any]]) -> Any:
    """Run `work` with a ledger that is closed after it."""

    async def main() -> Any:
        async with writing() as ledger:
            return await work(ledger)

    return asyncio.run(main())


def pay_in(token: Token, amount: int) -> None:
    wallet_credit(user_id=token.user_id, amount_nusd=amount, reason="test")


def balances(token: Token) -> tuple[int, int, int]:
    wallet = Wallet.objects.get(pk=token.user_id)
    return wallet.available_nusd, wallet.reserved_nusd, wallet.spent_nusd


def reserve(ledger: Ledger, token: Token, amount: int = 10, **limits: Any) -> Any:
    return ledger.reserve(uuid.uuid4(), view(token, **limits), amount, request_id="r")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_64_at_once_share_transactions(token: Token) -> None:
    pay_in(token, 1_000_000)
    rounds, clients = 10, 64

    async def client(ledger: Ledger) -> None:
        for _ in range(rounds):
            session_id = uuid.uuid4()
            await ledger.reserve(session_id, view(token), 10, request_id="r")
            await asyncio.sleep(0.01)
            ledger.settle(session_id, view(token), 7, request_id="r")

    async def work(ledger: Ledger) -> int:
        await asyncio.gather(*(client(ledger) for _ in range(clients)))
        await ledger.flush()
        return ledger.transactions

    transactions = run(work)

    assert balances(token) == (1_000_000 - 7 * rounds * clients, 0, 7 * rounds * clients)
    assert transactions <= 0.1 * rounds * clients
    assert audit() == []


def test_what_fails_in_a_batch_fails_alone(token: Token, database: Database) -> None:
    pay_in(token, 1000)
    stranger = TokenView(id=token.pk, name="t", user_id=10**9, user_name="nobody", group="")

    async def work(ledger: Ledger) -> list[Any]:
        return await asyncio.gather(
            reserve(ledger, token),
            ledger.reserve(uuid.uuid4(), stranger, 10, request_id="r"),
            reserve(ledger, token, 5000),
            reserve(ledger, token),
            return_exceptions=True,
        )

    outcomes = run(work)

    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Done, LedgerAwayError, Refused, Done]
    assert balances(token) == (980, 20, 0)


def test_a_fault_in_a_batch_does_not_end_the_writer(
    token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay_in(token, 1000)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault")

    async def work(ledger: Ledger) -> Any:
        monkeypatch.setattr(ledger_writer, "run_batch", broken)
        with pytest.raises(LedgerAwayError):
            await reserve(ledger, token)
        monkeypatch.setattr(ledger_writer, "run_batch", run_batch)
        return await reserve(ledger, token)

    assert isinstance(run(work), Done)


def test_the_queue_is_bounded(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay_in(token, 1000)
    monkeypatch.setattr(ledger_writer, "MAX_WAITING", 8)

    async def work(ledger: Ledger) -> tuple[list[Any], bool]:
        database.gate.clear()
        first = asyncio.create_task(reserve(ledger, token))
        await until(database.arrived.is_set)
        others = [asyncio.create_task(reserve(ledger, token)) for _ in range(20)]
        await asyncio.sleep(0)
        trusted = await ledger.trusts(uuid.uuid4(), view(token), 1, quota_nusd=10)
        database.gate.set()
        return await asyncio.gather(first, *others, return_exceptions=True), trusted

    outcomes, is_trusted = run(work)

    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Done] * 9 + [LedgerAwayError] * 12
    assert not is_trusted
    assert balances(token) == (910, 90, 0)


def test_a_database_that_is_away_refuses_reservations_and_is_owed_the_rest(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay_in(token, 1000)

    async def work(ledger: Ledger) -> None:
        answered, failed = uuid.uuid4(), uuid.uuid4()
        for session_id in (answered, failed):
            await ledger.reserve(session_id, view(token), 100, request_id="r")
        database.is_away = True
        ledger.settle(answered, view(token), 70, request_id="r")
        ledger.mark_refund_due(failed)
        with monkeypatch.context() as patch:
            patch.setattr(ledger_writer, "RESERVE_S", 0.1)
            with pytest.raises(LedgerAwayError, match="no answer"):
                await reserve(ledger, token)
        database.is_away = False
        await ledger.flush()
        assert isinstance(await reserve(ledger, token, 1), Done)

    run(work)
    refund_due_sessions()

    assert balances(token) == (929, 1, 70)
    open_ones = BillingSession.objects.filter(state__in=OPEN_STATES)
    assert [session.reserved_nusd for session in open_ones] == [1]
    assert database.refunds_queued >= 1
    assert audit() == []


@pytest.mark.parametrize("how", ["cancelled", "too late"])
def test_a_reservation_that_nobody_waits_for_any_more_is_given_back(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pay_in(token, 1000)
    monkeypatch.setattr(ledger_writer, "RESERVE_S", 0.05 if how == "too late" else 5.0)

    async def work(ledger: Ledger) -> None:
        database.gate.clear()
        asked = asyncio.create_task(reserve(ledger, token))
        await until(database.arrived.is_set)
        if how == "cancelled":
            asked.cancel()
        with pytest.raises((asyncio.CancelledError, LedgerAwayError)):
            await asked
        database.gate.set()
        await ledger.flush()

    run(work)

    assert [session.state for session in BillingSession.objects.all()] == ["refund_due"]
    assert refund_due_sessions() == 1
    assert balances(token) == (1000, 0, 0)


def test_a_reservation_whose_commit_was_not_confirmed_is_given_back(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay_in(token, 1000)
    monkeypatch.setattr(ledger_writer, "RESERVE_S", 0.2)
    database.loses_commit = True

    async def work(ledger: Ledger) -> None:
        with pytest.raises(LedgerAwayError):
            await reserve(ledger, token)
        database.is_away = False
        await ledger.flush()

    run(work)

    assert [session.state for session in BillingSession.objects.all()] == ["refund_due"]
    assert refund_due_sessions() == 1
    assert balances(token) == (1000, 0, 0)


def test_a_settlement_that_the_database_refuses_leaves_nothing_reserved(token: Token) -> None:
    pay_in(token, 1000)

    async def work(ledger: Ledger) -> None:
        session_id = uuid.uuid4()
        await ledger.reserve(session_id, view(token), 100, request_id="r")
        ledger.settle(session_id, view(token), 2**70, request_id="r")
        await ledger.flush()

    run(work)
    refund_due_sessions()

    assert balances(token) == (1000, 0, 0)
    assert audit() == []


def test_a_database_that_hangs_holds_a_request_for_five_seconds_in_all(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_writer, "RESERVE_S", 2.0)
    monkeypatch.setattr(trust, "READ_S", 1.8)
    hanging = threading.Event()
    monkeypatch.setattr(trust, "_balances_of", lambda *_: hanging.wait(10))

    async def work(ledger: Ledger) -> float:
        database.gate.clear()
        price = PriceView(model="m", per_call=Decimal("0.001"))
        bill = Bill(
            ledger=ledger,
            token=view(token),
            prices=price_table([price]),
            terms=Terms(
                least_prompt_tokens=0,
                most_output_tokens=0,
                trust_quota_nusd=1,
                allows_unpriced=False,
            ),
            request_id="r",
            size=lambda: Size(prompt_tokens=1, output_tokens=1),
            ratio_of=lambda _: Decimal(1),
        )
        began_s = time.monotonic()
        with pytest.raises(LedgerAwayError):
            await bill.reserve(bill.tariff(model="m", group=""))
        took_s = time.monotonic() - began_s
        hanging.set()
        database.gate.set()
        return took_s

    assert run(work) < 3.0  # not 3.8


def test_an_older_read_does_not_replace_what_the_writer_has_learned(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay_in(token, 1000)
    reading, go_on = threading.Event(), threading.Event()
    read = trust._balances_of

    def slow_read(*ids: int) -> tuple[int, int]:
        found = read(*ids)
        reading.set()
        assert go_on.wait(10)
        return found

    monkeypatch.setattr(trust, "_balances_of", slow_read)

    async def work(ledger: Ledger) -> bool:
        asked = asyncio.create_task(trusts(ledger, token))
        await until(reading.is_set)
        ledger.settle(uuid.uuid4(), view(token), 950, request_id="r")
        await ledger.flush()
        go_on.set()
        return bool(await asked)

    assert run(work) is False


def test_a_request_that_leaves_the_queue_reserves_nothing(token: Token, database: Database) -> None:
    pay_in(token, 1000)

    async def work(ledger: Ledger) -> None:
        database.gate.clear()
        first = asyncio.create_task(reserve(ledger, token))
        await until(database.arrived.is_set)
        second = asyncio.create_task(reserve(ledger, token))
        await asyncio.sleep(0)
        second.cancel()
        database.gate.set()
        await asyncio.gather(first, second, return_exceptions=True)
        await ledger.flush()

    run(work)

    assert BillingSession.objects.count() == 1


def test_closing_writes_what_is_owed(token: Token, database: Database) -> None:
    pay_in(token, 1000)

    async def work(ledger: Ledger) -> None:
        session_id = uuid.uuid4()
        await ledger.reserve(session_id, view(token), 100, request_id="r")
        database.is_away = True
        ledger.settle(session_id, view(token), 70, request_id="r")
        asyncio.get_running_loop().call_later(0.2, setattr, database, "is_away", False)

    run(work)

    assert balances(token) == (930, 0, 70)


def test_closing_ends_though_the_database_stays_away(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay_in(token, 1000)
    monkeypatch.setattr(ledger_writer, "CLOSE_S", 0.2)

    async def work(ledger: Ledger) -> None:
        database.is_away = True
        ledger.settle(uuid.uuid4(), view(token), 70, request_id="r")

    run(work)

    assert balances(token) == (1000, 0, 0)


def trusts(ledger: Ledger, token: Token, amount: int = 10, **limits: Any) -> Any:
    return ledger.trusts(uuid.uuid4(), view(token, **limits), amount, quota_nusd=100)


def test_trust_ends_where_open_requests_may_cost_too_much(token: Token) -> None:
    pay_in(token, 150)

    async def work(ledger: Ledger) -> list[bool]:
        return [await trusts(ledger, token, 20) for _ in range(5)]

    assert run(work) == [True, True, True, False, False]


def test_a_trusted_request_that_ends_makes_room_for_another(token: Token) -> None:
    pay_in(token, 150)

    async def work(ledger: Ledger) -> list[bool]:
        first, second = uuid.uuid4(), uuid.uuid4()
        told = [
            await ledger.trusts(first, view(token), 30, quota_nusd=100),
            await ledger.trusts(second, view(token), 30, quota_nusd=100),
            await trusts(ledger, token),
        ]
        ledger.forget(first)
        ledger.settle(second, view(token), 10, request_id="r")
        await ledger.flush()
        return [*told, await trusts(ledger, token), await trusts(ledger, token, 40)]

    assert run(work) == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("limits", "is_trusted"),
    [
        ({}, True),
        ({"limit_nusd": 10_000}, True),
        ({"limit_nusd": 100}, False),
        ({"daily_limit_nusd": 10_000}, False),
        ({"monthly_limit_nusd": 10_000}, False),
    ],
)
def test_limits_of_the_token_bound_trust(
    token: Token, limits: dict[str, int], is_trusted: bool
) -> None:
    pay_in(token, 5000)

    assert run(lambda ledger: trusts(ledger, token, **limits)) is is_trusted


def test_trusted_requests_go_on_while_the_database_is_away(
    token: Token, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay_in(token, 150)
    monkeypatch.setattr(trust, "KNOWN_S", -1.0)

    async def work(ledger: Ledger) -> list[bool]:
        told = [await trusts(ledger, token)]
        database.is_away = True
        session_id = uuid.uuid4()
        told.append(await ledger.trusts(session_id, view(token), 40, quota_nusd=100))
        ledger.settle(session_id, view(token), 40, request_id="r")
        told.append(await trusts(ledger, token))  # what is owed still counts
        database.is_away = False
        await ledger.flush()
        return told

    assert run(work) == [True, True, False]
    assert LedgerEntry.objects.filter(kind="settle").count() == 1


def test_nobody_is_trusted_on_a_balance_that_was_never_known(
    token: Token, database: Database
) -> None:
    pay_in(token, 1000)
    database.is_away = True

    async def work(ledger: Ledger) -> bool:
        told = await trusts(ledger, token)
        database.is_away = False
        return bool(told)

    assert run(work) is False


def test_a_lease_is_renewed_while_nothing_is_written(
    token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    from billing_app.models import LedgerLease

    monkeypatch.setattr(ledger_writer, "RENEW_S", 0.05)

    async def work(ledger: Ledger) -> list[Any]:
        seen: list[Any] = []

        def expiry() -> Any:
            return LedgerLease.objects.values_list("expires_at", flat=True).first()

        for _ in range(2):
            before = seen[-1] if seen else None
            while (found := await ledger.read(expiry)) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            seen.append(found)
        return seen

    first, second = run(work)

    assert second > first
