"""The books against random histories: the sums hold, and every session ends once."""

from __future__ import annotations

import copy
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from billing_app.core.books import Books
from billing_app.core.operations import (
    CREDITS,
    Credit,
    Done,
    Fee,
    Ignored,
    Kind,
    Limits,
    MarkRefundDue,
    Raise,
    Reap,
    Refund,
    Refused,
    Reserve,
    Settle,
    UnknownWalletError,
    WalletRow,
)
from billing_app.core.session import HOLDING, State

START = datetime(2026, 1, 31, 22, tzinfo=UTC)
LEASE = uuid.uuid4()
WALLETS = (1, 2)
TOKENS = {10: 1, 11: 1, 20: 2}  # token to wallet
LIMITS = {
    10: Limits(),
    11: Limits(total_nusd=500, daily_nusd=200, monthly_nusd=400),
    20: Limits(daily_nusd=100),
}

amounts = st.integers(0, 150)
tokens = st.sampled_from(sorted(TOKENS))


def reserve(token: int, amount: int, session_id: uuid.UUID | None = None) -> Reserve:
    return Reserve(
        session_id=session_id or uuid.uuid4(),
        request_id="r",
        wallet_id=TOKENS[token],
        token_id=token,
        amount_nusd=amount,
        lease_id=LEASE,
        limits=LIMITS[token],
    )


def settle(session_id: uuid.UUID, token: int, amount: int) -> Settle:
    return Settle(
        session_id=session_id,
        request_id="r",
        wallet_id=TOKENS[token],
        token_id=token,
        amount_nusd=amount,
    )


def new_books(now: datetime = START) -> Books:
    return Books(now=now, wallets={pk: WalletRow(id=pk) for pk in WALLETS})


class BooksMachine(RuleBasedStateMachine):
    """Requests that reserve, raise, settle, fail, are reaped, and all of it late and twice."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.books = new_books()
        self.ends: dict[uuid.UUID, list[Kind]] = {}

    @rule(wallet=st.sampled_from(WALLETS), amount=st.integers(1, 400))
    def pay_in(self, wallet: int, amount: int) -> None:
        credit = Credit(wallet_id=wallet, amount_nusd=amount, kind=Kind.TOP_UP, reason="r")
        assert isinstance(self.books.apply(credit), Done)

    @rule(wallet=st.sampled_from(WALLETS), amount=st.integers(-50, -1))
    def take_out(self, wallet: int, amount: int) -> None:
        kind = Kind.ADJUSTMENT
        self.books.apply(Credit(wallet_id=wallet, amount_nusd=amount, kind=kind, reason="r"))

    @rule(target=sessions, token=tokens, amount=amounts)
    def reserve(self, token: int, amount: int) -> tuple[uuid.UUID, int]:
        wallet = self.books.wallets[TOKENS[token]]
        available = wallet.available_nusd
        operation = reserve(token, amount)
        outcome = self.books.apply(operation)
        if isinstance(outcome, Refused):
            assert wallet.available_nusd == available
            assert outcome.available_nusd < amount
        else:
            assert wallet.available_nusd == available - amount >= 0
        return operation.session_id, token

    @rule(session=sessions, amount=amounts)
    def reserve_twice(self, session: tuple[uuid.UUID, int], amount: int) -> None:
        session_id, token = session
        was_there = session_id in self.books.sessions
        outcome = self.books.apply(reserve(token, amount, session_id))
        assert isinstance(outcome, Ignored) or not was_there

    @rule(target=sessions, token=tokens)
    def trust(self, token: int) -> tuple[uuid.UUID, int]:
        return uuid.uuid4(), token

    @rule(session=sessions, amount=amounts)
    def raise_(self, session: tuple[uuid.UUID, int], amount: int) -> None:
        session_id, token = session
        self.books.apply(Raise(session_id=session_id, amount_nusd=amount, limits=LIMITS[token]))

    @rule(session=sessions, amount=amounts)
    def settle(self, session: tuple[uuid.UUID, int], amount: int) -> None:
        session_id, token = session
        before = self._state(session_id)
        outcome = self.books.apply(settle(session_id, token, amount))
        if before in (None, State.RESERVED, State.REAPED):
            assert isinstance(outcome, Done)
            assert self.books.sessions[session_id].settled_nusd == amount
        else:
            assert outcome == Ignored(state=before)

    @rule(session=sessions)
    def fail(self, session: tuple[uuid.UUID, int]) -> None:
        self._expect(MarkRefundDue(session_id=session[0]), State.RESERVED, State.REFUND_DUE)

    @rule(session=sessions)
    def refund(self, session: tuple[uuid.UUID, int]) -> None:
        self._expect(Refund(session_id=session[0]), State.REFUND_DUE, State.REFUNDED)

    @rule(session=sessions)
    def reap(self, session: tuple[uuid.UUID, int]) -> None:
        self._expect(Reap(session_id=session[0]), State.RESERVED, State.REAPED)

    @rule(session=sessions, amount=st.integers(1, 20))
    def fee(self, session: tuple[uuid.UUID, int], amount: int) -> None:
        session_id, token = session
        before = self._state(session_id)
        fee = self.books.sessions[session_id].fee_nusd if before else 0
        self.books.apply(
            Fee(
                session_id=session_id,
                request_id="r",
                wallet_id=TOKENS[token],
                token_id=token,
                amount_nusd=amount,
                reason="r",
            )
        )
        if fee or before is State.SETTLED:
            assert self.books.sessions[session_id].fee_nusd == fee

    @rule(session=consumes(sessions))
    def forget(self, session: tuple[uuid.UUID, int]) -> None:
        """The process died: only the reaper speaks of its session from now on."""

    @rule(hours=st.integers(1, 30))
    def time_goes_on(self, hours: int) -> None:
        self.books.now += timedelta(hours=hours)

    @rule(token=tokens, amount=amounts)
    def a_batch_that_is_lost_changes_nothing(self, token: int, amount: int) -> None:
        lost = copy.deepcopy(self.books)
        operation = reserve(token, amount)
        lost.apply(operation)
        lost.apply(settle(operation.session_id, token, amount))
        assert operation.session_id not in self.books.sessions

    @invariant()
    def sums_hold(self) -> None:
        books = self.books
        for pk, wallet in books.wallets.items():
            entries = [e for e in books.entries if e.wallet_id == pk]
            sessions = [s for s in books.sessions.values() if s.wallet_id == pk]
            held = sum(s.reserved_nusd for s in sessions if s.state in HOLDING)
            assert sum(e.amount_nusd for e in entries) == wallet.available_nusd
            assert not entries or entries[-1].balance_nusd == wallet.available_nusd
            paid_in = sum(e.amount_nusd for e in entries if e.kind in CREDITS)
            assert paid_in == wallet.credited_nusd
            assert held == wallet.reserved_nusd >= 0
            total = wallet.available_nusd + wallet.reserved_nusd + wallet.spent_nusd
            assert total == wallet.credited_nusd
            assert wallet.spent_nusd == sum(s.settled_nusd + s.fee_nusd for s in sessions)

    @invariant()
    def tokens_agree_with_their_sessions(self) -> None:
        for pk, account in self.books.accounts.items():
            sessions = [s for s in self.books.sessions.values() if s.token_id == pk]
            held = sum(s.reserved_nusd for s in sessions if s.state in HOLDING)
            assert account.reserved_nusd == held
            assert account.spent_nusd == sum(s.settled_nusd + s.fee_nusd for s in sessions)
            days = [s for s in sessions if s.created_at.date() == account.day]
            assert account.day_nusd == sum(self._counted(s) for s in days)
            months = [s for s in sessions if s.created_at.date().replace(day=1) == account.month]
            assert account.month_nusd == sum(self._counted(s) for s in months)

    @invariant()
    def each_session_ends_once(self) -> None:
        for session in self.books.sessions.values():
            kinds = [e.kind for e in self.books.entries if e.session_id == session.id]
            assert kinds.count(Kind.SETTLE) == (session.state is State.SETTLED)
            assert kinds.count(Kind.REFUND) <= 1
            if Kind.SETTLE in kinds and Kind.REFUND in kinds:  # reaped, then charged all the same
                assert kinds.index(Kind.REFUND) < kinds.index(Kind.SETTLE)
            assert (session.ended_at is None) == (session.state in HOLDING)

    def _counted(self, session: Any) -> int:
        held = session.reserved_nusd if session.state in HOLDING else 0
        return int(held + session.settled_nusd + session.fee_nusd)

    def _state(self, session_id: uuid.UUID) -> State | None:
        session = self.books.sessions.get(session_id)
        return session.state if session else None

    def _expect(self, operation: Any, wanted: State, then: State) -> None:
        before = self._state(operation.session_id)
        outcome = self.books.apply(operation)
        if before is wanted:
            assert isinstance(outcome, Done)
            assert self._state(operation.session_id) is then
        else:
            assert outcome == Ignored(state=before)


TestBooks = BooksMachine.TestCase
TestBooks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_is_missing_is_told_with_who_lacks_it() -> None:
    books = new_books()
    books.apply(Credit(wallet_id=1, amount_nusd=1000, kind=Kind.TOP_UP, reason="r"))

    told = [books.apply(reserve(11, amount)) for amount in (1001, 501, 201, 150, 51)]

    assert told[0] == Refused(kind="wallet", needed_nusd=1001, available_nusd=1000)
    assert told[1] == Refused(kind="token", needed_nusd=501, available_nusd=500)
    assert told[2] == Refused(kind="daily", needed_nusd=201, available_nusd=200)
    assert isinstance(told[3], Done)
    assert told[4] == Refused(kind="daily", needed_nusd=51, available_nusd=50)


def test_a_day_and_a_month_begin_anew() -> None:
    books = new_books()
    books.apply(Credit(wallet_id=1, amount_nusd=1000, kind=Kind.TOP_UP, reason="r"))
    old = reserve(11, 200)
    books.apply(old)
    books.now = START + timedelta(hours=3)  # of 1 February

    outcome = books.apply(reserve(11, 200))
    books.apply(settle(old.session_id, 11, 10))

    assert isinstance(outcome, Done)
    account = books.accounts[11]
    assert (account.day_nusd, account.month_nusd) == (200, 200)
    assert (account.spent_nusd, account.reserved_nusd) == (10, 200)


def test_an_unknown_wallet() -> None:
    with pytest.raises(UnknownWalletError):
        Books(now=START).apply(reserve(10, 1))
