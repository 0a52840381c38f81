"""Redemption codes in the admin: made in batches, shown once, found by their state."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing_app.models import RedemptionCode, User
from billing_app.services import code_redeem, codes_create
from tests.support.admin_rows import signed_in

pytestmark = pytest.mark.django_db

NANO = 10**9
LIST = reverse("admin:billing_app_redemptioncode_changelist")
MAKE = reverse("admin:billing_app_redemptioncode_make")
FORM = {"batch": "spring", "count": "3", "amount": "0.50", "days": "7"}


@pytest.fixture
def client() -> Client:
    return signed_in(User.objects.create_superuser("boss"))


def code_page(code: RedemptionCode, name: str = "change") -> str:
    return reverse(f"admin:billing_app_redemptioncode_{name}", args=(code.pk,))


def test_codes_are_made_and_shown_once(client: Client) -> None:
    alice = User.objects.create_user("alice")

    answer = client.post(MAKE, FORM)

    codes = answer.context["codes"]
    page = answer.content.decode()
    assert len(set(codes)) == 3
    assert all(code in page for code in codes)
    assert "no-store" in answer["Cache-Control"]
    kept = f"{list(RedemptionCode.objects.values())} {list(LogEntry.objects.values())}"
    kept += "".join(str(session.get_decoded()) for session in Session.objects.all())
    for page in (LIST, MAKE, code_page(RedemptionCode.objects.all()[0], "history")):
        kept += client.get(page).content.decode()
    assert not any(code in kept for code in codes)
    assert code_redeem(code=codes[0], user_id=alice.pk).amount_nusd == NANO // 2
    row = RedemptionCode.objects.get(redeemed_by=alice)
    assert row.expires_at is not None
    assert row.expires_at - row.created_at == pytest.approx(
        timedelta(days=7), abs=timedelta(minutes=1)
    )


def test_a_form_that_is_sent_twice_makes_one_batch(client: Client) -> None:
    client.post(MAKE, FORM)
    again = client.post(MAKE, FORM).content.decode()

    assert "There is a batch of this name already" in again
    assert RedemptionCode.objects.count() == 3


@pytest.mark.parametrize(
    ("field", "typed", "words"),
    [
        ("batch", " ", "This field is required"),
        ("count", "0", "greater than or equal to 1"),
        ("count", "10001", "less than or equal to 10000"),
        ("amount", "1,5", "a point before the decimals"),
        ("amount", "0", "must be worth more than 0"),
        ("days", "0", "greater than or equal to 1"),
        ("days", "99999", "less than or equal to 3650"),
    ],
)
def test_what_is_typed_is_checked(client: Client, field: str, typed: str, words: str) -> None:
    page = client.post(MAKE, {**FORM, field: typed}).content.decode()

    assert words in page
    assert not RedemptionCode.objects.exists()


def test_making_codes_needs_a_permission_of_its_own() -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    names = ["view_redemptioncode", "change_redemptioncode"]
    viewer.user_permissions.set(Permission.objects.filter(codename__in=names))
    client = signed_in(viewer)

    assert client.post(MAKE, FORM).status_code == 403
    assert "Make codes" not in client.get(LIST).content.decode()
    assert not RedemptionCode.objects.exists()
    viewer.user_permissions.add(Permission.objects.get(codename="add_redemptioncode"))
    assert "Make codes" in signed_in(viewer).get(LIST).content.decode()


def test_codes_are_found_by_state_batch_and_hint(client: Client) -> None:
    alice = User.objects.create_user("alice")
    for batch in ("open", "redeemed", "expired", "disabled"):
        [code] = codes_create(batch=f"b-{batch}", count=1, amount_nusd=NANO)
        if batch == "redeemed":
            code_redeem(code=code, user_id=alice.pk)
    past = timezone.now() - timedelta(days=1)
    RedemptionCode.objects.filter(batch__in=["b-expired", "b-redeemed"]).update(expires_at=past)
    RedemptionCode.objects.filter(batch="b-disabled").update(is_enabled=False, expires_at=past)

    for state in ("open", "redeemed", "expired", "disabled"):
        found = client.get(LIST, {"state": state}).context["cl"].result_list
        assert [code.batch for code in found] == [f"b-{state}"]
        page = client.get(code_page(found[0])).content.decode()
        assert state in page
    hint = RedemptionCode.objects.get(batch="b-open").hint
    for wanted in ("b-open", hint[-4:]):
        found = client.get(LIST, {"q": wanted}).context["cl"].result_list
        assert [code.batch for code in found] == ["b-open"]


def test_making_and_disabling_stand_in_a_codes_history(client: Client) -> None:
    client.post(MAKE, {**FORM, "count": "1"})
    code = RedemptionCode.objects.get()
    ticked = {"action": "disable_selected", "_selected_action": [code.pk]}

    shown = client.post(LIST, ticked, follow=True).content.decode()
    client.post(LIST, ticked)

    assert "1 code disabled." in shown
    history = client.get(code_page(code, "history")).content.decode()
    assert history.count("Made.") == 1
    assert history.count("Disabled.") == 1
    assert history.count("boss") >= 2
