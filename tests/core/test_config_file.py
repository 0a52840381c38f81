"""Reading a configuration file: what passes, and which line names what doesn't."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, json

from channels_app.options import OPTIONS
from channels_app.services import secret_hash
from relay_app import config_fields
from relay_app.config_channel_fields import Kept
from relay_app.config_channels import with_suffix
from relay_app.config_fields import Place, json_fault
from relay_app.config_file import LATER_OPTIONS, SECTIONS, Config, load_config
from relay_app.config_rows import (
    ChannelRow,
    GroupRow,
    KeyRow,
    TokenRow,
    UserRow,
    file_fields,
)
from relay_app.config_text import ConfigError
from relay_app.core.types import Endpoint
from relay_app.urls import ENDPOINTS


def load(text: str, **environ: str) -> Config:
    """Return `text` as a configuration of version 1."""
    return load_config(f"version: 1\n{text}", environ=environ)


def problems(text: str, **environ: str) -> list[str]:
    """Return what is wrong with `text`."""
    return load(text, **environ).problems


def channel(**fields: Any) -> str:
    """Return a file with one channel `c` that has these fields."""
    return yaml.safe_dump({"channels": [{"name": "c", **fields}]})


BASES = st.sampled_from(
    ["https://host", "http://h:8080/v1", "https://h/api/v1beta", "https://h/openai/deployments/m"]
)


def filled(path: str) -> str:
    return path.format(model="models/gemini-pro", method="generateContent", response_id="x")


@pytest.mark.parametrize("endpoint", [e for e in ENDPOINTS if e.method == "POST"])
@given(base=BASES, ending=st.sampled_from(["", "/", "?alt=sse"]))
def test_an_address_with_an_endpoint_is_refused_and_its_base_named(
    endpoint: Endpoint, base: str, ending: str
) -> None:
    path = filled(endpoint.upstream_path)

    (problem,) = problems(channel(base_url=base + path + ending))

    assert problem == (
        f"channels[0].base_url: {path} is an endpoint, which the relay adds; want {base}"
    )


@pytest.mark.parametrize(
    "url",
    ["http://messages", "http://h/responses/v1", "http://h/models", "http://h/models/gpt-4o"],
)
def test_an_address_that_only_sounds_like_an_endpoint_passes(url: str) -> None:
    assert problems(channel(base_url=url)) == []


def test_the_spec_example_is_read() -> None:
    config = load(
        """
options: {RetryTimes: 3, AutomaticRetryStatusCodes: "429,500-503"}
groups:
  - {name: default, ratio: "1"}
  - {name: vip, ratio: 0.8}
channels:
  - name: primary
    type: openai
    base_url: http://127.0.0.1:9001/v1/
    keys: [sk-one, {env: TWO}, {key: sk-three, enabled: false}, {env: FOUR, enabled: true}]
    key_mode: polling
    models: [gpt-4o, "gpt-4o-*"]
    groups: [default]
    priority: -100
    weight: 70
    enabled: true
    auto_ban: true
    status_code_mapping: {"404": 500, 400: "503"}
    timeouts: {connect: 5, first_byte: 30, first_token: 120, idle: 2.5, response: 300, total: 0}
    test_model: gpt-4o-mini
    settings: {region: eu, nested: {list: [1, null]}}
users:
  - {name: alice, group: default, balance_usd: "25.000000001", staff: true}
tokens:
  - {name: ci, user: alice, key: sk-relay-ci, unlimited: true, expires_at: 2027-01-31 12:00:00}
""",
        TWO=" sk-two\n",
        FOUR="sk-four",
    )

    assert config.problems == []
    assert config.options == {"RetryTimes": 3, "AutomaticRetryStatusCodes": "429,500-503"}
    assert [group.ratio for group in config.groups] == [Decimal(1), Decimal("0.8")]
    row = config.channels[0]
    assert row.base_url == "http://127.0.0.1:9001/v1"
    assert isinstance(row.keys, list)
    assert [(key.key, key.enabled) for key in row.keys] == [
        ("sk-one", UNSET),
        ("sk-two", UNSET),
        ("sk-three", False),
        ("sk-four", True),
    ]
    assert row.priority == -100
    assert row.status_code_mapping == {"404": 500, "400": 503}
    assert config.users[0].balance_usd == Decimal("25.000000001")
    assert config.tokens[0].expires_at == datetime(2027, 1, 31, 12, tzinfo=UTC)
    assert config.tokens[0].models is UNSET


def test_merged_and_shared_parts_of_yaml_work() -> None:
    config = load(
        """
channels:
  - &base {name: a, type: simulated, models: &models [m], weight: 1}
  - {<<: *base, name: b, weight: 2}
  - {name: c, models: *models}
"""
    )

    assert config.problems == []
    assert [row.weight for row in config.channels] == [1, 2, UNSET]
    assert config.channels[2].models == ["m"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("channls: []", "channls: unknown key; did you mean channels?"),
        ("zzz: 1", f"zzz: unknown key; known: {', '.join(SECTIONS)}"),
        ("affinity_rules: []", "affinity_rules: not supported by this version yet"),
        ("preset: resiliant", "preset: 'resiliant' is not a preset; did you mean resilient?"),
        ("preset: zzz", "preset: 'zzz' is not a preset; known: newapi, resilient"),
        ("preset: [newapi]", "preset: a list is not a preset; known: newapi, resilient"),
        ("auto_groups: default", "auto_groups: 'default' is not a list; want one, such as auto_gr"),
        ("auto_groups: ['']", "auto_groups[0]: '' is not a text that is not empty"),
        (
            "auto_groups: []\noptions: {AutoGroups: []}",
            "auto_groups: is the same as options.Auto",
        ),
        ("1: 2", f"1: unknown key; known: {', '.join(SECTIONS)}"),
        (
            "channels: 3",
            "channels: 3 is not a list of rows;"
            " want one, such as channels: [{name: primary, type: openai}]",
        ),
        (
            "users: {a: 1}",
            "users: a mapping is not a list of rows; want one, such as users: [{name",
        ),
        ("channels: [x]", "channels[0]: 'x' is not a mapping; want one, such as {name: primary,"),
        ("channels: [{type: openai}]", "channels[0].name: is missing"),
        ("groups: [{name: a}, {name: a}]", "groups[1]: the same name as groups[0]"),
        ("groups: [{name: 5}]", "groups[0].name: 5 is not a text that is not empty"),
        ("groups: [{name: a, user_groups: vip}]", "groups[0].user_groups: 'vip' is not a list; wa"),
        ("groups: [{name: a, user_groups: [1]}]", "groups[0].user_groups[0]: 1 is not a text"),
        ("groups: [{name: a, ratio: -1}]", "groups[0].ratio: -1 is not a number from 0 to"),
        ("groups: [{name: a, ratio: 0.1234567}]", "groups[0].ratio: 0.1234567 is not a number"),
        ("groups: [{name: a, ratio: .nan}]", "groups[0].ratio: nan is not a number"),
        ("groups: [{name: a, ratio: yes}]", "groups[0].ratio: true is not a number"),
        ("options: [1]", "options: a list is not a mapping of options; want one, such as"),
        ("options: {RetryTimez: 1}", "options.RetryTimez: unknown option 'RetryTimez'; did you"),
        ("options: {RetryTimes: 99}", "options.RetryTimes: 99 is not a whole number from 0 to 20"),
        ("options: {RetryTimes: [1]}", "options.RetryTimes: "),
        ("users: [{name: a, balance_usd: '1.0000000001'}]", "users[0].balance_usd: '1.0000000001'"),
        ("users: [{name: a, balance_usd: 1e99}]", "users[0].balance_usd: '1e99' is not a number"),
        ("users: [{name: a, staff: 1}]", "users[0].staff: 1 is not true or false"),
        ("tokens: [{name: a}]", "tokens[0].user: is missing"),
        ("tokens: [{name: a, user: b, key: x, key_hash: y}]", "tokens[0].key_hash: what stands"),
        ("tokens: [{name: a, user: b, limit_usd: -1}]", "tokens[0].limit_usd: -1"),
        ("tokens: [{name: a, user: b, daily_limit_usd: x}]", "tokens[0].daily_limit_usd: 'x'"),
        ("prices: [{input: 1}]", "prices[0].model: is missing"),
        ('prices: [{model: "a*b"}]', "prices[0].model: "),
        ("prices: [{model: a, input: 0.0000001}]", "prices[0].input: "),
        ("prices: [{model: a, output: -1}]", "prices[0].output: -1"),
        ("tokens: [{name: a, user: b, rpm: -1}]", "tokens[0].rpm: -1 is not a whole number from 0"),
        ("tokens: [{name: a, user: b, tpm: null}]", "tokens[0].tpm: null is not a whole number"),
        ("tokens: [{name: a, user: b, concurrency: 1.5}]", "tokens[0].concurrency: 1.5 is not a w"),
        ("tokens: [{name: a, user: b, cross_group_retry: 1}]", "tokens[0].cross_group_retry: 1 is"),
        (
            "tokens: [{name: a, user: b, specific_channel: 1}]",
            "tokens[0].specific_channel: 1 is",
        ),
        ("tokens: [{name: a, user: b, allow_ips: 10.0.0.1}]", "tokens[0].allow_ips: '10.0.0.1' is"),
        (
            "tokens: [{name: a, user: b, allow_ips: [10.0.0.256]}]",
            "tokens[0].allow_ips[0]: '10.0.0.256' is not an IP address or a network like 10",
        ),
        ("tokens: [{name: a, user: b, allow_ips: [a.example]}]", "tokens[0].allow_ips[0]: 'a.exam"),
        ("tokens: [{name: a, user: b, allow_ips: [10.0.0.0/33]}]", "tokens[0].allow_ips[0]: '10.0"),
        ("users: [{name: a, enabled: 1}]", "users[0].enabled: 1 is not true or false"),
        ("options: {FailoverEnabled: true}", "options.FailoverEnabled: not supported by this ver"),
        ("options: {MidStreamRecovery: continue}", "options.MidStreamRecovery: not supported by"),
        ("options: {RetryStrategy: best}", "options.RetryStrategy: 'best' is not tier_per_attempt"),
        ("options: {BlockedWords: [a]}", "options.BlockedWords: wanted a text of at most"),
        ("options: {ModelFallbacks: {a: [a]}}", "options.ModelFallbacks: a: it names itself"),
        ("options: {ModelTimeouts: {a: {idel: 1}}}", "options.ModelTimeouts: a: unknown limit 'id"),
        ("options: {AutoGroups: {}}", "options.AutoGroups: wanted a list of names, such as [defa"),
        ("tokens: [{name: a, user: b, expires_at: soon}]", "tokens[0].expires_at: 'soon' is not"),
        (
            "tokens: [{name: a, user: b, expires_at: '0001-01-01T00:00:00+12:00'}]",
            "tokens[0].expires_at: '0001-01-01T00:00:00+12:00' is not a date-time",
        ),
        ("tokens: [{name: a, user: b}, {name: a, user: b}]", "tokens[1]: the same name and user"),
    ],
)
def test_problems_name_their_path(text: str, problem: str) -> None:
    (found,) = problems(text)

    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"prioritty": 1}, "prioritty: unknown key; did you mean priority?"),
        ({"model_mapping": []}, "model_mapping: a list is not a mapping of models; want one, such"),
        ({"model_mapping": {"a": 1}}, "model_mapping.a: 1 is not a text that is not empty"),
        ({"model_mapping": {"a": ""}}, "model_mapping.a: '' is not a text that is not empty"),
        ({"model_mapping": {"a": "b", "b": "a"}}, "model_mapping: model_mapping goes in a circle"),
        ({"param_override": 1}, "param_override: 1 is not a mapping of parameters; want one, such"),
        ({"param_override": {"a": float("nan")}}, "param_override: has a number that is not fini"),
        ({"param_override": {"stream": True}}, "param_override: stream can't be set"),
        ({"param_override": {"operations": 1}}, "param_override: "),
        ({"param_override": {"operations": [{"mode": "?"}]}}, "param_override: "),
        ({"fault_domain": 1}, "fault_domain: 1 is not a text (put it in quotes)"),
        ({"supports_prefill": "yes"}, "supports_prefill: 'yes' is not true, false or null"),
        ({"health_scope": "key"}, "health_scope: 'key' is not channel or model"),
        ({"bill_upstream_model": 0}, "bill_upstream_model: 0 is not true or false"),
        ({"limits": 5}, "limits: 5 is not a mapping of limits; want one, such as limits: {rpm:"),
        ({"limits": {"rpn": 5}}, "limits.rpn: unknown key; did you mean rpm?"),
        ({"limits": {"zzz": 5}}, "limits.zzz: unknown key; known: rpm, tpm, concurrency"),
        ({"limits": {"rpm": -1}}, "limits.rpm: -1 is not a whole number from 0 to"),
        ({"limits": {"tpm": 1.5}}, "limits.tpm: 1.5 is not a whole number from 0 to"),
        ({"limits": {"concurrency": True}}, "limits.concurrency: true is not a whole number"),
        ({"type": "opnai"}, "type: unknown type 'opnai'; did you mean openai?"),
        ({"priority": "high"}, "priority: 'high' is not a whole number from"),
        ({"priority": True}, "priority: true is not a whole number from"),
        ({"priority": 10**400}, "priority: a very large number is not a whole number from"),
        ({"weight": -1}, "weight: -1 is not a whole number from 0 to"),
        ({"weight": 1.5}, "weight: 1.5 is not a whole number"),
        ({"enabled": "yes"}, "enabled: 'yes' is not true or false"),
        ({"key_mode": "best"}, "key_mode: 'best' is not random or polling"),
        ({"base_url": "ftp://host/v1"}, "base_url: 'ftp://host/v1' is not an address like"),
        ({"base_url": "http:///v1"}, "base_url: 'http:///v1' is not an address"),
        ({"base_url": "http://h:99999"}, "base_url: 'http://h:99999' is not an address"),
        ({"base_url": "http://h/v1?a=b"}, "base_url: an address with a query"),
        ({"base_url": "http://u:pw@h/v1"}, "base_url: a user or password in the address is never"),
        ({"base_url": "ftp://u:pw@h"}, "base_url: 'ftp://…@h' is not an address"),
        (
            {"models": "gpt-4o"},
            "models: 'gpt-4o' is not a list; want one, such as models: [gpt-4o, \"gpt-4o-*\"]",
        ),
        ({"groups": "a"}, "groups: 'a' is not a list; want one, such as groups: [default]"),
        (
            {"timeouts": 5},
            "timeouts: 5 is not a mapping of time limits; want one, such as timeouts:",
        ),
        ({"status_code_mapping": 5}, "status_code_mapping: 5 is not a mapping of statuses; want"),
        ({"models": ["a*b"]}, "models[0]: 'a*b' has a * that is not at its end"),
        ({"models": ["ok", ""]}, "models[1]: '' is not a text that is not empty"),
        ({"models": [4]}, "models[0]: 4 is not a text that is not empty (put it in quotes)"),
        ({"groups": ["a\x07"]}, "groups[0]: 'a\\x07' is not free of control characters"),
        ({"test_model": "x" * 201}, "test_model: 'xxx"),
        ({"status_code_mapping": {"4xx": 500}}, "status_code_mapping.4xx: '4xx' is not a status"),
        ({"status_code_mapping": {404: 200}}, "status_code_mapping.404: 200 is not a status from"),
        ({"status_code_mapping": {404: 500, "404": 501}}, "status_code_mapping.404: is there twic"),
        ({"timeouts": {"conect": 1}}, "timeouts.conect: unknown key; did you mean connect?"),
        ({"timeouts": {"idle": -1}}, "timeouts.idle: -1 is not a number of seconds"),
        ({"timeouts": {"idle": None}}, "timeouts.idle: null is not a number of seconds"),
        ({"settings": []}, "settings: a list is not a mapping"),
        ({"settings": {"a": {1: 2}}}, "settings: has a key that is not a text"),
        ({"settings": {"a": float("inf")}}, "settings: has a number that is not finite"),
        (
            {"settings": {"a": datetime(2027, 1, 1, tzinfo=UTC)}},
            "settings: has a datetime, which JSON",
        ),
        (
            {"keys": "sk-secret"},
            "keys: what stands here is not a list of keys; want a list, such as keys: [sk-...]",
        ),
        ({"keys": [{"env": "NONE"}]}, "keys[0].env: the environment variable NONE is not set"),
        ({"keys": [{}]}, "keys[0]: one of key and env is wanted"),
        ({"keys": [{"key": "a", "env": "B"}]}, "keys[0]: one of key and env is wanted"),
        ({"keys": [{"key": "a", "limits": {"rpm": -1}}]}, "keys[0].limits.rpm: -1 is not a whol"),
        ({"keys": [{"hash": "ab"}]}, "keys[0].hash: what stands here is not a SHA-256 of 64 hex"),
        ({"keys": [{"key": "a", "hash": "0" * 64}]}, "keys[0]: one of key and env is wanted, or"),
        (
            {"keys": ["sk-a", {"hash": secret_hash("sk-a")}]},
            "keys[1]: the same key as channels[0].keys[0]",
        ),
        ({"keys": ["sk-a", {"key": "sk-a"}]}, "keys[1]: the same key as channels[0].keys[0]"),
    ],
)
def test_problems_of_a_channel(fields: dict[str, Any], problem: str) -> None:
    (found,) = problems(channel(**fields))

    assert found.startswith(f"channels[0].{problem}")


@pytest.mark.parametrize(
    "name",
    [
        "X Team",
        "",
        "X-T\u00e9am",
        "Host",
        "content-length",
        "Transfer-Encoding",
        "Connection",
        "Keep-Alive",
        "TE",
        "Trailer",
        "Upgrade",
        "Proxy-Authorization",
        "Proxy-Connection",
    ],
)
def test_headers_that_can_not_be_set_are_refused(name: str) -> None:
    (found,) = problems(channel(header_override={name: "hidden"}))

    assert found.startswith("channels[0].header_override: ")
    assert "hidden" not in found


@pytest.mark.parametrize(
    "value",
    ["hidden\r\nX-Other: a", "hidden\x00", "hidden\u4e2d", 5, None, ["hidden"], {"hidden": "a"}],
)
def test_values_of_headers_are_one_line_and_never_shown(value: Any) -> None:
    (found,) = problems(channel(header_override={"X-Team": value}))

    assert found.startswith("channels[0].header_override")
    assert "X-Team" in found
    assert "hidden" not in found


@pytest.mark.parametrize(
    "proxy",
    [
        "user:hidden@host:3128",
        "ftp://user:hidden@host:3128",
        "http://user:hidden@",
        "http://user:hidden@host:99999",
        "http://user:hidden@host:0",
        "http://user:hidden@host/path",
        "http://user:hidden@host?a=b",
        "http://user:hidden@ho st",
        "http://user:hidden\n@host",
        "http://user:hidden@[::1",
        ["http://user:hidden@host"],
        5,
        {"hidden": True},
        {"env": "HIDDEN_BAD"},
    ],
)
def test_a_refused_proxy_is_not_shown(proxy: Any) -> None:
    (found,) = problems(channel(proxy=proxy), HIDDEN_BAD="ftp://user:hidden@host")

    assert found.startswith("channels[0].proxy")
    assert "hidden" not in found


@pytest.mark.parametrize(
    ("proxy", "tidy"),
    [
        ("", ""),
        ("http://host", "http://host"),
        (" http://user:p%40ss@host:3128/ ", "http://user:p%40ss@host:3128"),
        ("https://10.0.0.1:8443", "https://10.0.0.1:8443"),
        ("socks5://user:pw@[::1]:1080", "socks5://user:pw@[::1]:1080"),
    ],
)
def test_proxies_are_http_https_or_socks5(proxy: str, tidy: str) -> None:
    config = load(channel(proxy=proxy))

    assert config.problems == []
    assert config.channels[0].proxy == tidy


def test_proxies_and_headers_may_come_from_the_environment_or_be_kept() -> None:
    fields = {
        "proxy": {"env": "PROXY"},
        "header_override": {
            "X-A": {"env": "SECRET"},
            "X-B": {"env": "UNSET", "kept": True},
            "X-C": {"kept": True},
            "X-D": "{api_key}",
        },
        "settings": {"private_key": {"kept": True}, "other": {"kept": True, "a": 1}},
    }
    config = load(channel(**fields), PROXY="http://u:p@h", SECRET="s")

    assert config.problems == []
    row = config.channels[0]
    assert row.proxy == "http://u:p@h"
    assert row.header_override == {
        "X-A": "s",
        "X-B": Kept("UNSET"),
        "X-C": Kept(),
        "X-D": "{api_key}",
    }
    assert row.settings == {"private_key": Kept(), "other": {"kept": True, "a": 1}}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"env": "NONE"}, ".env: the environment variable NONE is not set"),
        ({"env": 5}, ".env: what stands here is not the name of an environment variable"),
        ({"env": "a:b@c"}, ".env: what stands here is not the name of an environment variable"),
        ({}, ": want a text, {env: NAME} or {kept: true}"),
        ({"kept": False}, ": want a text, {env: NAME} or {kept: true}"),
        ({"kept": True, "secret": "hidden"}, ": want a text, {env: NAME} or {kept: true}"),
    ],
)
def test_wrong_stand_ins_are_refused(value: Any, problem: str) -> None:
    assert problems(channel(proxy=value)) == [f"channels[0].proxy{problem}"]


def test_a_key_may_be_named_by_its_hash() -> None:
    one, two = secret_hash("sk-one"), secret_hash("sk-two")
    keys = [{"hash": one.upper()}, {"env": "TWO", "hash": "0" * 64}, {"env": "NONE", "hash": two}]
    (row,) = load(channel(keys=keys), TWO="sk-2").channels

    assert isinstance(row.keys, list)
    assert [(key.key, key.value_hash) for key in row.keys] == [
        (UNSET, one),
        ("sk-2", secret_hash("sk-2")),
        (UNSET, two),
    ]


def test_limits_of_nothing_are_left_out() -> None:
    limits = {"rpm": 0, "tpm": None, "concurrency": 3}
    config = load(channel(limits=limits, keys=[{"key": "a", "limits": limits}]))

    assert config.problems == []
    assert config.channels[0].limits == {"concurrency": 3}
    assert isinstance(config.channels[0].keys, list)
    assert config.channels[0].keys[0].limits == {"concurrency": 3}


def test_addresses_are_kept_in_one_form() -> None:
    config = load(
        "tokens: [{name: a, user: b, allow_ips: [10.1.2.3/8, 10.0.0.0/8, 203.0.113.7/32,"
        " '2001:DB8::1', '2001:db8::/32']}]"
    )

    assert config.problems == []
    assert config.tokens[0].allow_ips == [
        "10.0.0.0/8",
        "203.0.113.7",
        "2001:db8::1",
        "2001:db8::/32",
    ]


def test_options_of_the_file_outrank_those_of_its_preset() -> None:
    config = load("options: {RetryTimes: 5}\npreset: resilient\nauto_groups: [a, b, a]")

    assert config.problems == []
    assert config.options == {
        "RetryTimes": 5,
        "RetryStrategy": "untried_first",
        "SameChannelRetries": 1,
        "AutoGroups": ["a", "b"],
    }
    assert config.sections == {"version", "preset", "options", "auto_groups"}


def test_a_section_without_a_value_is_not_named() -> None:
    assert load("channels:\ngroups: []").sections == {"version", "groups"}


def test_options_of_later_versions_are_none_of_this_one() -> None:
    assert LATER_OPTIONS.isdisjoint(OPTIONS)


def test_all_problems_are_found_at_once() -> None:
    assert len(problems("groups: [{name: a, ratio: x, rat: 1}]\nusers: 1\nnope: 2")) == 4


@pytest.mark.parametrize(
    "keys",
    [
        ["sk-secret value"],
        ["sk-secret\u00e9"],
        [{"sk-secret": True}],
        [{"key": ["sk-secret"]}],
        {"sk-secret": 1},
        "sk-secret",
        [["sk-secret"]],
        [{"env": "BAD"}],
        [{"env": "sk-secret"}],
    ],
)
def test_a_refused_key_is_not_shown(keys: Any) -> None:
    found = problems(channel(keys=keys), BAD="sk-secret value")

    assert found
    assert "secret" not in " ".join(found)
    assert "secret" not in " ".join(
        problems("tokens: [{name: a, user: b, key: sk-secret é, key_hash: sk-secret}]")
    )


def test_the_version_is_wanted() -> None:
    for text in ("groups: []", "version: 2", "version: true", "version: '1'"):
        (found,) = load_config(text, environ={}).problems
        assert found.startswith("version: ")


@pytest.mark.parametrize(
    ("url", "full"),
    [
        ("http://h", "http://h/v1"),
        ("http://h/api", "http://h/api/v1"),
        ("http://h/v1", "http://h/v1"),
        ("http://h/v1beta", "http://h/v1beta"),
        ("http://h/api/paas/v4", "http://h/api/paas/v4"),
        ("", ""),
    ],
)
def test_the_suffix_of_a_type_is_added_once(url: str, full: str) -> None:
    assert with_suffix(url, "/v1") == full
    assert with_suffix(full, "/v1") == full


def test_endless_settings_are_refused() -> None:
    bomb = "a: &a [1,1]\nb: &b [*a,*a]\n" + "".join(
        f"c{n}: &c{n} [*{p},*{p}]\n" for n, p in enumerate(["b", *(f"c{i}" for i in range(40))])
    )
    inside = bomb.replace("\n", "\n      ")

    assert len(problems(f"channels:\n  - name: c\n    settings:\n      {inside}")) == 1
    assert len(problems("channels: [{name: c, settings: &s {self: *s}}]")) == 1


FIELDS = [
    name for kind in (ChannelRow, GroupRow, KeyRow, TokenRow, UserRow) for name in file_fields(kind)
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.datetimes(),
    st.binary(max_size=4),
    st.sampled_from(["openai", "http://h", "1", "*"]),
)
names = st.one_of(st.sampled_from([*FIELDS, *SECTIONS, "RetryTimes"]), st.text(max_size=5), scalars)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
    max_leaves=30,
)
documents = st.fixed_dictionaries(
    {"version": st.just(1) | scalars},
    optional={name: trees | st.lists(trees, max_size=3) for name in SECTIONS[1:]},
)


@settings(max_examples=300, deadline=None)
@given(document=documents | trees)
def test_no_document_raises_anything_but_config_error(document: Any) -> None:
    text = yaml.safe_dump(document, allow_unicode=True)
    with suppress(ConfigError):
        config = load_config(text, environ={})
        assert all(isinstance(problem, str) for problem in config.problems)


@settings(max_examples=300, deadline=None)
@given(text=st.text() | st.text(alphabet="{}[]:,-?&*!|>'\"%@`#\n\t 0x1a~<=_.eE+"))
def test_no_text_raises_anything_but_config_error(text: str) -> None:
    with suppress(ConfigError):
        load_config(text, environ={})


@settings(deadline=None)
@given(value=trees)
def test_what_counts_as_json_can_be_stored(value: Any) -> None:
    if json_fault(value) is None:
        assert json.decode(json.encode(value)) == value


def test_a_place_names_odd_keys() -> None:
    place = Place("a")

    place.key("x\ny").refuse("no")
    place.key(None).item(2).refuse("no")

    assert place.problems == [r"a.'x\ny': no", "a.null[2]: no"]


@pytest.mark.parametrize(
    "number", [2**63 - 1, -(2**63) + 1, 10**22, 10**30, int(Decimal("1.5e40"))]
)
def test_numbers_that_json_readers_agree_on_may_stand_in_a_setting(number):
    """PostgreSQL gives 1e30 back as a whole number."""
    assert config_fields.json_fault({"x": number}) is None


@pytest.mark.parametrize("number", [2**63 + 1, 10**30 + 1, 10**400])
def test_numbers_that_they_do_not_agree_on_are_refused(number):
    assert "64 bits" in config_fields.json_fault({"x": number})
