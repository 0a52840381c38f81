"""Limits, addresses, groups and the one channel of a token in its form."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing_app.core.operations import Settle
from billing_app.ledger import run_batch
from billing_app.models import Token, User
from billing_app.services import token_create
from tests.db.test_admin_forms import errors
from tests.support.admin_rows import channel, operator, signed_in, token_form

pytestmark = pytest.mark.django_db

LIST = "/admin/billing_app/token/"
ADD = f"{LIST}add/"
NANO = 10**9


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


@pytest.fixture
def alice() -> User:
    return User.objects.create_user("alice")


@pytest.mark.parametrize(
    ("field", "typed", "stored"),
    [
        ("group", "auto", "auto"),
        ("cross_group_retry", "on", True),
        ("allow_ips", "203.0.113.7\r\n10.1.2.3/8", ["203.0.113.7", "10.0.0.0/8"]),
        ("allow_ips", "", []),
        ("rpm", "60", 60),
        ("tpm", "", 0),
        ("concurrency", "3", 3),
    ],
)
def test_a_field_is_stored(
    client: Client, alice: User, field: str, typed: str, stored: object
) -> None:
    client.post(ADD, token_form(alice, **{field: typed}))

    assert getattr(Token.objects.get(), field) == stored


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("allow_ips", "10.0.0.256", "is not an IP address or a network like 10.0.0.0/8"),
        ("allow_ips", "example.com", "is not an IP address"),
        ("rpm", "-1", "greater than or equal to 0"),
        ("tpm", "99999999999", "less than or equal to 2147483647"),
        ("concurrency", "many", "Enter a whole number."),
        ("specific_channel", "primry", "There is no channel 'primry'; did you mean primary?"),
        ("specific_channel", "primary", "Only for staff, which user 'alice' is not."),
        ("group", "nowhere", "Select a valid choice."),
        ("daily_limit_nusd", "-1", "greater than or equal to 0"),
    ],
)
def test_a_value_that_the_relay_would_not_take_is_refused_at_its_field(
    client: Client, alice: User, field: str, value: str, error: str
) -> None:
    channel("primary", keys=0)

    response = client.post(ADD, token_form(alice, **{field: value}))

    assert error in " ".join(errors(response)[field])
    assert not Token.objects.exists()


def test_a_token_has_a_limit_or_is_unlimited(client: Client, alice: User) -> None:
    both = client.post(ADD, token_form(alice, limit_nusd="5"))
    neither = client.post(ADD, token_form(alice, is_unlimited="", limit_nusd=""))
    bad = client.post(ADD, token_form(alice, is_unlimited="", limit_nusd="1,5"))

    assert "It is unlimited: leave the limit empty" in errors(both)["limit_nusd"][0]
    assert errors(neither)["limit_nusd"] == ["Give a limit, or leave it unlimited."]
    assert len(errors(bad)["limit_nusd"]) == 1
    assert not Token.objects.exists()


def test_a_token_of_staff_may_have_one_channel(client: Client) -> None:
    channel("primary", keys=0)
    staff = User.objects.create_user("bob", is_staff=True)

    client.post(ADD, token_form(staff, specific_channel=" primary "))

    assert Token.objects.get().specific_channel == "primary"


def test_a_token_with_a_channel_does_not_go_to_somebody_who_is_not_staff(
    client: Client, alice: User
) -> None:
    channel("primary", keys=0)
    staff = User.objects.create_user("bob", is_staff=True)
    token, _ = token_create(user=staff, name="t", specific_channel="primary")
    url = f"/admin/billing_app/token/{token.pk}/change/"

    refused = client.post(url, token_form(alice, specific_channel="primary"))

    assert "specific_channel" in errors(refused)


def test_what_was_stored_and_is_not_true_any_more_hinders_no_other_change(
    client: Client, alice: User
) -> None:
    """The channel is gone, and its owner is no longer staff."""
    token, _ = token_create(user=alice, name="t", specific_channel="gone")
    url = f"/admin/billing_app/token/{token.pk}/change/"

    client.post(url, token_form(alice, specific_channel="gone", rpm="5"))

    token.refresh_from_db()
    assert (token.rpm, token.specific_channel) == (5, "gone")


@pytest.mark.parametrize(
    ("chosen", "fields"),
    [
        ("rates", {"rpm": 1}),
        ("rates", {"concurrency": 1}),
        ("models", {"models": ("m",)}),
        ("addresses", {"allow_ips": ["10.0.0.1"]}),
        ("channel", {"specific_channel": "c"}),
        ("expires", {"expires_at": timezone.now() + timedelta(days=1)}),
    ],
)
def test_the_list_filters_by_restriction(
    client: Client, alice: User, chosen: str, fields: dict[str, Any]
) -> None:
    token_create(user=alice, name="plain")
    special, _ = token_create(user=alice, name="special", **fields)

    response = client.get(f"/admin/billing_app/token/?restriction={chosen}")

    assert list(response.context["cl"].result_list) == [special]


def test_the_list_filters_by_the_word_for_several_groups(client: Client, alice: User) -> None:
    token_create(user=alice, name="plain")
    auto, _ = token_create(user=alice, name="auto", group="auto")

    page = client.get("/admin/billing_app/token/?group=auto")

    assert list(page.context["cl"].result_list) == [auto]


def test_an_account_may_have_several_groups(client: Client, alice: User) -> None:
    page = client.get(f"/admin/billing_app/user/{alice.pk}/change/").content.decode()

    assert "auto: those of option AutoGroups, in order" in page


def test_a_token_that_has_spent_its_limit_is_exhausted(client: Client, alice: User) -> None:
    spent = {"unlimited": None, "within": 5 * NANO, "reached": 2 * NANO, "nothing": 0}
    for name, limit_nusd in spent.items():
        token, _ = token_create(
            user=alice, name=name, is_unlimited=limit_nusd is None, limit_nusd=limit_nusd
        )
        if name != "nothing":
            settle = Settle(
                session_id=uuid.uuid4(),
                request_id="r",
                wallet_id=alice.pk,
                token_id=token.pk,
                amount_nusd=2 * NANO,
            )
            run_batch([settle])

    def found(state: str) -> set[str]:
        rows = client.get(LIST, {"state": state}).context["cl"].result_list
        return {token.name for token in rows}

    assert found("exhausted") == {"reached", "nothing"}
    assert found("active") == {"unlimited", "within"}
    page = client.get(LIST, {"q": "within"}).content.decode()
    assert "$2.00" in page
    assert "$5.00" in page
    token = Token.objects.get(name="reached")
    page = client.get(f"/admin/billing_app/token/{token.pk}/change/").content.decode()
    assert "$2.00 of $2.00 in all, $2.00 today, $2.00 this month (UTC)" in page
    assert "exhausted" in page
