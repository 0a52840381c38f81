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

from relay_app.config_channels import with_suffix
from relay_app.config_fields import Place, json_fault
from relay_app.config_file import (
    SECTIONS,
    ChannelRow,
    Config,
    GroupRow,
    KeyRow,
    TokenRow,
    UserRow,
    file_fields,
    load_config,
)
from relay_app.config_text import ConfigError


def load(text: str, **environ: str) -> Config:
    """Return `text` as a configuration of version 1."""
    return load_config(f"version: 1\n{text}", environ=environ)


def problems(text: str, **environ: str) -> list[str]:
    """Return what is wrong with `text`."""
    return load(text, **environ).problems


def channel(**fields: Any) -> str:
    """Return a file with one channel `c` that has these fields."""
    return yaml.safe_dump({"channels": [{"name": "c", **fields}]})


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
        ("preset: resilient", "preset: not supported by this version yet"),
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
        ("groups: [{name: a, user_groups: []}]", "groups[0].user_groups: not supported by this"),
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
        ("tokens: [{name: a, user: b, rpm: 1}]", "tokens[0].rpm: not supported by this version"),
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
        ({"model_mapping": {}}, "model_mapping: not supported by this version yet"),
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
        ({"keys": [{"key": "a", "limits": {}}]}, "keys[0].limits: not supported by this version"),
        ({"keys": ["sk-a", {"key": "sk-a"}]}, "keys[1]: the same key as channels[0].keys[0]"),
    ],
)
def test_problems_of_a_channel(fields: dict[str, Any], problem: str) -> None:
    (found,) = problems(channel(**fields))

    assert found.startswith(f"channels[0].{problem}")


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
