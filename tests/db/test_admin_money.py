"""Pages of wallets, the ledger, prices and codes."""

from __future__ import annotations

import uuid
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from billing_app.audit import audit
from billing_app.core.operations import Settle
from billing_app.ledger import run_batch
from billing_app.models import LedgerEntry, Price, RedemptionCode, Token, User, Wallet
from billing_app.price_list import bundled_prices, prices_load
from billing_app.services import CodeRefusedError, code_redeem, codes_create, token_create
from tests.support.admin_rows import signed_in

pytestmark = pytest.mark.django_db

NANO = 10**9
SENT = {"_form_submitted": "True"}  # of a dialog


@pytest.fixture
def client() -> Client:
    return signed_in(User.objects.create_superuser("boss"))


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice", opening_balance_nusd=25 * NANO)


def url(page: str, *args: object) -> str:
    return reverse(f"admin:billing_app_{page}", args=args)


def detail_action(model: str, name: str, pk: object) -> str:
    return reverse(f"admin:billing_app_{model}_{name}", args=(pk,))


def test_lists_show_search_and_filter(client: Client, alice: User) -> None:
    User.objects.create_user("bob")
    codes_create(batch="spring", count=2, amount_nusd=NANO)
    Price.objects.create(model="m", input=Decimal("2.5"))
    pages = {
        "wallet_changelist": ("q=alice", "$25.00"),
        "ledgerentry_changelist": ("q=opening", "opening balance"),
        "price_changelist": ("q=m&kind=own", "2.5"),
        "redemptioncode_changelist": ("q=spring", "spring"),
        "user_changelist": ("q=alice", "$25.00"),
    }
    for page, (query, shown) in pages.items():
        answer = client.get(f"{url(page)}?{query}")
        assert answer.status_code == 200, page
        assert shown in answer.content.decode(), page
    overdrawn = client.get(f"{url('wallet_changelist')}?balance=negative").content.decode()
    assert "$25.00" not in overdrawn
    kinds = client.get(f"{url('ledgerentry_changelist')}?kind__exact=refund")
    assert "opening balance" not in kinds.content.decode()


def test_topping_up_and_adjusting_leave_entries_with_reason_and_actor(
    client: Client, alice: User
) -> None:
    top_up = detail_action("wallet", "top_up", alice.pk)
    adjust = detail_action("wallet", "adjust", alice.pk)

    client.post(top_up, {**SENT, "amount": "2.5", "reason": "invoice 7"})
    client.post(adjust, {**SENT, "amount": "-0.5", "reason": "typo"})
    client.post(top_up, {**SENT, "amount": "-3", "reason": "no"})
    client.post(top_up, {**SENT, "amount": "3", "reason": ""})

    entries = LedgerEntry.objects.order_by("pk").values_list("kind", "amount_nusd", "reason")
    assert list(entries)[1:] == [
        ("top_up", 2_500_000_000, "invoice 7"),
        ("adjustment", -500_000_000, "typo"),
    ]
    assert LedgerEntry.objects.last().actor is None  # the opening balance
    assert LedgerEntry.objects.first().actor.username == "boss"
    assert alice.wallet.available_nusd == 27 * NANO
    assert audit() == []


def test_balances_and_entries_can_be_changed_by_nothing_else(client: Client, alice: User) -> None:
    entry = LedgerEntry.objects.get()
    for page, pk in (("wallet", alice.pk), ("ledgerentry", entry.pk)):
        change = client.post(url(f"{page}_change", pk), {"available_nusd": 1, "amount_nusd": 1})
        assert change.status_code == 403
        assert client.post(url(f"{page}_delete", pk), {"post": "yes"}).status_code == 403
        assert client.get(url(f"{page}_add")).status_code == 403
    ticked = {"action": "delete_selected", "_selected_action": [entry.pk], "post": "yes"}
    client.post(url("ledgerentry_changelist"), ticked)

    assert LedgerEntry.objects.get().amount_nusd == 25 * NANO
    assert Wallet.objects.get(user=alice).available_nusd == 25 * NANO


def test_paying_in_needs_a_permission_of_its_own(alice: User) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_wallet"))
    client = signed_in(viewer)

    answer = client.post(
        detail_action("wallet", "top_up", alice.pk), {**SENT, "amount": "2", "reason": "mine"}
    )

    assert answer.status_code == 403
    assert LedgerEntry.objects.count() == 1


def test_who_has_entries_stays(client: Client, alice: User) -> None:
    page = client.post(url("user_delete", alice.pk), {"post": "yes"})
    empty = User.objects.create_user("empty")
    client.post(url("user_delete", empty.pk), {"post": "yes"})

    assert page.status_code == 200
    assert "turn off <em>Active</em> on its page" in page.content.decode()
    assert set(User.objects.values_list("username", flat=True)) == {"boss", "alice"}


def test_what_has_paid_stays(client: Client, alice: User) -> None:
    token, _ = token_create(user=alice, name="t")
    settle = Settle(
        session_id=uuid.uuid4(),
        request_id="r",
        wallet_id=alice.pk,
        token_id=token.pk,
        amount_nusd=NANO,
    )
    run_batch([settle])
    ticked = {"action": "delete_selected", "_selected_action": [token.pk], "post": "yes"}

    alone = client.post(url("token_delete", token.pk), {"post": "yes"}).content.decode()
    chosen = client.post(url("token_changelist"), ticked).content.decode()

    for page in (alone, chosen):
        assert "To stop its use, disable it." in page
    assert Token.objects.get() == token
    fresh, _ = token_create(user=alice, name="fresh")
    client.post(url("token_delete", fresh.pk), {"post": "yes"})
    assert Token.objects.get() == token


def test_limits_of_a_token(client: Client, alice: User) -> None:
    token, _ = token_create(user=alice, name="t")
    form: dict[str, Any] = {
        "user": alice.pk,
        "name": "t",
        "group": "",
        "is_enabled": "on",
        "limit_nusd": "2.5",
        "daily_limit_nusd": "",
        "monthly_limit_nusd": "10",
        "rpm": 0,
        "tpm": 0,
        "concurrency": 0,
    }

    client.post(url("token_change", token.pk), form)
    shown = client.get(url("token_change", token.pk)).content.decode()
    client.post(url("token_change", token.pk), {**form, "daily_limit_nusd": "-1"})

    token = Token.objects.get()
    assert (token.is_unlimited, token.limit_nusd) == (False, 2_500_000_000)
    assert (token.daily_limit_nusd, token.monthly_limit_nusd) == (None, 10 * NANO)
    assert 'value="2.50"' in shown


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"model": "a*b", "input": "1"}, "a name, or a beginning"),
        ({"model": "m", "input": "-1"}, "greater than or equal to 0"),
        ({"model": "m"}, "at least one of input, output, per_call, per_image and per_second"),
        ({"model": "m", "cached_input": "1", "audio_output": "1"}, "at least one of input"),
        ({"model": "m", "input": "1", "per_call": "1"}, "leaves no room for input"),
        ({"model": "m", "input": "0.0000001"}, "no more than 6 decimal places"),
    ],
)
def test_prices_are_checked(client: Client, fields: dict[str, str], fault: str) -> None:
    page = client.post(url("price_add"), fields).content.decode()

    assert fault in page
    assert not Price.objects.exists()


def test_the_bundled_list_keeps_what_was_edited(client: Client) -> None:
    load = reverse("admin:billing_app_price_load_list")
    client.post(load, SENT)
    assert Price.objects.count() == len(bundled_prices())
    edited = Price.objects.get(model="gpt-4o")
    edited.input = Decimal(3)
    edited.save()
    Price.objects.filter(model="gpt-4o-mini").delete()

    changes = prices_load()
    again = prices_load()

    assert (changes.added, changes.kept) == (["gpt-4o-mini"], ["gpt-4o"])
    assert (again.added, again.changed) == ([], {})
    assert Price.objects.get(model="gpt-4o").input == 3
    ticked = {"action": "restore_selected", "_selected_action": [edited.pk]}
    client.post(url("price_changelist"), ticked)
    assert Price.objects.get(model="gpt-4o").input == Decimal("2.5")


def test_a_new_list_brings_rows_up_to_date_that_nobody_edited() -> None:
    prices_load()
    old = {"input": "9", "output": "9"}
    Price.objects.filter(model="gpt-4o").update(input=9, output=9, cached_input=None, bundled=old)

    changes = prices_load(is_dry=True)
    assert changes.changed == {
        "gpt-4o": "input 9 -> 2.5, cached_input none -> 1.25, output 9 -> 10"
    }
    prices_load()

    assert Price.objects.get(model="gpt-4o").output == 10


def test_the_command_tells_what_it_loads() -> None:
    def load(**options: bool) -> list[str]:
        out = StringIO()
        call_command("load_prices", stdout=out, **options)
        return out.getvalue().splitlines()

    count = len(bundled_prices())
    assert load(dry_run=True)[-1] == f"would be: {count} added, 0 changed, of {count} listed"
    assert not Price.objects.exists()
    assert load()[-1] == f"{count} added, 0 changed, of {count} listed"
    Price.objects.filter(model="gpt-4o").update(input=3)
    assert load() == [
        "= gpt-4o: edited here, kept",
        f"0 added, 0 changed, 1 kept as edited, of {count} listed",
    ]
    assert load(overwrite=True)[-1] == f"0 added, 1 changed, of {count} listed"
    assert Price.objects.get(model="gpt-4o").input == Decimal("2.5")


def test_codes_by_command(alice: User) -> None:
    out, err = StringIO(), StringIO()

    call_command("create_codes", "spring", "3", "0.50", "--days", "7", stdout=out, stderr=err)

    codes = out.getvalue().split()
    assert len(set(codes)) == 3
    code_redeem(code=codes[0], user_id=alice.pk)
    row = RedemptionCode.objects.get(redeemed_by=alice)
    assert (row.batch, row.amount_nusd) == ("spring", NANO // 2)
    assert row.expires_at is not None
    assert codes[0] not in str(RedemptionCode.objects.values())
    for words in (
        ["b", "0", "1"],
        ["b", "1", "-1"],
        ["b", "1", "x"],
        ["", "1", "1"],
        ["b" * 101, "1", "1"],
    ):
        with pytest.raises(CommandError):
            call_command("create_codes", *words)
    with pytest.raises(CommandError):
        call_command("create_codes", "b", "1", "1", "--days", "-1")
    with pytest.raises(CommandError):
        call_command("create_codes", "b", "1", "1", "--days", "99999999999")
    assert RedemptionCode.objects.count() == 3


def test_every_bundled_price_passes_the_forms_checks() -> None:
    for model, listed in bundled_prices().items():
        price = Price(model=model, **{name: Decimal(value) for name, value in listed.items()})
        price.full_clean()


def test_codes(client: Client, alice: User) -> None:
    first, second = codes_create(batch="b", count=2, amount_nusd=NANO)
    code_redeem(code=first, user_id=alice.pk)
    ids = list(RedemptionCode.objects.values_list("pk", flat=True))
    client.post(
        url("redemptioncode_changelist"), {"action": "disable_selected", "_selected_action": ids}
    )

    with pytest.raises(CodeRefusedError):
        code_redeem(code=first, user_id=alice.pk)
    with pytest.raises(CodeRefusedError):
        code_redeem(code=second, user_id=alice.pk)
    assert alice.wallet.available_nusd == 26 * NANO
    assert first not in client.get(url("redemptioncode_changelist")).content.decode()
    assert audit() == []
