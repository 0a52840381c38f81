"""The lists of the admin: they render, stay cheap, and find what is looked for."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing_app.models import Token, User
from billing_app.services import token_create
from channels_app.models import Channel, Group, Status
from relay_app.models import RequestLog
from tests.support.admin_rows import channel, many_rows, operator, request_log, signed_in

pytestmark = pytest.mark.django_db

LISTS = {
    "channels_app/channel": "c07",
    "channels_app/group": "g07",
    "channels_app/option": "Retry times",
    "billing_app/user": "u07",
    "billing_app/token": "u07",
    "relay_app/requestlog": "u07/t",
    "auth/group": "",
}


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def names(client: Client, query: str, path: str = "channels_app/channel") -> list[str]:
    """Return the rows of a filtered list."""
    response = client.get(f"/admin/{path}/?{query}")
    assert response.status_code == 200
    return [str(row) for row in response.context["cl"].result_list]


@pytest.mark.parametrize("path", LISTS)
def test_list_shows_its_rows_in_a_dozen_queries(client: Client, path: str) -> None:
    many_rows(20)
    client.get(f"/admin/{path}/")  # what is looked up once per process

    with CaptureQueriesContext(
        connection,
    ) as queries:
        response = client.get(f"/admin/{path}/")

    assert response.status_code == 200
    assert LISTS[path] in response.content.decode()
    assert len(queries) <= 12, [query["sql"][:150] for query in queries]


def test_search_finds_channels_by_name_address_and_model(client: Client) -> None:
    channel("alpha", base_url="http://vllm:9001/v1", model_names=["gpt-4o-mini", "o3"])
    channel("beta", base_url="https://eu.host/v1", model_names=["claude-opus*"])

    assert names(client, "q=alph") == ["alpha"]
    assert names(client, "q=vllm") == ["alpha"]
    assert names(client, "q=Claude-Opus") == ["beta"]
    assert names(client, "model=4o-mini") == ["alpha"]
    assert names(client, "q=nothing") == []


def test_channels_are_filtered_by_status_type_and_group(client: Client) -> None:
    group = Group.objects.create(name="vip")
    channel("one", group=group, status=Status.AUTO_DISABLED)
    channel("two", provider="simulated", base_url="")

    assert names(client, "status__exact=auto_disabled") == ["one"]
    assert names(client, "provider=simulated") == ["two"]
    assert names(client, f"groups__id__exact={group.pk}") == ["one"]


def test_priority_and_weight_are_edited_in_the_list(client: Client) -> None:
    row = channel("one", priority=1)
    form = {
        "form-TOTAL_FORMS": "1",
        "form-INITIAL_FORMS": "1",
        "form-0-id": str(row.pk),
        "form-0-priority": "7",
        "form-0-weight": "30",
        "_save": "Save",
    }

    response = client.post("/admin/channels_app/channel/", form)

    assert response.status_code == 302
    row.refresh_from_db()
    assert (row.priority, row.weight) == (7, 30)
    assert row.history.first().history_user.username == "op"


def test_tokens_are_filtered_by_state(client: Client) -> None:
    owner = User.objects.create_user("alice")
    gone = User.objects.create_user("bob", is_active=False)
    past = timezone.now() - timedelta(days=1)
    token_create(user=owner, name="active")
    token_create(user=owner, name="expired", expires_at=past)
    token_create(user=gone, name="owner inactive")
    token, _ = token_create(user=owner, name="disabled", expires_at=past)
    Token.objects.filter(pk=token.pk).update(is_enabled=False)

    for state in ("active", "expired", "owner inactive", "disabled"):
        assert names(client, f"state={state}", "billing_app/token") == [state]
    page = client.get("/admin/billing_app/token/").content.decode()
    assert page.count("owner inactive") >= 2


def test_requests_are_filtered(client: Client) -> None:
    used = channel("used")
    good = request_log(channels=[used], request_model="gpt-4o")
    bad = request_log(status=503, outcome="SERVER", is_stream=True, group="vip")
    Group.objects.create(name="vip")
    wanted = {
        "status_from=500&status_to=599": [bad],
        "outcome=ok": [good],
        "outcome=failed": [bad],
        "outcome=SERVER": [bad],
        "is_stream__exact=1": [bad],
        "group=vip": [bad],
        "request_model__icontains=4O": [good],
        "channel=use": [good],
        f"channel={used.pk}": [good],
        f"channel={'9' * 30}": [],
        f"q={good.request_id}": [good],
        "created_at_from_0=2001-01-01&created_at_from_1=00:00:00": [bad, good],
        "created_at_from_0=2001-01-01": [bad, good],
        "created_at_to_0=2001-01-01&created_at_to_1=00:00:00": [],
        "created_at_to_0=2001-02-31&created_at_to_1=25:00": [bad, good],
    }
    for query, rows in wanted.items():
        found = names(client, query, "relay_app/requestlog")
        assert sorted(found) == sorted(row.request_id for row in rows), query


def test_lists_link_to_what_belongs_to_a_row(client: Client) -> None:
    group = Group.objects.create(name="a&b")
    channel("one", group=group)
    user = User.objects.create_user("alice", group="a&b")
    token_create(user=user, name="t", group="a&b")

    groups = client.get("/admin/channels_app/group/").content.decode()
    assert f"/admin/channels_app/channel/?groups__id__exact={group.pk}" in groups
    assert "/admin/billing_app/token/?group=a%26b" in groups
    assert names(client, "group=a%26b", "billing_app/token") == ["t"]
    assert names(client, f"user__id__exact={user.pk}", "billing_app/token") == ["t"]
    assert f"/admin/channels_app/group/{group.pk}/change/" in (
        client.get("/admin/channels_app/channel/").content.decode()
    )


def test_requests_are_for_reading_only(client: Client) -> None:
    row = request_log()

    assert client.get("/admin/relay_app/requestlog/add/").status_code == 403
    assert client.post(f"/admin/relay_app/requestlog/{row.pk}/delete/").status_code == 403
    assert RequestLog.objects.count() == 1


def test_support_staff_sees_and_changes_nothing(client: Client) -> None:
    many_rows(2)
    user = User.objects.create_user("support", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    support = signed_in(user)
    one = Channel.objects.get(name="c00")
    one.settings = {"private_key": "planted-private-key"}
    one.base_url = "https://u:planted-password@host/v1"
    one.save()

    for path in LISTS:
        assert support.get(f"/admin/{path}/").status_code == 200, path
    form = support.get(f"/admin/channels_app/channel/{one.pk}/change/").content.decode()
    account = support.get(f"/admin/billing_app/user/{user.pk}/change/").content.decode()
    refused = [
        support.post("/admin/channels_app/option/", {"RetryTimes": "5"}),
        support.post(f"/admin/channels_app/channel/{one.pk}/change/", {"name": "x"}),
        support.post(f"/admin/channels_app/channel/{one.pk}/disable/", {"_form_submitted": "1"}),
        support.post(f"/admin/channels_app/channel/{one.pk}/copy/", {"_form_submitted": "1"}),
        support.get("/admin/billing_app/token/add/"),
    ]

    assert "planted-private-key" not in form
    assert "planted-password" not in form
    assert 'name="_save"' not in form
    assert "new_value" not in form
    assert user.password not in account
    assert [response.status_code for response in refused] == [403] * 5
    one.refresh_from_db()
    assert one.status == Status.ENABLED
    # The list's own actions are not offered, and so not carried out.
    ticked = {"action": "disable_selected", "_selected_action": [str(one.pk)]}
    support.post("/admin/channels_app/channel/", ticked)
    one.refresh_from_db()
    assert one.status == Status.ENABLED


def test_sidebar_shows_what_the_user_may_see() -> None:
    user = User.objects.create_user("finance", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_token"))

    page = signed_in(user).get("/admin/").content.decode()

    assert "/admin/billing_app/token/" in page
    assert "/admin/channels_app/channel/" not in page
    assert "/admin/why/" not in page


def test_search_box_finds_requests_and_rows(client: Client) -> None:
    channel("finland")
    request_id = "0123456789abcdef" * 2

    rows = client.get("/admin/search/?extended=1&s=finl").content.decode()
    why = client.get(f"/admin/search/?extended=1&s=Failed (request id: {request_id})")

    assert "finland" in rows
    assert f"/admin/why/?id={request_id}" in why.content.decode()


@pytest.mark.parametrize("path", LISTS)
def test_every_column_sorts(client: Client, path: str) -> None:
    for number in range(1, 13):
        for direction in ("", "-"):
            assert client.get(f"/admin/{path}/?o={direction}{number}").status_code == 200


@pytest.mark.parametrize("lookup", ["key_hash__startswith", "user__password__startswith"])
def test_secrets_are_no_filters(client: Client, lookup: str) -> None:
    """Letter by letter the rows that match would tell what is shown nowhere."""
    response = client.get(f"/admin/billing_app/token/?{lookup}=3")

    assert response.status_code in (302, 400)


def test_a_search_of_thousands_of_words_is_cut(client: Client) -> None:
    response = client.get("/admin/channels_app/channel/", {"q": "a " * 3000})

    assert response.status_code == 200


def test_the_history_of_what_is_no_id_is_not_found(client: Client) -> None:
    assert client.get("/admin/channels_app/option/x/history/").status_code == 404


def test_requests_are_found_by_account_token_and_the_relays_own_refusal(client: Client) -> None:
    token, _ = token_create(user=User.objects.create_user("alice"), name="laptop")
    refused = request_log(token=token, status=403, outcome="insufficient_quota")
    request_log(status=400, outcome="INVALID_REQUEST")
    url = "/admin/relay_app/requestlog/"

    for query in (
        {"outcome": "insufficient_quota"},
        {"user_name__icontains": "lic"},
        {"token_name__icontains": "lap"},
    ):
        assert list(client.get(url, query).context["cl"].result_list) == [refused], query
    page = client.get(url).content.decode()
    for code in (
        "insufficient_quota",
        "model_price_missing",
        "no_channel_available",
        "billing_unavailable",
        "invalid_request",
        "internal_error",
    ):
        assert f'value="{code}"' in page
    assert 'value="None"' not in page
