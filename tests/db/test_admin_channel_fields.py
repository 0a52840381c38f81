"""Overrides, proxy, limits and health of a channel in its form: stored, refused, kept secret."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from billing_app.models import User
from channels_app.models import Channel, Group
from tests.db.test_admin_forms import channel_form, errors
from tests.support.admin_rows import channel, operator, signed_in

pytestmark = pytest.mark.django_db

SECRET = "planted-header-0123456789"
PROXY = "http://planted-user:planted-password@proxy.example:3128"
ADD = "/admin/channels_app/channel/add/"


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def page_of(row: Channel, page: str = "change") -> str:
    return f"/admin/channels_app/channel/{row.pk}/{page}/"


def pages(client: Client, row: Channel) -> str:
    """Return all that is shown of the channel."""
    paths = [
        page_of(row),
        page_of(row, "history"),
        page_of(row, "delete"),
        ADD.removesuffix("add/"),
    ]
    return "".join(client.get(path).content.decode() for path in paths)


@pytest.mark.parametrize(
    ("field", "typed", "stored"),
    [
        ("model_mapping", '{"gpt-4o": "gpt-4o-2024"}', {"gpt-4o": "gpt-4o-2024"}),
        ("model_mapping", "", {}),
        ("param_override", '{"temperature": 0}', {"temperature": 0}),
        ("header_override", '{"X-Team": " relay "}', {"X-Team": "relay"}),
        ("limits", '{"rpm": 600, "tpm": 0, "concurrency": null}', {"rpm": 600}),
        ("fault_domain", " eu-west ", "eu-west"),
        ("health_scope", "model", "model"),
        ("supports_prefill", "", None),
        ("supports_prefill", "yes", True),
        ("supports_prefill", "no", False),
        ("bill_upstream_model", "on", True),
        ("new_proxy", PROXY, PROXY),
        ("new_proxy", " socks5://host:1080/ ", "socks5://host:1080"),
    ],
)
def test_a_field_is_stored_and_kept_by_the_next_save(
    client: Client, field: str, typed: str, stored: object
) -> None:
    client.post(ADD, channel_form(**{field: typed}))
    row = Channel.objects.get()
    column = field.removeprefix("new_")
    assert getattr(row, column) == stored

    form = client.get(page_of(row)).context["adminform"].form
    shown = {name: form[name].value() for name in form.fields}
    # A browser posts neither empty selections nor switches that are off.
    posted = {name: v for name, v in shown.items() if v is not None and v is not False and v != []}
    client.post(page_of(row), channel_form(**{**posted, "weight": "7"}))

    row.refresh_from_db()
    assert (getattr(row, column), row.weight) == (stored, 7)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("model_mapping", '{"a": "b", "b": "a"}', "goes in a circle"),
        ("model_mapping", "[]", "is not a mapping of models"),
        ("param_override", '{"operations": [{"mode": "sett", "path": "x"}]}', "sett"),
        ("param_override", "[]", "is not a mapping of parameters"),
        ("header_override", '{"Host": "x"}', "Host is set by the relay"),
        ("header_override", '{"X-A": "{api_kee}"}', "unknown placeholder"),
        ("header_override", '{"X-A": 5}', "is not a text"),
        ("header_override", '{"X-A": "•••"}', "X-A: there is no value to keep; type one."),
        ("limits", '{"rpn": 5}', "unknown key; did you mean rpm?"),
        ("limits", '{"rpm": -5}', "-5 is not a whole number"),
        ("fault_domain", "x" * 101, "at most 100 characters"),
        ("health_scope", "key", "Select a valid choice."),
        ("supports_prefill", "maybe", "Select a valid choice."),
        ("new_proxy", "ftp://host:1", "a proxy is http or https"),
        ("new_proxy", "http://host:1/path", "a proxy has no path"),
    ],
)
def test_a_value_that_the_relay_would_not_take_is_refused_at_its_field(
    client: Client, field: str, value: str, error: str
) -> None:
    response = client.post(ADD, channel_form(**{field: value}))

    assert error in " ".join(errors(response)[field])
    assert not Channel.objects.exists()


def test_header_values_are_masked_once_saved(client: Client) -> None:
    typed = f'{{"X-Secret": "Bearer {SECRET}", "X-Team": "relay"}}'
    response = client.post(ADD, channel_form(header_override=typed), follow=True)
    row = Channel.objects.get()

    shown = pages(client, row)

    assert SECRET not in shown + response.content.decode()
    assert "X-Secret" in shown
    assert "•••" in shown
    assert row.header_override == {"X-Secret": f"Bearer {SECRET}", "X-Team": "relay"}


def test_masked_headers_are_kept_and_others_changed(client: Client) -> None:
    row = channel("one", keys=0, header_override={"X-A": SECRET, "X-B": "b", "X-C": "c"})
    typed = '{"X-A": "•••", "X-B": "new", "X-D": "d"}'

    client.post(page_of(row), channel_form(header_override=typed))

    row.refresh_from_db()
    assert row.header_override == {"X-A": SECRET, "X-B": "new", "X-D": "d"}


def test_a_refused_header_is_not_repeated_in_its_error(client: Client) -> None:
    typed = f'{{"X-A": "{SECRET}\\n"}}'.replace("\\n", "\\u0007")

    response = client.post(ADD, channel_form(header_override=typed))

    assert SECRET not in " ".join(errors(response)["header_override"])


def test_a_proxy_is_never_shown_again(client: Client) -> None:
    client.post(ADD, channel_form(new_proxy=PROXY))
    row = Channel.objects.get()

    shown = pages(client, row)

    assert "planted" not in shown
    assert "proxy.example" not in shown
    assert "one is set; leave empty to keep it" in shown
    assert "planted" not in str(list(Channel.history.values()))


def test_a_refused_proxy_is_not_repeated(client: Client) -> None:
    response = client.post(ADD, channel_form(new_proxy=PROXY + "/path"))

    assert "planted" not in response.content.decode()


def test_a_proxy_is_kept_replaced_and_removed(client: Client) -> None:
    row = channel("one", keys=0, proxy=PROXY)

    def after(**fields: Any) -> str:
        client.post(page_of(row), channel_form(**fields))
        row.refresh_from_db()
        return row.proxy

    assert after(new_proxy="") == PROXY
    assert after(new_proxy="socks5://host:1") == "socks5://host:1"
    assert after(is_proxy_removed="on") == ""


def test_a_new_proxy_and_its_removal_are_one_too_many(client: Client) -> None:
    row = channel("one", keys=0, proxy=PROXY)
    form = channel_form(new_proxy="http://other:1", is_proxy_removed="on")

    assert "new_proxy" in errors(client.post(page_of(row), form))


def test_removal_is_offered_where_there_is_a_proxy(client: Client) -> None:
    without, with_one = channel("one", keys=0), channel("two", keys=0, proxy=PROXY)

    assert "Remove the proxy" not in client.get(page_of(without)).content.decode()
    assert "Remove the proxy" in client.get(page_of(with_one)).content.decode()


def test_those_who_may_only_look_see_names_of_headers_and_no_more() -> None:
    row = channel("one", header_override={"X-A": SECRET}, proxy=PROXY, settings={"k": SECRET})
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_channel"))

    page = signed_in(viewer).get(page_of(row)).content.decode()

    assert "X-A" in page
    assert "planted" not in page
    assert "proxy.example" not in page


def test_a_key_has_limits_of_its_own(client: Client) -> None:
    row = channel("one")
    key = row.keys.get()
    there = {"id": key.pk, "channel": row.pk, "new_value": ""}

    client.post(page_of(row), channel_form({**there, "limits": '{"rpm": 5}'}, initial=1))
    key.refresh_from_db()
    refused = client.post(page_of(row), channel_form({**there, "limits": '{"rpn": 1}'}, initial=1))

    assert key.limits == {"rpm": 5}
    assert "unknown key; did you mean rpm?" in refused.content.decode()


@pytest.mark.parametrize(
    ("chosen", "fields"),
    [
        ("limits", {"limits": {"rpm": 1}}),
        ("timeouts", {"timeouts": {"idle": 1}}),
        ("mapping", {"model_mapping": {"a": "b"}}),
        ("overrides", {"param_override": {"a": 1}}),
        ("overrides", {"header_override": {"X-A": "1"}}),
        ("fault_domain", {"fault_domain": "eu"}),
        ("by_model", {"health_scope": "model"}),
    ],
)
def test_the_list_filters_by_what_most_have_not(
    client: Client, chosen: str, fields: dict[str, Any]
) -> None:
    channel("plain", keys=0)
    special = channel("special", keys=0, **fields)

    response = client.get(f"/admin/channels_app/channel/?special={chosen}")

    assert list(response.context["cl"].result_list) == [special]


def test_a_group_is_opened_to_some_users_only(client: Client) -> None:
    group = Group.objects.create(name="vip")
    url = f"/admin/channels_app/group/{group.pk}/change/"

    client.post(url, {"ratio": "1", "user_groups": "vip\r\n staff ,vip"})

    group.refresh_from_db()
    assert group.user_groups == ["vip", "staff"]
    assert "vip, staff" in client.get("/admin/channels_app/group/").content.decode()


def test_no_group_may_be_called_auto(client: Client) -> None:
    response = client.post("/admin/channels_app/group/add/", {"name": "auto", "ratio": "1"})

    assert "stands for all groups" in " ".join(errors(response)["name"])
