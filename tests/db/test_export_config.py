"""`export_config`: what it writes, and that applying it changes nothing."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.db import connection
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing_app.models import Token, User
from billing_app.services import key_hash, wallet_credit
from channels_app.models import Channel, ChannelKey, Group, Option, Status
from channels_app.services import channel_key_add, secret_hash
from relay_app.config_apply import config_apply
from relay_app.config_export import config_export, yaml_text
from relay_app.config_file import load_config
from tests.conftest import empty_tables

pytestmark = pytest.mark.django_db

RICH = """
version: 1
preset: resilient
options:
  BlockedWords: "one\\ntwo: 'three'"
  ModelFallbacks: {gpt-4o: [gpt-4o-mini, "o1"], a: [b]}
  ModelTimeouts: {"o1*": {first_token: 300, idle: 2.5}}
  AllowPrivateUpstreams: "on"
  AutomaticRetryStatusCodes: 429
groups:
  - {name: default}
  - {name: vip, ratio: "0.8", user_groups: [vip, default]}
  - {name: "gruppe für ; #1"}
auto_groups: [vip, default]
channels:
  - name: primary
    type: openai
    base_url: http://host:9001/v1
    keys:
      - sk-one-hidden
      - {key: sk-two-hidden, enabled: false}
      - {key: sk-three-hidden, limits: {rpm: 10}}
    key_mode: polling
    models: [gpt-4o, "gpt-4o-*", "yes", "1e5", "通道"]
    groups: [vip, default]
    priority: -3
    weight: 70
    auto_ban: false
    model_mapping: {gpt-4o: gpt-4o-2024-11-20, b: c}
    param_override: {temperature: 0, stop: ["\\n", null, true, 1.5e+20]}
    header_override: {X-Team: team-hidden, Authorization: "Bearer {api_key}", X-Empty: ""}
    status_code_mapping: {404: 500}
    timeouts: {connect: 5, idle: 2.5, total: 0}
    fault_domain: eu
    proxy: http://user:password-hidden@proxy:3128
    supports_prefill: false
    health_scope: model
    test_model: gpt-4o
    bill_upstream_model: true
    limits: {rpm: 100, tpm: 0, concurrency: 5}
    settings: {region: eu, retries: 3, private_key: "BEGIN\\nkey-hidden", more: {token: x-hidden}}
  - {name: primary!, type: openai, base_url: "http://h/v1", keys: [sk-other-hidden]}
  - {name: 通道, type: simulated, keys: [sk-fourth-hidden], enabled: false}
users:
  - {name: alice, group: vip, balance_usd: "25.000000001"}
  - {name: operator, staff: true, group: auto}
  - {name: bob, enabled: false}
tokens:
  - {name: ci, user: alice, key: sk-relay-hidden, limit_usd: 0, enabled: false}
  - name: all
    user: operator
    key: sk-relay-hidden-too
    group: auto
    models: [gpt-4o, "a-*"]
    expires_at: 2027-01-31T12:00:00.5+01:00
    cross_group_retry: true
    specific_channel: primary
    allow_ips: [203.0.113.7, 10.0.0.0/8, "2001:db8::/32"]
    rpm: 1
    tpm: 2
    concurrency: 3
    limit_usd: "12.5"
    daily_limit_usd: "0.000000001"
    monthly_limit_usd: 30
prices:
  - {model: gpt-4o, input: "2.5", cached_input: "1.25", output: 10, audio_output: "0.000001"}
  - {model: "dall-*", per_image: "0.04"}
  - {model: free, input: 0, output: 0}
  - {model: call, per_call: "0.05"}
"""


def apply(text: str, *, is_prune: bool = False, **environ: str) -> list[str]:
    """Apply a text as a file; return the lines of the diff."""
    return config_apply(load_config(text, environ=environ), is_prune=is_prune).lines


def export(**options: Any) -> tuple[str, list[str]]:
    """Run the command; return what it wrote to standard output and the lines of its errors."""
    out, err = io.StringIO(), io.StringIO()
    call_command("export_config", stdout=out, stderr=err, **options)
    return out.getvalue(), err.getvalue().splitlines()


@pytest.mark.parametrize("with_keys", [True, False])
def test_applying_an_export_changes_nothing(with_keys: bool) -> None:
    apply(RICH)

    text, errors = export(with_keys=with_keys)

    assert errors == []
    assert apply(text) == []
    assert apply(text, is_prune=True) == []


def test_an_empty_database_exports_every_section() -> None:
    text, errors = export()

    assert errors == []
    assert yaml.safe_load(text) == {
        "version": 1,
        "options": {},
        "groups": [],
        "auto_groups": [],
        "channels": [],
        "users": [],
        "tokens": [],
        "prices": [],
    }
    assert apply(text, is_prune=True) == []


def test_another_database_becomes_the_same_with_keys() -> None:
    apply(RICH)
    text, _ = export(with_keys=True)
    empty_tables()

    apply(text)

    assert export(with_keys=True)[0] == text
    key = ChannelKey.objects.get(value_hash=secret_hash("sk-three-hidden"))
    assert (key.value, key.limits) == ("sk-three-hidden", {"rpm": 10})
    assert Channel.objects.get(name="primary").proxy == "http://user:password-hidden@proxy:3128"
    assert Token.objects.get(name="ci").key_hash == key_hash("sk-relay-hidden")


def test_without_keys_nothing_secret_is_in_it() -> None:
    apply(RICH)

    text, _ = export()

    assert "hidden" not in text
    document = yaml.safe_load(text)
    primary, other, last = document["channels"]
    assert [key["env"] for key in primary["keys"]] == [
        f"RELAY_KEY_PRIMARY_{number}" for number in (1, 2, 3)
    ]
    assert primary["keys"][1] == {
        "env": "RELAY_KEY_PRIMARY_2",
        "hash": secret_hash("sk-two-hidden"),
        "enabled": False,
    }
    assert other["keys"][0]["env"] == "RELAY_KEY_PRIMARY_1_2"
    assert last["keys"][0]["env"] == "RELAY_KEY_1"
    assert primary["proxy"] == {"env": "RELAY_PROXY_PRIMARY", "kept": True}
    assert primary["header_override"] == {
        "Authorization": {"env": "RELAY_HEADER_PRIMARY_AUTHORIZATION", "kept": True},
        "X-Empty": "",
        "X-Team": {"env": "RELAY_HEADER_PRIMARY_X_TEAM", "kept": True},
    }
    assert primary["settings"] == {
        "more": {"kept": True},
        "private_key": {"kept": True},
        "region": "eu",
        "retries": 3,
    }
    assert document["tokens"][0]["key_hash"] == key_hash("sk-relay-hidden")


def test_an_export_without_keys_wants_them_elsewhere() -> None:
    apply("version: 1\nchannels: [{name: c, type: simulated, keys: [sk-hidden]}]")
    Channel.objects.update(header_override={"X-A": "hidden"}, settings={"secret": "hidden"})
    channel = Channel.objects.get()
    channel.proxy = "http://hidden@h"
    channel.save()
    text, _ = export()
    empty_tables()

    problems = load_and_refuse(text)

    assert problems == [
        "channels[0].proxy: the channel has nothing here that could be kept;"
        " set the variable RELAY_PROXY_C",
        "channels[0].header_override.X-A: the channel has nothing here that could be kept;"
        " set the variable RELAY_HEADER_C_X_A",
        "channels[0].settings.secret: the channel has nothing here that could be kept;"
        " write it out",
        "channels[0].keys[0]: the channel has no key with this hash;"
        " set the variable RELAY_KEY_C_1",
    ]
    apply(
        text.replace("{kept: true}", "again"),
        RELAY_KEY_C_1="sk-new",
        RELAY_PROXY_C="http://p",
        RELAY_HEADER_C_X_A="a",
    )
    channel = Channel.objects.get()
    assert channel.keys.get().value == "sk-new"
    assert (channel.proxy, channel.header_override) == ("http://p", {"X-A": "a"})


def load_and_refuse(text: str) -> list[str]:
    """Return why a text is refused."""
    with pytest.raises(Exception, match="nothing here") as caught:
        apply(text)
    return str(caught.value).splitlines()


def test_a_key_named_by_hash_stays_and_others_go() -> None:
    apply("version: 1\nchannels: [{name: c, type: simulated, keys: [sk-one, sk-two]}]")

    one = secret_hash("sk-one")
    assert apply(f"version: 1\nchannels: [{{name: c, keys: [{{hash: {one}}}]}}]") == [
        "~ channel c: keys +0 -1"
    ]
    assert ChannelKey.objects.get().value == "sk-one"


def test_what_the_relay_disabled_is_exported_as_enabled() -> None:
    apply(RICH)
    Channel.objects.filter(name="primary").update(status=Status.AUTO_DISABLED)
    ChannelKey.objects.filter(value_hash=secret_hash("sk-one-hidden")).update(
        status=Status.AUTO_DISABLED
    )

    text, _ = export()

    primary = yaml.safe_load(text)["channels"][0]
    assert primary["enabled"] is True
    assert "enabled" not in primary["keys"][0]
    assert apply(text) == []
    assert Channel.objects.get(name="primary").status == Status.AUTO_DISABLED


def test_the_balance_that_a_user_began_with_is_told_and_not_taken_again() -> None:
    apply("version: 1\nusers: [{name: alice, balance_usd: 25.5}]")

    text, errors = export()
    assert errors == []
    wallet_credit(user_id=User.objects.get().pk, amount_nusd=10**9, reason="invoice 7")
    text, errors = export()

    assert errors == [
        "note: balance_usd is what an account began with, not what it has now; another database"
        " would begin with it again. They differ for alice"
    ]
    assert yaml.safe_load(text)["users"][0]["balance_usd"] == "25.5"
    assert apply(text.replace("25.5", "99")) == []


def test_rows_from_before_there_was_a_file_export_too() -> None:
    """Made by hand or by code: a user of a group that nobody made, an address without /v1."""
    User.objects.create_superuser("admin", password="x")
    channel = Channel.objects.create(name="c", provider="openai", base_url="http://h/custom")
    channel_key_add(channel=channel, value="sk-a")
    Group.objects.create(name="auto")
    Option.objects.create(name="RetryTimes", value=0)

    text, errors = export()

    assert errors == []
    assert apply(text, is_prune=True) == []


def test_what_a_file_can_not_say_is_noted() -> None:
    Option.objects.create(name="OfANewerVersion", value=1)
    Option.objects.create(name="RetryTimes", value="many")
    User.objects.create(username="debtor", opening_balance_nusd=-1)
    Channel.objects.create(name="c", provider="simulated", key_mode="nonsense")

    text, errors = export()

    assert errors == [
        "note: option OfANewerVersion left out: this version does not know it",
        "note: option left out, its default counts: RetryTimes: 'many' is not a whole number"
        " from 0 to 20",
        "note: user debtor: balance -0.000000001 left out",
        "note: apply_config would not take it as it is: channels[0].key_mode: 'nonsense' is not"
        " random or polling",
    ]
    assert "balance_usd" not in text


def test_a_key_that_nothing_opens_is_one_line(settings: Any) -> None:
    apply("version: 1\nchannels: [{name: c, type: simulated, keys: [sk-a], proxy: 'http://p'}]")
    settings.RELAY_ENCRYPTION_KEYS = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]

    with pytest.raises(CommandError, match=r"^Channel.*\.\w+ can't be decrypted: RELAY_ENC"):
        export(with_keys=True)


def test_a_database_that_was_never_migrated_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_app_token RENAME TO elsewhere")

    with pytest.raises(CommandError, match=r"the database says: .*migrate` first"):
        export()


def test_the_command_writes_a_file_that_apply_config_takes(tmp_path: Path) -> None:
    apply(RICH)
    file = tmp_path / "relay.yaml"
    file.write_text(export()[0])
    out = io.StringIO()

    call_command("apply_config", str(file), "--prune", stdout=out, stderr=io.StringIO())

    assert out.getvalue() == "no changes\n"


def test_large_configurations_show_progress() -> None:
    Channel.objects.bulk_create(
        Channel(name=f"c{number}", provider="simulated") for number in range(500)
    )

    assert export()[1] == ["500 channels"]


# -- any configuration -------------------------------------------------------------------

words = st.text(
    st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12
).map(lambda text: text.strip() or "x")  # fmt: skip
models = words.map(lambda text: text.replace("*", "") or "m")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.text(max_size=8).filter(lambda text: text.isprintable()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
limits = st.dictionaries(st.sampled_from(["rpm", "tpm", "concurrency"]), st.integers(0, 99))
key_rows = st.lists(
    st.fixed_dictionaries({"key": keys}, optional={"enabled": st.booleans(), "limits": limits}),
    max_size=3,
    unique_by=lambda row: row["key"],
)
channels = st.lists(
    st.fixed_dictionaries(
        {"name": words, "type": st.just("simulated")},
        optional={
            "keys": key_rows,
            "models": st.lists(models, max_size=3),
            "groups": st.lists(st.sampled_from(["default", "vip"]), max_size=2),
            "priority": st.integers(-9, 9),
            "weight": st.integers(0, 9),
            "enabled": st.booleans(),
            "param_override": st.dictionaries(words, json_values, max_size=2).filter(
                lambda value: value.keys().isdisjoint({"stream", "operations"})
            ),
            "header_override": st.dictionaries(
                st.sampled_from(["X-A", "X-B"]), st.sampled_from(["", "a", "{api_key}", "é"])
            ),
            "settings": st.dictionaries(words, json_values, max_size=3),
            "timeouts": st.dictionaries(
                st.sampled_from(["idle", "total"]), st.floats(0, 99) | st.integers(0, 99)
            ),
            "proxy": st.sampled_from(["", "http://u:p@h:1", "socks5://h"]),
            "supports_prefill": st.none() | st.booleans(),
            "limits": limits,
        },
    ),
    max_size=4,
    unique_by=lambda row: row["name"],
)
tokens = st.lists(
    st.fixed_dictionaries(
        {"name": words, "user": st.sampled_from(["alice", "bob"]), "key": keys},
        optional={
            "group": st.sampled_from(["", "auto", "vip"]),
            "models": st.lists(models, max_size=3),
            "enabled": st.booleans(),
            "expires_at": st.none()
            | st.datetimes(
                min_value=datetime(2000, 1, 1),  # noqa: DTZ001 - zones are added
                max_value=datetime(2100, 1, 1),  # noqa: DTZ001
                timezones=st.just(UTC),
            ),
            "allow_ips": st.lists(st.ip_addresses().map(str), max_size=2),
            "rpm": st.integers(0, 99),
        },
    ),
    max_size=4,
    unique_by=(lambda row: (row["name"], row["user"]), lambda row: row["key"]),
)
documents = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "groups": st.decimals(0, 99, places=6).map(
            lambda ratio: [{"name": "default"}, {"name": "vip", "ratio": str(ratio)}]
        ),
        "channels": channels,
        "users": st.decimals(0, 99, places=9).map(
            lambda balance: [{"name": "alice"}, {"name": "bob", "balance_usd": str(balance)}]
        ),
        "tokens": tokens,
    }
)


@hypothesis_settings(max_examples=60)
@given(document=documents)
def test_any_configuration_comes_back(document: dict[str, Any]) -> None:
    empty_tables()
    apply(yaml_text(document))

    assert apply(yaml_text(config_export().document), is_prune=True) == []
    text = yaml_text(config_export(with_keys=True).document)
    assert apply(text, is_prune=True) == []
    empty_tables()
    apply(text)
    assert yaml_text(config_export(with_keys=True).document) == text


def test_money_and_ratios_are_written_without_noise() -> None:
    Group.objects.create(name="g", ratio=Decimal("0.800000"))
    User.objects.create(username="u", group="g", opening_balance_nusd=10 * 10**9)

    document = yaml.safe_load(export()[0])

    assert document["groups"][0]["ratio"] == "0.8"
    assert document["users"][0]["balance_usd"] == "10"


# -- what is named and not there ---------------------------------------------------------


def test_an_export_that_names_what_is_gone_applies_to_an_empty_database() -> None:
    apply(RICH)
    Group.objects.filter(name="vip").delete()
    Channel.objects.filter(name="primary").delete()

    text, errors = export(with_keys=True)
    empty_tables()
    apply(text)

    assert errors == [
        "note: group vip does not exist but is named by user alice, option AutoGroups: it is"
        " written as a group without channels",
        "note: token operator/all is written as disabled, without its channel primary: there is"
        " no such channel",
        "note: applying it here would change something: + group vip",
        "note: applying it here would change something: ~ token operator/all: enabled true ->"
        " false, specific_channel primary -> ''",
    ]
    token = Token.objects.get(name="all")
    assert (token.is_enabled, token.specific_channel) == (False, "")
    assert User.objects.get(username="alice").group == "vip"
    assert export(with_keys=True) == (text, [])


def test_a_channel_of_its_own_for_one_who_is_no_longer_staff_is_not_widened() -> None:
    apply(RICH)
    User.objects.update(is_staff=False)

    text, errors = export(with_keys=True)
    empty_tables()
    apply(text)

    assert "without its channel primary: user operator is not staff" in errors[0]
    assert not Token.objects.get(name="all").is_enabled


@hypothesis_settings(max_examples=15)
@given(
    document=documents,
    gone=st.sets(st.sampled_from(["default", "vip"])),
    user_group=st.sampled_from(["default", "vip", "auto", "gone"]),
    auto_groups=st.lists(st.sampled_from(["default", "vip"]), unique=True),
)
def test_any_export_applies_to_an_empty_database(
    document: dict[str, Any], gone: set[str], user_group: str, auto_groups: list[str]
) -> None:
    empty_tables()
    apply(yaml_text(document | {"auto_groups": auto_groups}))
    User.objects.filter(username="alice").update(group=user_group)
    Group.objects.filter(name__in=gone).delete()

    text = yaml_text(config_export(with_keys=True).document)
    empty_tables()
    apply(text)

    assert yaml_text(config_export(with_keys=True).document) == text
