"""The admin's forms of tokens, users and options."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.contrib.sessions.models import Session
from django.test import Client

from billing_app.models import Token, User
from billing_app.services import key_hash, token_create
from channels_app.models import Group, Option
from channels_app.routing_table import load_options
from tests.support.admin_rows import operator, signed_in, token_form

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def test_token_key_is_shown_once_and_written_nowhere(client: Client) -> None:
    user = User.objects.create_user("alice")

    response = client.post("/admin/billing_app/token/add/", token_form(user))

    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    key = response.context["key"]
    assert key in response.content.decode()
    token = Token.objects.get()
    assert token.key_hash == key_hash(key)
    for path in (f"{token.pk}/change/", f"{token.pk}/history/", ""):
        assert key not in client.get(f"/admin/billing_app/token/{path}").content.decode()
    assert all(key not in str(s.get_decoded()) for s in Session.objects.all())
    assert key not in str(client.cookies)


def test_token_must_name_a_group_that_exists(client: Client) -> None:
    user = User.objects.create_user("alice")
    Group.objects.create(name="vip")
    url = "/admin/billing_app/token/add/"

    refused = client.post(url, token_form(user, group="vpi"))
    client.post(url, token_form(user, group="vip", model_names="m1, m2"))

    assert "group" in refused.context["adminform"].form.errors
    assert (Token.objects.get().group, Token.objects.get().model_names) == ("vip", ["m1", "m2"])


def test_token_of_a_group_that_is_gone_can_still_be_edited(client: Client) -> None:
    token, _ = token_create(user=User.objects.create_user("alice"), name="t", group="gone")
    url = f"/admin/billing_app/token/{token.pk}/change/"

    page = client.get(url).content.decode()
    response = client.post(url, token_form(token.user, name="new", group="gone"))

    assert "gone (does not exist)" in page
    assert response.status_code == 302
    token.refresh_from_db()
    assert token.name == "new"


def test_actions_enable_and_disable_tokens(client: Client) -> None:
    token, _ = token_create(user=User.objects.create_user("alice"), name="t")
    ticked = {"_selected_action": [str(token.pk)]}

    client.post("/admin/billing_app/token/", {"action": "disable_selected", **ticked})
    token.refresh_from_db()
    assert not token.is_enabled
    client.post("/admin/billing_app/token/", {"action": "enable_selected", **ticked})
    token.refresh_from_db()
    assert token.is_enabled


def options_form(**values: str) -> dict[str, str]:
    from relay_app.admin.options import OptionsForm

    form = OptionsForm(stored={})
    return {name: str(form.initial[name]) for name in form.fields} | values


def test_options_are_stored_all_or_none(client: Client) -> None:
    url = "/admin/channels_app/option/"

    refused = client.post(url, options_form(RetryTimes="4", IdleTimeout="-1"))
    assert "is not a number from 0 to 86400" in refused.content.decode()
    assert not Option.objects.exists()

    done = client.post(url, options_form(RetryTimes="4", IdleTimeout="12.5"), follow=True)
    assert "Changed: RetryTimes, IdleTimeout" in " ".join(map(str, done.context["messages"]))
    assert {o.name: o.value for o in Option.objects.all()} == {"RetryTimes": 4, "IdleTimeout": 12.5}
    assert (load_options().retry_times, load_options().idle_timeout) == (4, 12.5)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("RetryTimes", "21", "is not a whole number from 0 to 20"),
        ("RetryTimes", "1.5", "is not a whole number from 0 to 20"),
        ("RetryTimes", "", "Type a value; the default is 0."),
        ("AutomaticRetryStatusCodes", "500-", "is not a status like 429 or a range like 500-503"),
        ("AutomaticRetryStatusCodes", "503-500", "or its ends are swapped"),
    ],
)
def test_option_error_says_what_is_wrong(client: Client, name: str, value: str, error: str) -> None:
    response = client.post("/admin/channels_app/option/", options_form(**{name: value}))

    assert error in " ".join(response.context["form"].errors[name])
    assert not Option.objects.exists()


def test_options_page_says_what_differs_from_the_default(client: Client) -> None:
    url = "/admin/channels_app/option/"
    before = client.get(url).content.decode()
    client.post(url, options_form(AutomaticRetryStatusCodes=""))
    after = client.get(url).content.decode()

    assert "history</a>" not in before
    row = Option.objects.get()
    assert (row.name, row.value) == ("AutomaticRetryStatusCodes", "")
    assert f"/admin/channels_app/option/{row.pk}/history/" in after
    assert client.get(f"/admin/channels_app/option/{row.pk}/history/").status_code == 200
    assert client.get(f"/admin/channels_app/option/{row.pk}/change/").status_code == 302


def test_signing_in_is_no_change_of_the_account() -> None:
    user = operator()
    count = user.history.count()

    signed_in(user)

    assert user.history.count() == count


def test_only_superusers_touch_superusers_and_give_rights() -> None:
    root = operator("root")
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.set(Permission.objects.filter(codename__in=["view_user", "change_user"]))
    Group.objects.create(name="default")
    asking = signed_in(clerk)
    form = {"username": "clerk", "group": "default", "is_staff": "on", "is_active": "on"}

    password = asking.post(f"/admin/billing_app/user/{root.pk}/password/", {"password1": "x"})
    other = asking.post(f"/admin/billing_app/user/{root.pk}/change/", form)
    own = asking.post(f"/admin/billing_app/user/{clerk.pk}/change/", {**form, "is_superuser": "on"})

    assert (password.status_code, other.status_code, own.status_code) == (403, 403, 302)
    clerk.refresh_from_db()
    assert not clerk.is_superuser
