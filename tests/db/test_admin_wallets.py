"""The dialogs of a wallet: what they say, refuse, and do only once."""

from __future__ import annotations

import re
import uuid

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from billing_app.audit import audit
from billing_app.core.operations import Credit, Done, Ignored, Kind
from billing_app.ledger import run_batch
from billing_app.models import LedgerEntry, Token, User
from billing_app.services import wallet_credit
from tests.support.admin_rows import signed_in, token_form

pytestmark = pytest.mark.django_db

NANO = 10**9
SENT = {"_form_submitted": "True", "reason": "invoice 7"}  # of a dialog


@pytest.fixture
def client() -> Client:
    return signed_in(User.objects.create_superuser("boss"))


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice", opening_balance_nusd=25 * NANO)


def dialog(name: str, user: User) -> str:
    return reverse(f"admin:billing_app_wallet_{name}", args=(user.pk,))


def said(answer: object) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]  # type: ignore[attr-defined]  # of the test client


@pytest.mark.parametrize("name", ["top_up", "adjust"])
def test_a_form_that_is_sent_twice_pays_once(client: Client, alice: User, name: str) -> None:
    form = client.get(dialog(name, alice)).content.decode()
    found = re.search(r'name="key" value="([0-9a-f-]{36})"', form)
    assert found is not None
    sent = {**SENT, "amount": "2.5", "key": found[1]}

    client.post(dialog(name, alice), sent)
    again = client.post(dialog(name, alice), sent)

    alice.wallet.refresh_from_db()
    assert alice.wallet.available_nusd == 27_500_000_000
    assert LedgerEntry.objects.count() == 2
    assert said(again)[-1] == "This was paid in already, and not again: $2.50."
    assert audit() == []
    assert found[1] not in client.get(dialog(name, alice)).content.decode()


def test_a_key_counts_once_in_a_batch_and_in_later_ones(alice: User) -> None:
    key = uuid.uuid4()
    credit = Credit(
        wallet_id=alice.pk, amount_nusd=NANO, kind=Kind.TOP_UP, reason="r", idempotency_key=key
    )

    outcomes = [*run_batch([credit, credit]), *run_batch([credit])]
    paid = wallet_credit(user_id=alice.pk, amount_nusd=5, reason="r", idempotency_key=key)

    assert outcomes == [Done(balance_nusd=26 * NANO), Ignored(), Ignored()]
    assert (paid.amount_nusd, paid.balance_nusd, paid.is_repeat) == (NANO, 26 * NANO, True)
    assert LedgerEntry.objects.filter(idempotency_key=key).count() == 1
    assert audit() == []


def test_dialogs_name_the_account_and_its_balance(client: Client, alice: User) -> None:
    for name in ("top_up", "adjust"):
        form = client.get(dialog(name, alice)).content.decode()
        assert "alice has" in form
        assert "$25.00" in form
    assert client.get(reverse("admin:billing_app_wallet_top_up", args=(99,))).status_code == 404


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("top_up", "1,5", "a point before the decimals"),
        ("top_up", "1e3", "a point before the decimals"),
        ("top_up", "1_5", "a point before the decimals"),
        ("top_up", "0", "A top-up must be more than 0"),
        ("top_up", "-3", "A top-up must be more than 0"),
        ("top_up", "0.0000000001", "no more than 9 decimal places"),
        ("top_up", "1000000000000", "less than or equal to 1000000000"),
        ("adjust", "0.00", "An adjustment of 0 changes nothing"),
        ("adjust", "-1,5", "a point before the decimals"),
    ],
)
def test_a_wrong_amount_stays_as_it_was_typed(
    client: Client, alice: User, name: str, typed: str, words: str
) -> None:
    page = client.post(dialog(name, alice), {**SENT, "amount": typed}).content.decode()

    assert words in page
    assert f'value="{typed}"' in page
    assert "1E-" not in page
    assert LedgerEntry.objects.count() == 1


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("billing_app_token", ["limit_nusd", "daily_limit_nusd", "monthly_limit_nusd"]),
        ("billing_app_price", ["input", "output", "per_call", "per_second"]),
        ("channels_app_group", ["ratio"]),
    ],
)
def test_amounts_are_typed_as_text(client: Client, page: str, names: list[str]) -> None:
    form = client.get(reverse(f"admin:{page}_add")).content.decode()

    for name in names:
        box = re.search(rf'<input [^>]*name="{name}"[^>]*>', form)
        assert box is not None
        assert 'type="text"' in box[0]
        assert 'inputmode="decimal"' in box[0]


def test_a_comma_is_refused_wherever_an_amount_is_typed(client: Client, alice: User) -> None:
    forms = {
        "billing_app_token": token_form(alice, limit_nusd="1,5"),
        "billing_app_price": {"model": "m", "input": "1,5"},
        "channels_app_group": {"name": "g", "ratio": "1,5", "user_groups": ""},
    }
    for page, form in forms.items():
        answer = client.post(reverse(f"admin:{page}_add"), form).content.decode()
        assert "a point before the decimals" in answer, page
        assert "1,5" in answer, page
    assert not Token.objects.exists()


def test_what_is_paid_stands_in_the_wallets_history(client: Client, alice: User) -> None:
    sent = {**SENT, "amount": "2.5", "key": str(uuid.uuid4())}
    client.post(dialog("top_up", alice), sent)
    client.post(dialog("top_up", alice), sent)
    client.post(dialog("adjust", alice), {**SENT, "amount": "-0.5", "reason": "typo"})

    history = client.get(dialog("history", alice)).content.decode()
    assert history.count("$2.50 paid in: alice has $27.50. Reason: invoice 7") == 1
    assert history.count("$0.50 paid out: alice has $27.00. Reason: typo") == 1
    assert "boss" in history


def test_the_ledger_says_kinds_in_words_and_amounts_with_signs(client: Client, alice: User) -> None:
    wallet_credit(user_id=alice.pk, amount_nusd=-26 * NANO, reason="r", kind=Kind.ADJUSTMENT)
    ledger = reverse("admin:billing_app_ledgerentry_changelist")

    page = client.get(ledger).content.decode()
    filtered = client.get(ledger, {"kind": "top_up"}).content.decode()

    assert '<span class="relay-plus">+$25.00</span>' in page
    assert '<span class="relay-minus">-$26.00</span>' in page
    assert '<span class="relay-minus">-$1.00</span>' in page
    assert 'value="task_refund">task refunded<' in re.sub(r"\s+", " ", page).replace(" >", ">")
    assert "+$25.00" in filtered
    assert "-$26.00" not in filtered


def test_a_wallets_credits_are_explained(client: Client, alice: User) -> None:
    page = client.get(dialog("change", alice)).content.decode()

    assert "Credits" in page
    assert "Top-ups and codes, less what was taken out." in page
