"""The ledger in the database: batches, rivals, repeats, refusals, crashes, the audit."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, connections, transaction
from django.db.models import ProtectedError, QuerySet
from django.utils import timezone

from billing_app.audit import audit
from billing_app.core.operations import (
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
)
from billing_app.ledger import Failed, renew_lease_now, run_batch
from billing_app.ledger_models import AppendOnlyError
from billing_app.models import (
    BillingSession,
    LedgerEntry,
    LedgerLease,
    Token,
    TokenAccount,
    User,
    Wallet,
)
from billing_app.services import token_create, wallet_credit
from billing_app.tasks import reap_sessions, refund_due_sessions
from tests.conftest import empty_tables

LEASE = uuid.uuid4()


@pytest.fixture
def token(db: None) -> Token:
    user = User.objects.create_user("alice")
    token, _ = token_create(user=user, name="t")
    return token


@pytest.fixture
def shared_token(transactional_db: None) -> Any:
    empty_tables()
    user = User.objects.create_user("alice")
    token, _ = token_create(user=user, name="t")
    yield token
    empty_tables()


def pay_in(token: Token, amount: int) -> None:
    wallet_credit(user_id=token.user_id, amount_nusd=amount, reason="test")


def reserve(token: Token, amount: int, **fields: Any) -> Reserve:
    values = {"session_id": uuid.uuid4(), "request_id": "r", "lease_id": LEASE, **fields}
    return Reserve(wallet_id=token.user_id, token_id=token.pk, amount_nusd=amount, **values)


def settle(token: Token, session_id: uuid.UUID, amount: int) -> Settle:
    return Settle(
        session_id=session_id,
        request_id="r",
        wallet_id=token.user_id,
        token_id=token.pk,
        amount_nusd=amount,
    )


def balances(token: Token) -> tuple[int, int, int]:
    wallet = Wallet.objects.get(pk=token.user_id)
    return wallet.available_nusd, wallet.reserved_nusd, wallet.spent_nusd


def in_threads(count: int, work: Any) -> list[Any]:
    """Run `work(number)` in so many threads at once, each with a connection of its own."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait()
        try:
            return work(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_a_batch_is_a_handful_of_statements_however_many_are_in_it(
    token: Token, django_assert_max_num_queries: Any
) -> None:
    pay_in(token, 10_000)
    operations = [reserve(token, 10) for _ in range(100)]

    with django_assert_max_num_queries(20):
        outcomes = run_batch(operations)
    with django_assert_max_num_queries(20):
        run_batch([settle(token, op.session_id, 7) for op in operations])

    assert Counter(type(outcome) for outcome in outcomes) == {Done: 100}
    assert balances(token) == (9_300, 0, 700)
    assert TokenAccount.objects.get().spent_nusd == 700
    assert audit() == []


def test_within_a_batch_what_is_left_goes_to_those_who_came_first(token: Token) -> None:
    pay_in(token, 25)

    outcomes = run_batch([reserve(token, 10) for _ in range(4)])

    assert [type(outcome) for outcome in outcomes] == [Done, Done, Refused, Refused]
    assert outcomes[2] == Refused(kind="wallet", needed_nusd=10, available_nusd=5)
    assert audit() == []


def test_limits_of_a_token_hold_within_a_batch(token: Token) -> None:
    pay_in(token, 1000)
    limits = Limits(total_nusd=25)

    outcomes = run_batch([reserve(token, 10, limits=limits) for _ in range(3)])

    assert outcomes[2] == Refused(kind="token", needed_nusd=10, available_nusd=5)


def test_everything_twice_and_late_changes_nothing(token: Token) -> None:
    pay_in(token, 1000)
    first, second = reserve(token, 10), reserve(token, 20)
    run_batch([first, second])
    ends = [settle(token, first.session_id, 4), MarkRefundDue(session_id=second.session_id)]
    run_batch([*ends, Refund(session_id=second.session_id)])
    before = balances(token), LedgerEntry.objects.count()

    again = run_batch(
        [
            first,
            *ends,
            Refund(session_id=first.session_id),
            Refund(session_id=second.session_id),
            Reap(session_id=first.session_id),
            settle(token, second.session_id, 9),
            Raise(session_id=first.session_id, amount_nusd=99),
        ]
    )

    assert {type(outcome) for outcome in again} == {Ignored}
    assert (balances(token), LedgerEntry.objects.count()) == before
    assert audit() == []


def test_a_settlement_after_the_reaper_is_charged_once(token: Token) -> None:
    pay_in(token, 1000)
    operation = reserve(token, 10)
    run_batch([operation])
    assert reap_sessions() == 1
    assert balances(token) == (1000, 0, 0)

    outcomes = [run_batch([settle(token, operation.session_id, 7)])[0] for _ in range(2)]

    assert [type(outcome) for outcome in outcomes] == [Done, Ignored]
    assert balances(token) == (993, 0, 7)
    assert audit() == []


def test_the_reaper_leaves_sessions_of_living_processes_alone(token: Token) -> None:
    pay_in(token, 1000)
    renew_lease_now(LEASE)
    run_batch([reserve(token, 10)])
    dead = uuid.uuid4()
    LedgerLease.objects.create(id=dead, expires_at=timezone.now() - timedelta(seconds=1))
    run_batch([reserve(token, 10, lease_id=dead)])

    assert reap_sessions() == 1

    assert balances(token) == (990, 10, 0)
    states = sorted(BillingSession.objects.values_list("state", flat=True))
    assert states == ["reaped", "reserved"]
    LedgerLease.objects.update(expires_at=timezone.now())
    assert reap_sessions() == 1
    assert balances(token) == (1000, 0, 0)
    assert audit() == []


def test_a_batch_renews_the_lease_of_its_process(token: Token) -> None:
    pay_in(token, 10)

    run_batch([reserve(token, 1)], lease_id=LEASE)
    first = LedgerLease.objects.get().expires_at
    run_batch([reserve(token, 1)], lease_id=LEASE)

    assert LedgerLease.objects.get().expires_at > first


def test_an_operation_that_the_database_refuses_fails_alone(token: Token) -> None:
    pay_in(token, 1000)
    too_large = 2**63
    credit = Credit(wallet_id=token.user_id, amount_nusd=too_large, kind=Kind.TOP_UP, reason="r")
    nobody = Credit(wallet_id=987_654, amount_nusd=1, kind=Kind.TOP_UP, reason="r")

    outcomes = run_batch([reserve(token, 1), credit, nobody, reserve(token, 2)])

    assert [type(outcome) for outcome in outcomes] == [Done, Failed, Failed, Done]
    assert balances(token) == (997, 3, 0)
    assert audit() == []


def test_a_fee_without_a_reservation(token: Token) -> None:
    pay_in(token, 1000)
    fee = Fee(
        session_id=uuid.uuid4(),
        request_id="r",
        wallet_id=token.user_id,
        token_id=token.pk,
        amount_nusd=50,
        reason="violation fee",
    )

    outcomes = [run_batch([fee])[0] for _ in range(2)]

    assert [type(outcome) for outcome in outcomes] == [Done, Ignored]
    assert balances(token) == (950, 0, 50)
    assert audit() == []


@pytest.mark.django_db(transaction=True)
def test_rivals_never_reserve_more_than_there_is(shared_token: Token) -> None:
    token = shared_token
    pay_in(token, 1000)

    def ask(_: int) -> list[Any]:
        return [run_batch([reserve(token, 10)])[0] for _ in range(25)]

    outcomes = [one for found in in_threads(8, ask) for one in found]

    assert Counter(type(outcome) for outcome in outcomes) == {Done: 100, Refused: 100}
    assert balances(token) == (0, 1000, 0)
    assert audit() == []


@pytest.mark.django_db(transaction=True)
def test_rivals_over_several_wallets_do_not_block_each_other_for_ever(shared_token: Token) -> None:
    tokens = [shared_token]
    for name in ("bob", "carol"):
        user = User.objects.create_user(name)
        tokens.append(token_create(user=user, name="t")[0])
    for token in tokens:
        pay_in(token, 100_000)

    def work(number: int) -> None:
        order = tokens[number % 3 :] + tokens[: number % 3]
        for _ in range(10):
            reserved = [reserve(token, 10) for token in order]
            run_batch(reserved)
            run_batch([settle(t, op.session_id, 3) for t, op in zip(order, reserved, strict=True)])

    in_threads(6, work)

    assert [balances(token) for token in tokens] == [(100_000 - 180, 0, 180)] * 3
    assert audit() == []


@pytest.mark.django_db(transaction=True)
def test_two_workers_refund_each_session_once(shared_token: Token) -> None:
    token = shared_token
    pay_in(token, 10_000)
    operations = [reserve(token, 10) for _ in range(300)]
    run_batch(operations)
    run_batch([MarkRefundDue(session_id=op.session_id) for op in operations])

    counts = in_threads(2, lambda _: refund_due_sessions())

    assert sum(counts) == 300
    assert balances(token) == (10_000, 0, 0)
    assert LedgerEntry.objects.filter(kind="refund").count() == 300
    assert audit() == []


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_breaks_leaves_nothing(
    shared_token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = shared_token
    pay_in(token, 1000)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(LedgerEntry.objects, "bulk_create", broken)
    monkeypatch.setattr("billing_app.ledger.LedgerEntry.objects.bulk_create", broken)
    with pytest.raises(RuntimeError):
        run_batch([reserve(token, 10)])

    monkeypatch.undo()
    assert balances(token) == (1000, 0, 0)
    assert not BillingSession.objects.exists()
    assert audit() == []


def test_entries_are_never_changed_or_deleted(token: Token) -> None:
    pay_in(token, 1000)
    entry = LedgerEntry.objects.get()
    entry.amount_nusd = 5

    for attempt in (
        entry.save,
        entry.delete,
        LedgerEntry.objects.all().delete,
        lambda: LedgerEntry.objects.update(amount_nusd=5),
        lambda: LedgerEntry.objects.bulk_update([entry], ["amount_nusd"]),
        lambda: LedgerEntry.objects.filter(pk=entry.pk).update(reason="x"),
        lambda: LedgerEntry._base_manager.update(amount_nusd=5),
        lambda: LedgerEntry._base_manager.all().delete(),
        lambda: LedgerEntry.objects.bulk_create(
            [entry], update_conflicts=True, unique_fields=["id"], update_fields=["amount_nusd"]
        ),
        entry.save_base,
        lambda: LedgerEntry(
            pk=entry.pk, wallet_id=entry.wallet_id, kind="fee", amount_nusd=5, balance_nusd=5
        ).save(),
        lambda: Wallet.objects.update(available_nusd=5),
        Wallet.objects.get().save,
        lambda: Wallet(user_id=entry.wallet_id, available_nusd=5).save(),
    ):
        with pytest.raises((AppendOnlyError, IntegrityError)), transaction.atomic():
            attempt()
    with pytest.raises(ProtectedError):
        User.objects.get(username="alice").delete()

    assert LedgerEntry.objects.get().amount_nusd == 1000
    assert balances(token) == (1000, 0, 0)


@pytest.mark.parametrize(
    ("forge", "told"),
    [
        (
            lambda: QuerySet(LedgerEntry).filter(kind="settle").update(balance_nusd=7),
            "its balance is 7 nUSD, by the entries up to it 930",
        ),
        (
            lambda: QuerySet(LedgerEntry).filter(kind="settle").update(session=None),
            "settle without a session",
        ),
        (
            lambda: QuerySet(BillingSession).update(settled_nusd=71),
            "its entries come to -70 nUSD, by its own row -71",
        ),
        (lambda: QuerySet(TokenAccount).delete(), "spent is 0 nUSD, by its sessions 70"),
    ],
    ids=["balance", "session", "amount", "account"],
)
def test_the_audit_tells_what_was_forged(token: Token, forge: Any, told: str) -> None:
    pay_in(token, 1000)
    operation = reserve(token, 100)
    run_batch([operation])
    run_batch([settle(token, operation.session_id, 70)])
    assert audit() == []

    forge()

    assert any(told in line for line in audit()), audit()


def test_a_batch_that_is_split_renews_the_lease_all_the_same(token: Token) -> None:
    pay_in(token, 1000)
    unknown = Credit(wallet_id=10**9, amount_nusd=1, kind=Kind.TOP_UP)

    run_batch([unknown, reserve(token, 10)], lease_id=LEASE)

    assert LedgerLease.objects.filter(pk=LEASE).exists()
    assert reap_sessions() == 0


def test_a_day_does_not_begin_again_by_a_slow_clock(token: Token) -> None:
    pay_in(token, 10_000)
    midnight = datetime(2026, 12, 7, tzinfo=UTC)
    limits = Limits(daily_nusd=1000)

    def ask(seconds: float) -> Any:
        at = midnight + timedelta(seconds=seconds)
        [outcome] = run_batch([reserve(token, 1000, limits=limits)], now=at)
        return type(outcome)

    assert [ask(s) for s in (0.05, -0.05, 1)] == [Done, Refused, Refused]


def test_the_accounts_of_a_token_that_changed_hands_stay_right(shared_token: Token) -> None:
    token = shared_token
    pay_in(token, 10**9)
    old = [reserve(token, 10) for _ in range(40)]
    run_batch(old)
    bob = User.objects.create_user("bob")
    wallet_credit(user_id=bob.pk, amount_nusd=10**9, reason="test")
    Token.objects.filter(pk=token.pk).update(user=bob)
    moved = Token.objects.get(pk=token.pk)

    def work(number: int) -> None:
        for place in range(20):
            if number:
                run_batch([settle(token, old[place + 20 * (number - 1)].session_id, 7)])
            else:
                operation = reserve(moved, 5)
                run_batch([operation])
                run_batch([settle(moved, operation.session_id, 3)])

    in_threads(3, work)

    assert audit() == []
    account = TokenAccount.objects.get(pk=token.pk)
    assert (account.reserved_nusd, account.spent_nusd) == (0, 40 * 7 + 20 * 3)


@pytest.mark.django_db
def test_an_opening_balance_is_the_first_entry() -> None:
    user = User.objects.create(username="bob", opening_balance_nusd=25)
    user.save()

    assert user.wallet.available_nusd == 25
    assert list(LedgerEntry.objects.values_list("kind", "amount_nusd")) == [("top_up", 25)]
    assert audit() == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"available_nusd": 999}, "available is 999 nUSD, by its entries and sessions 1000"),
        ({"reserved_nusd": 1}, "reserved is 1 nUSD"),
        ({"spent_nusd": 1}, "spent is 1 nUSD"),
        ({"credited_nusd": 1}, "paid in is 1 nUSD"),
    ],
)
def test_the_audit_tells_every_difference(token: Token, change: dict[str, int], told: str) -> None:
    pay_in(token, 1000)
    QuerySet(Wallet).update(**change)  # past the manager, which refuses
    out, err = StringIO(), StringIO()

    with pytest.raises(SystemExit) as stopped:
        call_command("audit_ledger", stdout=out, stderr=err)

    assert stopped.value.code == 1
    assert told in out.getvalue()


def test_the_audit_of_right_books(token: Token) -> None:
    pay_in(token, 1000)
    out = StringIO()

    call_command("audit_ledger", stdout=out)

    assert "the ledger is right" in out.getvalue()


def test_top_up_by_command(token: Token) -> None:
    out = StringIO()

    call_command("wallet_topup", "alice", "2.50", "--reason", "invoice 7", stdout=out)
    call_command("wallet_topup", "alice", "-0.50", stdout=out)

    assert out.getvalue().splitlines() == [
        "alice: $2.50, now $2.50",
        "alice: -$0.50, now $2.00",
    ]
    kinds = LedgerEntry.objects.order_by("pk").values_list("kind", "reason")
    assert list(kinds) == [("top_up", "invoice 7"), ("adjustment", "by command")]
    for words in (["nobody", "1"], ["alice", "x"], ["alice", "0"], ["alice", "1.0000000001"]):
        with pytest.raises(CommandError):
            call_command("wallet_topup", *words)


def test_reservations_need_no_flush_of_the_log_on_postgresql(token: Token) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("a setting of PostgreSQL")
    pay_in(token, 1000)
    operation = reserve(token, 10)

    run_batch([operation])
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("off",)  # for this transaction, which the test holds open
