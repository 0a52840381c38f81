"""The page of options: words, texts, lists and mappings as fields."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from billing_app.models import User
from channels_app.models import Group, Option
from channels_app.options import OPTIONS
from channels_app.presets import MEANINGS, PRESETS
from relay_app.admin.options import EXAMPLES, NUMBERS
from tests.support.admin_rows import operator, signed_in

pytestmark = pytest.mark.django_db

URL = "/admin/channels_app/option/"


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def filled(client: Client, **changes: str) -> dict[str, Any]:
    """Return what a browser posts after `changes`."""
    form = client.get(URL).context["form"]
    values = {name: form[name].value() for name in form.fields}
    values = {name: "on" if value is True else value for name, value in values.items()}
    return {name: v for name, v in {**values, **changes}.items() if v is not False}


@pytest.mark.parametrize(
    ("name", "typed", "stored"),
    [
        ("RetryStrategy", "exhaust_tier", "exhaust_tier"),
        ("AllowPrivateUpstreams", "off", "off"),
        ("BlockedWords", "one\r\n\r\n two words ", "one\ntwo words"),
        ("AutoGroups", "vip, default", ["vip", "default"]),
        ("AutoGroups", "default\r\nvip", ["default", "vip"]),
        ("ModelFallbacks", '{"a": ["b", "c"]}', {"a": ["b", "c"]}),
        ("ModelTimeouts", '{"o1*": {"first_token": 300}}', {"o1*": {"first_token": 300}}),
    ],
)
def test_a_value_is_stored_shown_and_kept(
    client: Client, name: str, typed: str, stored: object
) -> None:
    for group in ("default", "vip"):
        Group.objects.create(name=group)

    assert client.post(URL, filled(client, **{name: typed})).status_code == 302
    assert {row.name: row.value for row in Option.objects.all()} == {name: stored}

    client.post(URL, filled(client, RetryTimes="3"))
    assert Option.objects.get(name=name).value == stored


@pytest.mark.parametrize(
    ("name", "typed", "error"),
    [
        ("RetryStrategy", "random", "is not tier_per_attempt or"),
        ("AutoGroups", "nowhere", "There is no group nowhere."),
        ("ModelFallbacks", "{", "wanted JSON of a mapping"),
        ("ModelFallbacks", '{"a": ["a"]}', "it names itself"),
        ("ModelTimeouts", '{"a": {"frist": 1}}', "unknown limit &#x27;frist&#x27;"),
        ("RetryTimes", "", "the default is 0"),
    ],
)
def test_a_refused_value_is_told_beside_its_field(
    client: Client, name: str, typed: str, error: str
) -> None:
    page = client.post(URL, filled(client, **{name: typed})).content.decode()

    part = page.split(f'id="option-{name}"')[1].split('id="option-')[0]
    assert error in part
    assert not Option.objects.exists()


def test_an_emptied_list_is_the_default_again(client: Client) -> None:
    Option.objects.create(name="ModelFallbacks", value={"a": ["b"]})

    client.post(URL, filled(client, ModelFallbacks="", BlockedWords=""))

    assert Option.objects.get().value == {}


def test_every_kind_has_a_field_and_an_example_that_it_takes(client: Client) -> None:
    for spec in OPTIONS.values():
        assert spec.kind in NUMBERS | {"bool", "ranges", "choice", "usd"} | EXAMPLES.keys()
        if spec.kind in EXAMPLES:
            spec.stored(EXAMPLES[spec.kind])
    page = client.get(URL).content.decode()
    assert "default none" in page
    assert "such as {&quot;gpt-4o&quot;: [&quot;gpt-4o-mini&quot;]}" in page


def test_a_preset_is_shown_first_and_applied_on_demand(client: Client) -> None:
    page = client.get(f"{URL}preset/resilient/").content.decode()
    assert f'href="{URL}preset/resilient/"' in client.get(URL).content.decode()
    assert "RetryTimes: 0 -&gt; 3" in page
    assert "Apply the preset" in page
    assert not Option.objects.exists()

    told = client.post(f"{URL}preset/resilient/", follow=True).content.decode()

    assert "Preset resilient applied: RetryTimes: 0 -&gt; 3; RetryStrategy: " in told
    stored = {option.name: option.value for option in Option.objects.all()}
    assert stored == PRESETS["resilient"]
    record = Option.history.get(name="RetryTimes")
    assert record.history_user.get_username() == "op"
    again = client.get(f"{URL}preset/resilient/").content.decode()
    assert "nothing would change" in again
    assert "Apply the preset" not in again


def test_every_preset_has_a_meaning() -> None:
    assert list(MEANINGS) == list(PRESETS)


def test_presets_are_for_those_who_may_change_options() -> None:
    reader = User.objects.create_user("reader", is_staff=True)
    reader.user_permissions.add(Permission.objects.get(codename="view_option"))
    client = signed_in(reader)

    assert "Presets" not in client.get(URL).content.decode()
    assert client.get(f"{URL}preset/resilient/").status_code == 403
    assert client.post(f"{URL}preset/resilient/").status_code == 403
    assert not Option.objects.exists()
    assert signed_in(operator()).get(f"{URL}preset/nonsense/").status_code == 404


def test_the_banner_names_the_options_that_are_refused(client: Client) -> None:
    page = client.post(URL, filled(client, RetryTimes="x", IdleTimeout="-1")).content.decode()

    assert "Nothing was stored. Please correct: Retry times, Idle timeout." in page
