"""The list of billing sessions, and what leads to it."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client
from django.urls import reverse

from billing_app.core.operations import MarkRefundDue, Reserve, Settle
from billing_app.ledger import run_batch
from billing_app.models import BillingSession, User
from billing_app.services import token_create
from tests.support.admin_rows import operator, signed_in

pytestmark = pytest.mark.django_db

NANO = 10**9
LIST = reverse("admin:billing_app_billingsession_changelist")


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


@pytest.fixture
def alice() -> User:
    """Return an account with a reserved, a settled and a failed session."""
    alice = User.objects.create_user("alice", opening_balance_nusd=25 * NANO)
    token, _ = token_create(user=alice, name="laptop")
    ids = [uuid.uuid4() for _ in range(3)]
    run_batch(
        [
            Reserve(
                session_id=session_id,
                request_id=f"{name:0<32}",
                wallet_id=alice.pk,
                token_id=token.pk,
                amount_nusd=2 * NANO,
                lease_id=uuid.uuid4(),
            )
            for session_id, name in zip(ids, ("aa", "bb", "cc"), strict=True)
        ]
    )
    settle = Settle(
        session_id=ids[1],
        request_id="",
        wallet_id=alice.pk,
        token_id=token.pk,
        amount_nusd=1_500_000_000,
    )
    run_batch([settle, MarkRefundDue(session_id=ids[2])])
    return alice


def found(client: Client, **query: str) -> list[str]:
    rows = client.get(LIST, query).context["cl"].result_list
    return sorted(row.request_id[:2] for row in rows)


def test_sessions_are_filtered_and_searched(client: Client, alice: User) -> None:
    assert found(client) == ["aa", "bb", "cc"]
    assert found(client, state="open") == ["aa", "cc"]
    assert found(client, state="settled") == ["bb"]
    assert found(client, state="refund_due") == ["cc"]
    assert found(client, q="bb000") == ["bb"]
    assert found(client, q="laptop") == ["aa", "bb", "cc"]
    assert found(client, created_at_from_0="2999-01-01") == []
    page = client.get(LIST).content.decode()
    for text in ("$2.00", "$1.50", "alice", "laptop", "refund due", "/admin/why/?id=aa000"):
        assert text in page


def test_open_sessions_come_first(client: Client, alice: User) -> None:
    rows = client.get(LIST).context["cl"].result_list

    assert [row.request_id[:2] for row in rows][-1] == "bb"


def test_sessions_can_only_be_read(client: Client, alice: User) -> None:
    session = BillingSession.objects.first()
    assert session is not None
    page = reverse("admin:billing_app_billingsession_change", args=(session.pk,))

    assert "entries" in client.get(page).content.decode()
    assert client.post(page, {"settled_nusd": 1}).status_code == 403
    assert client.get(reverse("admin:billing_app_billingsession_add")).status_code == 403
    delete = reverse("admin:billing_app_billingsession_delete", args=(session.pk,))
    assert client.post(delete, {"post": "yes"}).status_code == 403


def test_a_wallet_leads_to_its_open_sessions(client: Client, alice: User) -> None:
    bob = User.objects.create_user("bob")
    for user, count in ((alice, 2), (bob, 0)):
        page = reverse("admin:billing_app_wallet_change", args=(user.pk,))
        url = f"{LIST}?state=open&amp;wallet__pk__exact={user.pk}"
        assert url in client.get(page).content.decode()
        rows = client.get(url.replace("&amp;", "&")).context["cl"].result_list
        assert len(rows) == count
