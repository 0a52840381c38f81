"""`create_token`: the key on standard output, and one clear line for each refusal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from billing_app.models import Token, User
from billing_app.services import key_hash
from channels_app.models import Channel, Group

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _rows() -> None:
    User.objects.create(username="alice")
    Group.objects.create(name="vip")
    Channel.objects.create(name="c", provider="simulated", model_names=["gpt-4o", "claude-*"])


def create(**options: Any) -> tuple[str, str]:
    """Run the command; return what it wrote to standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command(
        "create_token", **{"user": "alice", "name": "ci", **options}, stdout=out, stderr=err
    )
    return out.getvalue(), err.getvalue()


def test_only_the_key_goes_to_standard_output() -> None:
    out, err = create(group="vip", models="gpt-4o, claude-*", expires="2030-01-31T12:00:00+01:00")

    token = Token.objects.get(user__username="alice", name="ci")
    assert out.count("\n") == 1
    assert token.key_hash == key_hash(out.strip())
    assert (token.group, token.model_names) == ("vip", ["gpt-4o", "claude-*"])
    assert token.expires_at is not None
    assert token.expires_at.isoformat() == "2030-01-31T11:00:00+00:00"
    assert err == "This key is shown only now:\n"


def test_defaults_are_the_group_of_the_user_all_models_and_no_end() -> None:
    create()

    token = Token.objects.get()
    assert (token.group, token.model_names, token.expires_at) == ("", [], None)


def test_limits_and_a_channel_of_its_own() -> None:
    User.objects.filter(username="alice").update(is_staff=True)

    create(
        group="auto",
        cross_group=True,
        channel="c",
        allow_ips="203.0.113.7, 10.1.2.3/8",
        rpm=60,
        tpm=100_000,
        concurrency=4,
    )

    token = Token.objects.get()
    assert (token.group, token.cross_group_retry, token.specific_channel) == ("auto", True, "c")
    assert token.allow_ips == ["203.0.113.7", "10.0.0.0/8"]
    assert (token.rpm, token.tpm, token.concurrency) == (60, 100_000, 4)


def test_limits_of_what_it_may_spend() -> None:
    create(limit="12.50", daily_limit="0.5", monthly_limit="10")

    token = Token.objects.get()
    assert (token.is_unlimited, token.limit_nusd) == (False, 12_500_000_000)
    assert (token.daily_limit_nusd, token.monthly_limit_nusd) == (500_000_000, 10_000_000_000)


@pytest.mark.parametrize("name", ["limit", "daily_limit", "monthly_limit"])
@pytest.mark.parametrize("value", ["-1", "x", "nan", "inf", "0.0000000001", "1e99"])
def test_an_odd_limit_is_refused(name: str, value: str) -> None:
    with pytest.raises(CommandError, match=f"--{name.replace('_', '-')}: "):
        create(**{name: value})

    assert not Token.objects.exists()


def test_without_limits_there_are_none() -> None:
    create()

    token = Token.objects.get()
    assert (token.cross_group_retry, token.specific_channel, token.allow_ips) == (False, "", [])
    assert (token.rpm, token.tpm, token.concurrency) == (0, 0, 0)


def test_an_end_in_the_past_is_pointed_out() -> None:
    _, err = create(expires="2020-01-01")

    assert "note: --expires 2020-01-01T00:00:00+00:00 has passed already" in err


def test_models_that_nobody_serves_are_pointed_out() -> None:
    out, err = create(models="gpt-4p, gpt-*, claude-3, cl*, gpt-4o, mistral*")

    assert err.splitlines() == [
        "note: --models: no channel serves 'gpt-4p' yet; did you mean gpt-4o?",
        "note: --models: no channel serves 'mistral*' yet",
        "This key is shown only now:",
    ]
    assert Token.objects.get().key_hash == key_hash(out.strip())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"user": "alcie"}, "no user 'alcie'; did you mean alice?"),
        ({"user": ""}, "no user ''"),
        ({"group": "vpi"}, "no group 'vpi'; did you mean vip?"),
        ({"name": " "}, "--name: ' ' is not a text that is not empty"),
        ({"name": "x" * 101}, f"--name: '{'x' * 60}…' is longer than 100 characters"),
        ({"models": "a*b"}, "--models[0]: 'a*b' has a * that is not at its end"),
        ({"channel": "c"}, "--channel is for staff; user 'alice' is not"),
        (
            {"allow_ips": "10.0.0.1,x"},
            "--allow-ips[1]: 'x' is not an IP address or a network like 10.0.0.0/8",
        ),
        ({"rpm": -1}, "--rpm: -1 is not a whole number from 0 to 2147483647"),
        ({"tpm": 2**31}, "--tpm: 2147483648 is not a whole number from 0 to 2147483647"),
        ({"concurrency": -1}, "--concurrency: -1 is not a whole number from 0 to 2147483647"),
        ({"expires": "soon"}, "--expires: 'soon' is not a date-time like 2027-01-31T12:00:00Z"),
    ],
)
def test_refusals_are_one_line(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(CommandError) as caught:
        create(**options)

    assert str(caught.value) == reason
    assert not Token.objects.exists()


def test_a_channel_that_is_not_there_is_refused() -> None:
    User.objects.filter(username="alice").update(is_staff=True)
    Channel.objects.create(name="primary", provider="simulated")

    with pytest.raises(CommandError, match="no channel 'primry'; did you mean primary"):
        create(channel="primry")


def test_a_name_is_used_once_per_user() -> None:
    create()

    with pytest.raises(CommandError, match="alice has a token 'ci' already"):
        create()


def test_a_group_that_is_closed_to_the_user_is_noted() -> None:
    Group.objects.update(user_groups=["vip"])

    _, err = create(group="vip")

    assert err.startswith(
        "note: group 'vip' is not open to users of group 'default': requests with this token"
        " are refused\n"
    )
