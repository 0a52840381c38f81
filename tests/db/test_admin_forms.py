"""The forms of the admin: what they check, what they store, and what they never show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client

from billing_app.models import Token, User
from channels_app.models import Channel, ChannelKey, Group, Status
from relay_app.admin.fields import MappingField
from relay_app.models import SnapshotChange
from tests.support.admin_rows import channel, many_rows, operator, signed_in, token_form

pytestmark = pytest.mark.django_db

KEY = "sk-planted-channel-key-0123456789"


@pytest.fixture
def client() -> Client:
    return signed_in(operator())


def channel_form(*keys: dict[str, Any], initial: int = 0, **fields: Any) -> dict[str, Any]:
    """Return what a browser posts for a channel."""
    form = {
        "name": "one",
        "provider": "openai",
        "base_url": "https://host/v1",
        "model_names": "gpt-4o\ngpt-4o-*",
        "priority": "0",
        "weight": "0",
        "status": "enabled",
        "key_mode": "random",
        "health_scope": "channel",
        "timeouts": "",
        "status_code_mapping": "",
        "settings": "",
        "keys-TOTAL_FORMS": str(len(keys)),
        "keys-INITIAL_FORMS": str(initial),
        **fields,
    }
    for number, key in enumerate(keys):
        values = {"status": "enabled", **key}
        form |= {f"keys-{number}-{name}": value for name, value in values.items()}
    return form


def errors(response: Any) -> dict[str, list[str]]:
    """Return the errors of the page's form by field."""
    assert response.status_code == 200
    return dict(response.context["adminform"].form.errors)


def messages(response: Any) -> str:
    return " ".join(str(message) for message in response.context["messages"])


@pytest.mark.parametrize(
    "path",
    ["channels_app/channel", "channels_app/group", "billing_app/user", "billing_app/token"],
)
def test_form_and_history_pages_render(client: Client, path: str) -> None:
    many_rows(1)
    model = {"channel": Channel, "group": Group, "user": User, "token": Token}[path.split("/")[1]]
    row = model.objects.order_by("-pk").first()
    assert row is not None

    for page in ("add/", f"{row.pk}/change/", f"{row.pk}/history/", f"{row.pk}/delete/"):
        assert client.get(f"/admin/{path}/{page}").status_code == 200, page


def test_channel_is_made_with_groups_and_a_key(client: Client) -> None:
    group = Group.objects.create(name="vip")
    form = channel_form(
        {"new_value": f" {KEY} "},
        groups=[str(group.pk)],
        timeouts='{"first_byte": 10}',
        status_code_mapping='{"400": 500}',
    )

    response = client.post("/admin/channels_app/channel/add/", form, follow=True)

    assert response.status_code == 200
    row = Channel.objects.get()
    assert row.model_names == ["gpt-4o", "gpt-4o-*"]
    assert (row.timeouts, row.status_code_mapping) == ({"first_byte": 10}, {"400": 500})
    assert [g.name for g in row.groups.all()] == ["vip"]
    assert row.keys.get().value == KEY
    assert KEY not in response.content.decode()
    assert KEY not in client.get(f"/admin/channels_app/channel/{row.pk}/change/").content.decode()


@pytest.mark.parametrize(
    ("typed", "stored", "notice"),
    [
        ("http://vllm:9001/v1", "http://vllm:9001/v1", ""),
        ("http://vllm:9001/", "http://vllm:9001/v1", "/v1 was added to the address"),
        ("http://vllm:9001/v1/", "http://vllm:9001/v1", ""),
        ("https://host/v2", "https://host/v2", ""),
    ],
)
def test_address_gets_its_ending_once(client: Client, typed: str, stored: str, notice: str) -> None:
    form = channel_form(base_url=typed)

    response = client.post("/admin/channels_app/channel/add/", form, follow=True)

    assert Channel.objects.get().base_url == stored
    assert ("was added to the address" in messages(response)) is bool(notice)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("base_url", "host/v1", "'host/v1' is not an address like https://host/v1"),
        (
            "base_url",
            "https://api.openai.com/v1/chat/completions",
            "/chat/completions is an endpoint, which the relay adds; want https://api.openai.com/v1",
        ),
        ("base_url", "", "Type openai wants an address."),
        ("provider", "opneai", "Select a valid choice."),
        ("model_names", "gpt-*-mini", "has a * that is not at its end"),
        ("model_names", "[1, 2]", "1 is not a text"),
        ("timeouts", '{"frist_byte": 1}', "unknown key; did you mean first_byte?"),
        ("timeouts", '{"idle": -1}', "idle: -1 is not a number of seconds from 0 to 86400"),
        ("timeouts", "[1]", "a list is not a mapping of time limits"),
        ("status_code_mapping", '{"400": 200}', "400: 200 is not a status from 400 to 599"),
        ("settings", "{no", "This is no JSON: Expecting property name"),
        ("settings", '"x"', "'x' is not a mapping"),
        ("settings", "[" * 100_000, "This is nested too deeply."),
        ("settings", '{"behaviour": 5}', "behaviour: want words joined by -"),
        ("name", "a\x07b", "free of control characters"),
    ],
)
def test_channel_error_stands_at_its_field(
    client: Client, field: str, value: str, error: str
) -> None:
    form = channel_form(**{field: value})
    if "behaviour" in value:
        form["provider"] = "simulated"

    response = client.post("/admin/channels_app/channel/add/", form)

    assert error in " ".join(errors(response)[field])
    assert not Channel.objects.exists()


def test_key_problems_stand_at_the_key_and_never_repeat_it(client: Client) -> None:
    for keys, error in (
        ([{"new_value": "", "status": "disabled"}], "Type the key."),
        ([{"new_value": "sk planted key"}], "printable ASCII"),
        ([{"new_value": KEY}, {"new_value": KEY}], "has this key already"),
    ):
        form = channel_form(*keys)
        response = client.post("/admin/channels_app/channel/add/", form)
        page = response.content.decode()
        assert error in page
        assert KEY not in page
        assert "sk planted key" not in page
    assert not ChannelKey.objects.exists()


def test_key_that_the_channel_has_is_refused(client: Client) -> None:
    row = channel("one")
    key = row.keys.get()
    there = {"id": key.pk, "channel": row.pk, "new_value": ""}
    form = channel_form(there, {"new_value": key.value}, initial=1)

    response = client.post(f"/admin/channels_app/channel/{row.pk}/change/", form)

    assert "has this key already" in response.content.decode()
    assert row.keys.count() == 1


def test_key_is_kept_when_its_field_is_left_empty_and_replaced_otherwise(client: Client) -> None:
    row = channel("one")
    key = row.keys.get()
    there = {"id": key.pk, "channel": row.pk}
    url = f"/admin/channels_app/channel/{row.pk}/change/"

    client.post(url, channel_form({**there, "new_value": "", "status": "disabled"}, initial=1))
    kept = ChannelKey.objects.get()
    client.post(url, channel_form({**there, "new_value": KEY}, initial=1))
    replaced = ChannelKey.objects.get()

    assert (kept.value, kept.status) == (key.value, Status.DISABLED)
    assert (replaced.value, replaced.hint) == (KEY, "sk-p…6789")


def test_form_leaves_the_status_to_the_buttons(client: Client) -> None:
    row = channel("one", keys=0, status=Status.AUTO_DISABLED, status_reason="401")

    client.post(f"/admin/channels_app/channel/{row.pk}/change/", channel_form(weight="5"))

    row.refresh_from_db()
    assert (row.weight, row.status, row.status_reason) == (5, Status.AUTO_DISABLED, "401")


@pytest.mark.django_db(transaction=True)
def test_buttons_enable_and_disable_a_channel_and_tell_the_snapshot(client: Client) -> None:
    row = channel("one")
    url = f"/admin/channels_app/channel/{row.pk}"
    SnapshotChange.objects.all().delete()

    asked = client.get(f"{url}/disable/")
    row.refresh_from_db()
    assert (asked.status_code, row.status) == (200, Status.ENABLED)  # a GET only asks

    answer = client.post(
        f"{url}/disable/",
        {"_form_submitted": "True", "reason": "maintenance"},
        headers={"HX-Request": "true", "HX-Current-URL": f"https://proxy{url}/change/?x=1"},
    )
    row.refresh_from_db()
    assert answer["HX-Redirect"] == f"{url}/change/?x=1"
    assert (row.status, row.status_reason) == (Status.DISABLED, "op: maintenance")
    assert row.status_changed_at is not None
    assert SnapshotChange.objects.get().row_ids == [row.pk]

    client.post(f"{url}/enable/", {"_form_submitted": "True"})
    row.refresh_from_db()
    assert (row.status, row.status_reason) == (Status.ENABLED, "")
    assert (
        client.post("/admin/channels_app/channel/x/enable/", {"_form_submitted": "1"}).status_code
        == 404
    )


def test_list_actions_change_the_ticked_channels(client: Client) -> None:
    rows = [channel(name) for name in ("one", "two", "three")]
    ticked = {"_selected_action": [str(row.pk) for row in rows[:2]]}

    client.post("/admin/channels_app/channel/", {"action": "disable_selected", **ticked})

    assert [c.status for c in Channel.objects.order_by("pk")] == ["disabled", "disabled", "enabled"]
    client.post("/admin/channels_app/channel/", {"action": "enable_selected", **ticked})
    assert {c.status for c in Channel.objects.all()} == {"enabled"}


def test_copy_has_the_same_groups_and_keys_and_is_disabled(client: Client) -> None:
    row = channel("one", group=Group.objects.create(name="vip"), keys=2, weight=9)

    for _ in range(2):
        client.post(f"/admin/channels_app/channel/{row.pk}/copy/", {"_form_submitted": "True"})

    first, second = Channel.objects.exclude(pk=row.pk).order_by("pk")
    assert (first.name, second.name) == ("one (copy)", "one (copy 2)")
    assert (first.weight, first.status) == (9, Status.DISABLED)
    assert [g.name for g in first.groups.all()] == ["vip"]
    assert [k.value for k in first.keys.all()] == [k.value for k in row.keys.all()]
    row.refresh_from_db()
    assert row.status == Status.ENABLED


def test_history_says_who_changed_what(client: Client) -> None:
    row = channel("one", keys=0)
    client.post(f"/admin/channels_app/channel/{row.pk}/change/", channel_form(weight="5"))

    page = client.get(f"/admin/channels_app/channel/{row.pk}/history/").content.decode()
    version = client.get(f"/admin/channels_app/channel/{row.pk}/history/1/")
    posted = client.post(f"/admin/channels_app/channel/{row.pk}/history/1/", {"name": "x"})

    assert "op" in page
    assert "<strong>Weight</strong> 0 → 5" in page
    assert (version.status_code, posted.status_code) == (302, 302)
    row.refresh_from_db()
    assert row.name == "one"


def test_history_holds_no_secret() -> None:
    excluded = {
        Channel: {"settings", "header_override", "proxy"},
        ChannelKey: {"value", "value_hash"},
        Token: {"key_hash"},
        User: {"password"},
    }
    for model, fields in excluded.items():
        kept = {field.name for field in model.history.model._meta.get_fields()}
        assert not kept & fields


def test_group_keeps_its_name(client: Client) -> None:
    group = Group.objects.create(name="vip")

    client.post(f"/admin/channels_app/group/{group.pk}/change/", {"name": "new", "ratio": "2"})

    group.refresh_from_db()
    assert (group.name, group.ratio) == ("vip", 2)


@pytest.mark.skipif(
    "sqlite" not in settings.DATABASES["default"]["ENGINE"], reason="reads the database's file"
)
@pytest.mark.django_db(transaction=True)
def test_planted_keys_are_nowhere_in_the_database_file() -> None:
    client = signed_in(operator())
    user = User.objects.create_user("alice")
    client.post("/admin/channels_app/channel/add/", channel_form({"new_value": KEY}))
    made = client.post("/admin/billing_app/token/add/", token_form(user))
    client.get("/admin/")

    name = Path(str(connection.settings_dict["NAME"]))
    written = b"".join(
        path.read_bytes() for path in name.parent.glob(f"{name.name}*") if path.is_file()
    )
    assert b"sk-p\xe2\x80\xa66789" in written  # the hint, so this is the right file
    assert KEY.encode() not in written
    assert made.context["key"].encode() not in written


def test_a_number_of_thousands_of_digits_is_a_form_error() -> None:
    field = MappingField(check=lambda value, _place: value)

    with pytest.raises(ValidationError, match="too long"):
        field.to_python('{"idle": ' + "9" * 5000 + "}")


def test_what_is_hardly_meant_is_said_after_saving_as_of_a_file(client: Client) -> None:
    alone = client.post("/admin/channels_app/channel/add/", channel_form(), follow=True)
    group = client.post(
        "/admin/channels_app/group/add/",
        {"name": "vip", "ratio": "1", "user_groups": "vpi"},
        follow=True,
    )
    user = User.objects.create_user("alice", group="vip")
    made = client.post("/admin/billing_app/token/add/", token_form(user))

    assert "Channel one is in no group, so no token can use it." in messages(alone)
    assert "Open to: no user is in 'vpi' yet; did you mean vip?" in messages(group)
    assert (
        "Group &#x27;vip&#x27; is not open to users of group &#x27;vip&#x27;: requests with this"
        " token are refused." in made.content.decode()
    )
