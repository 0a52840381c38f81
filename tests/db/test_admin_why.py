"""The why page: one request, found by its id from anywhere."""

from __future__ import annotations

import uuid
from decimal import Decimal

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from billing_app.core.operations import Reserve, Settle
from billing_app.ledger import run_batch
from billing_app.models import User
from billing_app.services import token_create
from channels_app.models import Group
from relay_app.admin.why import DECISIONS, request_id_in
from relay_app.core.attempts import NEXT_KEY, NEXT_MODEL, SAME_CHANNEL
from relay_app.core.retry import RULES
from relay_app.models import RequestLog
from tests.support.admin_rows import channel, operator, request_log, signed_in

pytestmark = pytest.mark.django_db

NANO = 10**9


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


@pytest.fixture
def row() -> RequestLog:
    token, _ = token_create(user=User.objects.create_user("alice"), name="laptop")
    return request_log(token=token, channels=[channel("first"), channel("second")])


def test_page_says_who_asked_for_what_and_what_each_attempt_met(
    client: Client, row: RequestLog
) -> None:
    page = client.get(f"/admin/why/?id={row.request_id}").content.decode()

    for text in (
        "alice",
        "laptop",
        "POST /v1/chat/completions",
        "first",
        "sk-p…6789",
        "503",
        "SERVER",
        "server_error",
        "overloaded",
        "req_upstream_1",
        "345 ms",
        "120 ms",
        DECISIONS["retryable status"],
        DECISIONS["answered"],
    ):
        assert text in page
    assert f"/admin/billing_app/token/{row.token_id}/change/" in page
    assert "sk-planted" not in page


@pytest.mark.parametrize(
    "text",
    [
        "{id}",
        "  {id}\n",
        "The server is overloaded (request id: {id})",
        '{{"error": {{"message": "no (request id: {id})", "code": 503}}}}',
        "x-request-id: {id}",
        "{ID}",
    ],
)
def test_request_is_found_by_whatever_was_pasted(
    client: Client, row: RequestLog, text: str
) -> None:
    pasted = text.format(id=row.request_id, ID=row.request_id.upper())

    response = client.get("/admin/why/", {"id": pasted})

    assert response.status_code == 200
    assert response.context["row"] == row


def test_unknown_id_gets_a_page_that_says_so(client: Client) -> None:
    for wanted in ("0" * 32, "x" * 500, "\x00", "<script>alert(1)</script>"):
        response = client.get("/admin/why/", {"id": wanted})
        page = response.content.decode()
        assert response.status_code == 404
        assert "There is no request with this id." in page
        assert "kept for 30 days" in page
        assert "<script>alert" not in page


def test_page_without_an_id_asks_for_one(client: Client) -> None:
    response = client.get("/admin/why/")

    assert response.status_code == 200
    assert "There is no request" not in response.content.decode()


def test_rows_that_are_gone_are_named_without_a_link(client: Client) -> None:
    token, _ = token_create(user=User.objects.create_user("alice"), name="laptop")
    used = channel("first")
    row = request_log(token=token, channels=[used])
    used.delete()
    token.user.delete()

    page = client.get(f"/admin/why/?id={row.request_id}").content.decode()

    assert "first (deleted)" in page
    assert "laptop (deleted)" in page
    assert "alice" in page


def test_request_that_never_went_upstream(client: Client) -> None:
    row = request_log(status=401, outcome="invalid_api_key", user_name="", message="no token")

    page = client.get(f"/admin/why/?id={row.request_id}").content.decode()

    assert "Nothing was sent upstream." in page
    assert "invalid_api_key" in page


def test_row_of_the_list_leads_here(client: Client, row: RequestLog) -> None:
    listed = client.get("/admin/relay_app/requestlog/").content.decode()
    response = client.get(f"/admin/relay_app/requestlog/{row.pk}/change/")

    assert f"/admin/why/?id={row.request_id}" in listed
    assert response["Location"] == f"/admin/why/?id={row.request_id}"


def test_page_wants_the_permission_to_see_requests(row: RequestLog) -> None:
    visitor = User.objects.create_user("visitor", is_staff=True)

    assert signed_in(visitor).get(f"/admin/why/?id={row.request_id}").status_code == 403
    assert Client().get("/admin/why/").status_code == 302


def test_every_decision_has_words() -> None:
    others = {NEXT_KEY.reason, SAME_CHANNEL.reason, NEXT_MODEL.reason}

    assert {rule.reason for rule in RULES} | others <= DECISIONS.keys()


def test_page_says_why_no_further_attempt_followed(client: Client) -> None:
    row = request_log(channels=[channel("first")], status=503, stop_reason="no attempts left")

    page = client.get(f"/admin/why/?id={row.request_id}").content.decode()

    assert "Why no further attempt followed:</strong> The budget of attempts" in page


def test_page_of_a_request_that_was_answered_has_no_such_line(
    client: Client, row: RequestLog
) -> None:
    assert "stop-reason" not in client.get(f"/admin/why/?id={row.request_id}").content.decode()


def test_page_names_the_model_that_the_upstream_was_asked_for(client: Client) -> None:
    row = request_log(channels=[channel("first"), channel("second")], request_model="gpt-4o")
    row.attempts.filter(number=1).update(upstream_model="gpt-4o-2024-11-20")
    row.attempts.filter(number=2).update(upstream_model="gpt-4o")

    page = client.get(f"/admin/why/?id={row.request_id}").content.decode()

    assert page.count("asked for model") == 1
    assert "asked for model gpt-4o-2024-11-20" in page


def test_id_is_taken_out_of_error_texts() -> None:
    assert request_id_in("no channel (request id: abc-1)") == "abc-1"
    assert request_id_in('{"request_id": "abc_1"}') == "abc_1"
    assert request_id_in(" abc ") == "abc"


def test_money_is_told_with_the_entries_and_the_groups_ratio(client: Client) -> None:
    alice = User.objects.create_user("alice", opening_balance_nusd=25 * NANO)
    token, _ = token_create(user=alice, name="laptop")
    Group.objects.create(name="vip", ratio=Decimal("0.8"))
    money = {"group": "vip", "cost_nusd": NANO, "billing": "settled", "billed_model": "m*"}
    row = request_log(token=token, **money)
    session = {"session_id": uuid.uuid4(), "request_id": row.request_id}
    owner = {"wallet_id": alice.pk, "token_id": token.pk}
    reserve = Reserve(**session, **owner, amount_nusd=2 * NANO, lease_id=uuid.uuid4())
    run_batch([reserve, Settle(**session, **owner, amount_nusd=NANO)])

    page = client.get(f"/admin/why/?id={row.request_id}").content.decode()

    for text in (
        "charged by what was used",
        "price of m*",
        "group ratio 0.8",
        "reserved",
        "-$2.00",
        "$23.00",
        "settled",
        "+$1.00",
        "$24.00",
        f"/admin/billing_app/billingsession/{session['session_id']}/change/",
    ):
        assert text in page
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_requestlog"))
    page = signed_in(viewer).get(f"/admin/why/?id={row.request_id}").content.decode()
    assert "charged by what was used" in page
    assert "$24.00" not in page


@pytest.mark.parametrize(
    ("billing", "cost_nusd", "words"),
    [
        ("trusted", None, "failed; nothing was reserved"),
        ("refunded", None, "what was reserved is given back"),
        ("free", 0, "it cost nothing"),
        ("unpriced", 0, "the model has no price"),
    ],
)
def test_a_request_without_a_charge_says_why(
    client: Client, billing: str, cost_nusd: int | None, words: str
) -> None:
    billed_model = "m" if cost_nusd is not None else ""
    row = request_log(billing=billing, cost_nusd=cost_nusd, billed_model=billed_model)

    page = client.get(f"/admin/why/?id={row.request_id}").content.decode()

    assert words in page
    assert "$0.00" in page
    assert ("price of m" in page) == (billing == "free")
    assert "group ratio" not in page
