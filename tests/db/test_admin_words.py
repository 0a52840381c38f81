"""What the admin's pages say: names as they are, ids, times, roles, and the first page."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Group as Role
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing_app.models import User
from billing_app.services import token_create
from channels_app.models import Group, Option
from channels_app.services import channels_set_enabled
from relay_app.admin.base import in_words
from relay_app.admin.channel_forms import ChannelForm
from relay_app.admin.fields import NOT_YET
from relay_app.admin.groups import GroupForm
from relay_app.admin.tokens import TokenForm
from relay_app.models import RequestLog
from tests.support.admin_rows import channel, operator, request_log, signed_in

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent.parent
REQUESTS = "/admin/relay_app/requestlog/"
CHANNELS = "/admin/channels_app/channel/"


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def cells(client: Client, path: str, column: str) -> list[str]:
    """Return the texts of a list's column."""
    page = client.get(path).content.decode()
    found = re.findall(rf'<t[dh] class="field-{column} .*?</t[dh]>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in found]


def test_chain_names_the_channels_and_the_list_of_channels_their_ids(client: Client) -> None:
    first, second = channel("mine"), channel("other")
    request_log(channels=[first, second])

    assert cells(client, REQUESTS, "channels") == ["mine → other"]
    assert f'title="ids {first.pk}-&gt;{second.pk}"' in client.get(REQUESTS).content.decode()
    assert cells(client, CHANNELS, "number") == [str(first.pk), str(second.pk)]


@pytest.mark.parametrize(("ms", "text"), [(0, "0 ms"), (999, "999 ms"), (1000, "1.00 s")])
def test_durations_below_a_second_are_in_milliseconds(client: Client, ms: int, text: str) -> None:
    request_log(duration_ms=ms)

    assert cells(client, REQUESTS, "duration") == [text]


def test_requests_without_a_model_are_told_by_their_endpoint(client: Client) -> None:
    now = timezone.now()
    request_log(endpoint="GET /v1/models", request_model="", created_at=now)
    gone = {"endpoint": "POST /v1/nowhere", "outcome": "unknown_url", "status": 404}
    request_log(**gone, created_at=now - timedelta(1))

    assert cells(client, REQUESTS, "asked") == ["GET /v1/models", "POST /v1/nowhere"]


def test_reason_stands_below_the_status_of_a_disabled_channel(client: Client) -> None:
    row = channel("mine")
    channels_set_enabled(channel_ids=[row.pk], is_enabled=False, reason="op: <maintenance>")

    assert cells(client, CHANNELS, "status_badge") == [
        "disabled by hand op: &lt;maintenance&gt;",
    ]


def test_tokens_are_named_with_their_owner(client: Client) -> None:
    token_create(user=User.objects.create_user("alice"), name="laptop")

    assert cells(client, "/admin/billing_app/token/", "full_name") == ["alice/laptop"]
    assert "alice/laptop" in client.get("/admin/search/?extended=1&s=lapt").content.decode()


def test_names_keep_their_case_in_headers(client: Client) -> None:
    user = User.objects.create_user("alice")
    token, _ = token_create(user=user, name="laptop")
    rows = {
        f"{CHANNELS}{channel('mine').pk}": "mine",
        f"/admin/channels_app/group/{Group.objects.create(name='vip').pk}": "vip",
        f"/admin/billing_app/user/{user.pk}": "alice",
        f"/admin/billing_app/token/{token.pk}": "laptop",
        f"/admin/auth/group/{Role.objects.create(name='support').pk}": "support",
    }
    pages = {
        f"{row}/{page}/": name
        for row, name in rows.items()
        for page in ("change", "history", "delete")
    }
    pages[f"/admin/billing_app/user/{user.pk}/password/"] = "alice"

    for path, name in pages.items():
        page = client.get(path).content.decode()
        assert re.search(rf'id="row-name">{name}</a>', page), path
        assert f">{name.capitalize()}<" not in page, path


def test_groups_of_django_are_called_roles(client: Client) -> None:
    pages = [client.get(path).content.decode() for path in ("/admin/auth/", "/admin/auth/group/")]

    for page in pages:
        assert "Roles" in page
    assert "Add role" in client.get("/admin/auth/group/add/").content.decode()
    assert len(re.findall(r">\s*Groups\s*<", pages[0])) == 1  # the sidebar's, of channels


def test_words_of_people_need_no_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_times_are_written_in_one_way(client: Client) -> None:
    moment = timezone.now().replace(month=7, day=9, year=2031)
    user = User.objects.create_user("alice", last_login=moment, date_joined=moment)
    token, _ = token_create(user=user, name="t", expires_at=moment)
    row = channel("mine")
    channels_set_enabled(channel_ids=[row.pk], is_enabled=False, reason="by op")
    role = Role.objects.create(name="support")
    client.post(f"/admin/auth/group/{role.pk}/change/", {"name": "helpers"})
    reader = User.objects.create_superuser("reader")
    written = re.compile(
        r"\b(Jan|Feb|March|April|May|June|July|Aug|Sept|Oct|Nov|Dec)\.? \d+, \d{4}"
    )
    shown = {
        "/admin/billing_app/user/": f"{moment:%Y-%m-%d %H:%M:%S}",
        f"/admin/billing_app/user/{user.pk}/change/": f"{moment:%Y-%m-%d %H:%M:%S}",
        "/admin/billing_app/token/": f"{moment:%Y-%m-%d %H:%M:%S}",
        f"/admin/billing_app/token/{token.pk}/change/": f"{timezone.now():%Y-%m-%d}",
        f"{CHANNELS}{row.pk}/change/": f"{timezone.now():%Y-%m-%d}",
        f"/admin/auth/group/{role.pk}/history/": f"{timezone.now():%Y-%m-%d}",
    }
    for path, text in shown.items():
        page = signed_in(reader).get(path).content.decode()
        assert text in page, path
        assert not written.search(page), path


def test_fields_are_named_in_plain_words(client: Client) -> None:
    row = channel("mine")
    token, _ = token_create(user=User.objects.create_user("alice"), name="t")

    form = client.get(f"{CHANNELS}{row.pk}/change/").content.decode()
    assert "Base URL" in form
    assert "Base url" not in form
    for path in ("/admin/billing_app/token/", f"/admin/billing_app/token/{token.pk}/change/"):
        assert "Key (masked)" in client.get(path).content.decode()


def test_empty_lists_say_why_they_are(client: Client) -> None:
    empty = client.get(CHANNELS).content.decode()
    unmatched = client.get(f"{CHANNELS}?q=nothing").content.decode()

    assert "There are no channels yet." in empty
    assert f'href="{CHANNELS}add/"' in empty
    assert "Nothing matches the search and the filters." in unmatched
    assert "yielded" not in empty + unmatched


def test_first_page_shows_failures_and_channels_in_a_dozen_queries(client: Client) -> None:
    off = channel("off")
    channel("on")
    channels_set_enabled(channel_ids=[off.pk], is_enabled=False, reason="")
    good = request_log()
    failed = [request_log(status=503, outcome="SERVER") for _ in range(12)]
    RequestLog.objects.filter(pk=failed[0].pk).update(created_at=timezone.now())

    with CaptureQueriesContext(connection) as queries:
        page = client.get("/admin/").content.decode()

    assert len(queries) <= 12
    assert page.count("/admin/why/?id=") == 10
    assert page.count("?id=" + failed[0].request_id) == 1  # the newest
    assert good.request_id not in page
    assert re.search(r'href="/admin/"[^>]*>\s*Relay\s*<', page)
    assert '<form method="get" action="/admin/why/"' in page
    counts = re.findall(r"status__exact=(\w+)\">(\d+)", page)
    assert counts == [("enabled", "1"), ("disabled", "1"), ("auto_disabled", "0")]


def test_first_page_hides_what_the_user_may_not_see() -> None:
    channel("mine")
    request_log(status=503, outcome="SERVER")
    staff = User.objects.create_user("finance", is_staff=True)

    page = signed_in(staff).get("/admin/").content.decode()

    assert "/admin/why/" not in page
    assert "status__exact" not in page
    assert "SERVER" not in page


def test_what_is_only_stored_says_so(client: Client) -> None:
    """The page on configuration files says which keys these are, with the word yet."""
    page = (ROOT / "docs/configuration.md").read_text()
    inert = set(re.findall(r"^\| `(\w+)` \|.* yet \|$", page, re.MULTILINE))
    helps = {}
    for form in (GroupForm(), ChannelForm(), TokenForm()):
        helps |= {name: field.help_text for name, field in form.fields.items()}

    assert {name for name, words in helps.items() if words.startswith(NOT_YET)} == inert


def test_staff_without_rights_are_told_whom_to_ask() -> None:
    client = signed_in(User.objects.create_user("newcomer", is_staff=True))

    page = client.get("/admin/").content.decode()

    assert "Ask an administrator to give it a role." in page
    assert ">Pages</h2>" not in page


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [(CHANNELS, 403, "no right to this page"), ("/admin/nowhere/", 404, "no such page")],
)
def test_refusals_have_the_style_of_the_admin_and_a_way_back(
    path: str, status: int, words: str
) -> None:
    client = signed_in(User.objects.create_user("newcomer", is_staff=True))

    response = client.get(path)

    page = response.content.decode()
    assert (response.status_code, words in page) == (status, True)
    assert "relay_app/admin.css" in page
    assert re.search(r'<a href="/admin/"[^>]*>\s*To the overview', page)


def test_a_form_from_elsewhere_is_refused_in_the_style_of_the_admin() -> None:
    response = Client(enforce_csrf_checks=True).post("/admin/login/", {"username": "x"})

    page = response.content.decode()
    assert response.status_code == 403
    assert "CSRF_TRUSTED_ORIGINS" in page
    assert re.search(r'<a href="/admin/"[^>]*>\s*Sign in', page)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rpm": 5, "concurrency": 2}, "concurrency: 2, rpm: 5"),
        ({"a": {"idle": 2.5}}, "a: idle: 2.5"),
        (["a", "b"], "a, b"),
        (True, "yes"),
        (None, "none"),
        ({}, "none"),
        (0, "0"),
    ],
)
def test_values_of_the_history_are_words(value: object, words: str) -> None:
    assert in_words(value) == words


def test_history_spells_mappings_and_groups(client: Client) -> None:
    row = channel("mine", keys=0)
    row.limits, row.auto_ban = {"rpm": 5}, False
    row.save()
    row.groups.add(Group.objects.create(name="vip"))

    page = client.get(f"{CHANNELS}{row.pk}/history/").content.decode()

    assert "<strong>Limits</strong> none → rpm: 5" in page
    assert "<strong>Automatic disabling</strong> yes → no" in page
    assert "<strong>Groups</strong> none → vip" in page


def test_boxes_are_as_high_as_what_stands_in_them(client: Client) -> None:
    many = {f"m{number}": "other" for number in range(10)}
    row = channel("mine", model_mapping=many, model_names=[f"m{n}" for n in range(99)])
    Option.objects.create(name="ModelFallbacks", value={name: ["x"] for name in many})

    page = client.get(f"{CHANNELS}{row.pk}/change/").content.decode()
    options = client.get("/admin/channels_app/option/").content.decode()

    rows = {
        name: re.search(rf'<textarea name="{name}"[^>]* rows="(\d+)"', text)
        for name, text in (
            ("model_mapping", page),
            ("model_names", page),
            ("timeouts", page),
            ("ModelFallbacks", options),
            ("BlockedWords", options),
        )
    }
    assert {name: found and int(found[1]) for name, found in rows.items()} == {
        "model_mapping": 12,
        "model_names": 30,
        "timeouts": 4,
        "ModelFallbacks": 30,
        "BlockedWords": 4,
    }


def test_a_new_token_says_that_it_has_no_limits(client: Client) -> None:
    page = client.get("/admin/billing_app/token/add/").content.decode()

    for name in ("rpm", "tpm", "concurrency"):
        assert re.search(rf'<input [^>]*name="{name}" value="0"', page), name


def test_an_account_without_a_password_only_owns_tokens(client: Client) -> None:
    form = {"username": "alice", "group": "default", "password1": "", "password2": ""}
    Group.objects.create(name="default")
    add = "/admin/billing_app/user/add/"

    page = client.get(add).content.decode()
    client.post(add, form)
    client.post(add, {**form, "username": "bob", "password1": "x"})

    assert "Single Sign-On" not in page
    assert "Leave both empty for somebody who only uses tokens." in page
    assert not User.objects.get(username="alice").has_usable_password()
    assert not User.objects.filter(username="bob").exists()
