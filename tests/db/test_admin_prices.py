"""Prices in the admin: where they came from, and what loading the list says."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.test import Client
from django.urls import reverse

from billing_app.models import Price
from billing_app.price_list import bundled_prices
from tests.support.admin_rows import operator, signed_in

pytestmark = pytest.mark.django_db

LIST = reverse("admin:billing_app_price_changelist")
LOAD = reverse("admin:billing_app_price_load_list")
SENT = {"_form_submitted": "True"}


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def load(client: Client) -> str:
    client.post(LOAD, SENT)
    return client.get(LIST).content.decode()


def found(client: Client, kind: str) -> set[str]:
    rows = client.get(LIST, {"kind": kind}).context["cl"].queryset
    return set(rows.values_list("model", flat=True))


def edit(model: str, **prices: Decimal) -> Price:
    price = Price.objects.get(model=model)
    for name, value in prices.items():
        setattr(price, name, value)
    price.save()
    return price


def test_an_edited_price_of_the_list_is_shown_and_found(client: Client) -> None:
    load(client)
    edit("gpt-4o", input=Decimal(3))
    Price.objects.create(model="mine", input=1)

    assert found(client, "edited") == {"gpt-4o"}
    assert found(client, "own") == {"mine"}
    assert found(client, "list") == set(bundled_prices())
    page = client.get(LIST, {"kind": "edited"}).content.decode()
    assert "list, edited" in page


def test_loading_says_how_many_it_added_changed_and_kept(client: Client) -> None:
    assert f"{len(bundled_prices())} added, 0 changed." in load(client)
    assert "0 added, 0 changed." in load(client)
    edit("gpt-4o", input=Decimal(3))
    edit("gpt-4o-mini", input=Decimal(9))
    old = {"input": "9", "output": "9"}
    Price.objects.filter(model="gpt-4.1").update(input=9, output=9, cached_input=None, bundled=old)

    page = load(client)

    assert "0 added, 1 changed, 2 kept as edited." in page
    assert "Changed: gpt-4.1. Kept: gpt-4o, gpt-4o-mini." in page


def test_copying_tells_what_is_not_in_the_list(client: Client) -> None:
    load(client)
    edited = edit("gpt-4o", input=Decimal(3))
    mine = Price.objects.create(model="mine", input=1)
    ticked = {"action": "restore_selected", "_selected_action": [edited.pk, mine.pk]}

    page = client.post(LIST, ticked, follow=True).content.decode()

    assert "1 price changed." in page
    assert "Not in the bundled list: mine." in page
