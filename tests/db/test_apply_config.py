"""`apply_config` against a database: what is written, printed, kept and refused."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from billing_app.models import Token, User
from billing_app.services import key_hash
from channels_app.models import Channel, ChannelKey, Group, Option, Status
from channels_app.services import secret_hash
from relay_app.models import SnapshotChange

pytestmark = pytest.mark.django_db

FULL = """
version: 1
options: {RetryTimes: 3, AutomaticRetryStatusCodes: "500-503,429"}
groups:
  - {name: default}
  - {name: vip, ratio: "0.8"}
channels:
  - name: primary
    type: openai
    base_url: http://vllm:9001
    keys: [sk-one-one-one-one-one, {key: sk-two, enabled: false}]
    models: [gpt-4o, "gpt-4o-*"]
    groups: [default, vip]
    status_code_mapping: {404: 500}
    timeouts: {connect: 5, total: 0}
    settings: {region: eu}
  - {name: spare, type: simulated, models: [sim], groups: [default], enabled: false}
users:
  - {name: alice, group: vip, balance_usd: "25.000000001"}
tokens:
  - {name: ci, user: alice, key: sk-relay-ci-0123456789abcdef, expires_at: 2027-01-31T12:00:00}
"""


@pytest.fixture
def apply(tmp_path: Path) -> Any:
    """Return a function that applies a text and returns the lines about changes."""

    def run(text: str, **options: Any) -> list[str]:
        file = tmp_path / "relay.yaml"
        file.write_text(text if "version:" in text else f"version: 1\n{text}")
        out = io.StringIO()
        call_command("apply_config", str(file), stdout=out, stderr=io.StringIO(), **options)
        lines = out.getvalue().splitlines()
        if options.get("dry_run"):
            assert lines.pop() == "dry run: nothing was changed"
        elif lines != ["no changes"]:
            assert lines.pop() == "applied"
        return lines

    return run


def refused(apply: Any, text: str) -> list[str]:
    """Apply a text that must be refused; return the problems without the file's name."""
    with pytest.raises(CommandError) as caught:
        apply(text)
    first, *lines = str(caught.value).splitlines()
    assert first == "nothing was changed:"
    return [line.partition("relay.yaml: ")[2] for line in lines]


def test_a_whole_file_is_written(apply: Any) -> None:
    lines = apply(FULL)

    assert lines == [
        "~ option RetryTimes: 0 -> 3",
        lines[1],
        "+ group default",
        "+ group vip",
        "+ channel primary",
        "+ channel spare",
        "+ user alice",
        "+ token alice/ci",
    ]
    assert lines[1].endswith("-> 429,500-503")
    primary = Channel.objects.get(name="primary")
    assert primary.base_url == "http://vllm:9001/v1"
    assert primary.status_code_mapping == {"404": 500}
    assert sorted(group.name for group in primary.groups.all()) == ["default", "vip"]
    assert [(key.value, key.status) for key in primary.keys.all()] == [
        ("sk-one-one-one-one-one", Status.ENABLED),
        ("sk-two", Status.DISABLED),
    ]
    assert Channel.objects.get(name="spare").status == Status.DISABLED
    alice = User.objects.get(username="alice")
    assert (alice.opening_balance_nusd, alice.group) == (25_000_000_001, "vip")
    assert not alice.has_usable_password()
    token = alice.tokens.get()
    assert token.key_hash == key_hash("sk-relay-ci-0123456789abcdef")
    assert token.expires_at is not None
    assert token.expires_at.isoformat() == "2027-01-31T12:00:00+00:00"


def test_applying_twice_changes_and_saves_nothing(
    apply: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        apply(FULL)
    sections = SnapshotChange.objects.values_list("section", flat=True)
    assert sorted(sections) == ["channels", "groups", "options", "tokens", "users"]

    with (
        django_capture_on_commit_callbacks(execute=True) as callbacks,
        CaptureQueriesContext(connection) as queries,
    ):
        assert apply(FULL) == ["no changes"]

    assert callbacks == []
    words = {query["sql"].split()[0] for query in queries}
    assert words.isdisjoint({"INSERT", "UPDATE", "DELETE"})


def test_a_dry_run_prints_the_same_and_changes_nothing(
    apply: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        lines = apply(FULL, dry_run=True)

    assert callbacks == []
    assert not Channel.objects.exists()
    assert not Option.objects.exists()
    assert apply(FULL) == lines
    assert apply(FULL, dry_run=True) == ["no changes"]


def test_a_row_changes_only_what_it_names(apply: Any) -> None:
    apply(FULL)

    lines = apply(
        """
groups: [{name: vip, ratio: 0.50}]
channels:
  - name: primary
    priority: 100
    base_url: http://other/v1
    models: [gpt-4o, gpt-5]
    groups: [vip]
    keys: [sk-two, sk-three]
    settings: {region: us}
  - {name: spare, enabled: true}
users: [{name: alice, staff: true, balance_usd: 99}]
tokens: [{name: ci, user: alice, models: [gpt-5], group: default, expires_at: null}]
"""
    )

    assert lines == [
        "~ group vip: ratio 0.8 -> 0.5",
        "~ channel primary: models +1 -1, priority 0 -> 100, settings changed,"
        " base_url http://vllm:9001/v1 -> http://other/v1, keys +1 -1, groups +0 -1",
        "~ channel spare: enabled false -> true",
        "~ user alice: staff false -> true",
        "~ token alice/ci: group '' -> default, models +1 -0,"
        " expires_at 2027-01-31T12:00:00+00:00 -> null",
    ]
    primary = Channel.objects.get(name="primary")
    assert primary.timeouts == {"connect": 5, "total": 0}
    assert [key.value for key in primary.keys.all()] == ["sk-two", "sk-three"]
    assert [group.name for group in primary.groups.all()] == ["vip"]
    assert User.objects.get(username="alice").opening_balance_nusd == 25_000_000_001


def test_order_and_repetition_of_models_and_groups_mean_nothing(apply: Any) -> None:
    apply(FULL)

    assert apply(
        "channels: [{name: primary, models: ['gpt-4o-*', gpt-4o, gpt-4o], groups: [vip, default]}]"
    ) == ["no changes"]


def test_enabled_speaks_of_what_a_person_disabled(apply: Any) -> None:
    apply(FULL)
    Channel.objects.filter(name="primary").update(status=Status.AUTO_DISABLED)
    ChannelKey.objects.filter(value_hash=secret_hash("sk-two")).update(status=Status.AUTO_DISABLED)
    text = "channels: [{name: primary, enabled: %s, keys: [%s, {key: sk-two, enabled: %s}]}]"
    one = "sk-one-one-one-one-one"

    assert apply(text % ("true", one, "true")) == ["no changes"]
    assert apply(text % ("false", one, "false")) == [
        "~ channel primary: enabled true -> false, keys +0 -0 ~1"
    ]
    before = Channel.objects.get(name="primary")
    assert (before.status, before.status_reason) == (Status.DISABLED, "configuration file")
    assert before.status_changed_at is not None
    assert apply(text % ("true", one, "true"))[0].startswith("~ channel primary: enabled false ->")
    assert Channel.objects.get(name="primary").status == Status.ENABLED


def test_keys_that_stay_keep_their_rows(apply: Any) -> None:
    apply(FULL)
    before = set(ChannelKey.objects.values_list("pk", flat=True))

    apply("channels: [{name: primary, keys: [sk-new, sk-two, sk-one-one-one-one-one]}]")

    assert before < set(ChannelKey.objects.values_list("pk", flat=True))


def test_problems_of_the_file_and_of_the_database_come_together(apply: Any) -> None:
    Group.objects.create(name="vip")
    User.objects.create(username="alice")

    assert refused(
        apply,
        """
options: {RetryTimez: 1}
channels:
  - {name: a, models: [m]}
  - {name: b, type: openai, groups: [vpi]}
  - {name: c, type: opnai, weight: -1}
users:
  - {name: "bad name", group: nope}
tokens:
  - {name: t, user: alcie, key: sk-a}
  - {name: u, user: alice, group: vipp}
""",
    ) == [
        "options.RetryTimez: unknown option 'RetryTimez'; did you mean RetryTimes?",
        "channels[2].type: unknown type 'opnai'; did you mean openai?",
        "channels[2].weight: -1 is not a whole number from 0 to 2147483647",
        "channels[0].type: is missing; a new channel wants one",
        "channels[1].base_url: is missing; type openai wants one",
        "channels[1].groups: no group 'vpi'; did you mean vip?",
        "users[0].group: no group 'nope'",
        "users[0].name: Enter a valid username. This value may contain only letters, numbers,"
        " and @/./+/-/_ characters.",
        "tokens[0].user: no user 'alcie'; did you mean alice?",
        "tokens[1].group: no group 'vipp'; did you mean vip?",
        "tokens[1]: a new token wants key or key_hash",
    ]
    assert not Channel.objects.exists()


def test_a_key_of_another_token_is_refused(apply: Any) -> None:
    apply(FULL)

    assert refused(
        apply,
        """
users: [{name: bob}]
tokens:
  - {name: x, user: bob, key: sk-relay-ci-0123456789abcdef}
  - {name: y, user: bob, key: sk-same}
  - {name: z, user: bob, key: sk-same}
""",
    ) == [
        "tokens[0]: its key is already used by token alice/ci",
        "tokens[2]: its key is already used by token bob/y",
    ]


def test_a_token_may_be_given_by_its_hash(apply: Any) -> None:
    apply(FULL)
    same = key_hash("sk-relay-ci-0123456789abcdef")

    assert apply(f"tokens: [{{name: ci, user: alice, key_hash: {same.upper()}}}]") == ["no changes"]
    assert apply(f"tokens: [{{name: ci, user: alice, key_hash: {'a' * 64}}}]") == [
        "~ token alice/ci: key replaced"
    ]
    assert Token.objects.get().hint == "…"


def test_one_name_belongs_to_several_users(apply: Any) -> None:
    apply(FULL)

    lines = apply(
        """
users: [{name: bob}]
tokens:
  - {name: ci, user: bob, key: sk-bob}
  - {name: ci, user: alice, enabled: false}
"""
    )

    assert lines == ["+ user bob", "+ token bob/ci", "~ token alice/ci: enabled true -> false"]


def test_nothing_secret_is_printed(apply: Any) -> None:
    lines = apply(FULL) + apply(
        "channels: [{name: primary, keys: [sk-hidden], settings: {password: sk-hidden}}]\n"
        "tokens: [{name: ci, user: alice, key: sk-hidden}]"
    )

    assert not [line for line in lines if "sk-" in line]


def test_notices_go_to_standard_error_only_when_something_changes(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text("version: 1\nchannels: [{name: c, type: openai, base_url: http://h/}]")
    notices = []
    for _ in range(2):
        err = io.StringIO()
        call_command("apply_config", str(file), stdout=io.StringIO(), stderr=err)
        notices.append(err.getvalue())

    assert "channels[0].base_url: /v1 was added: http://h/v1" in notices[0]
    assert "channels[0]: c is in no group, so no token can use it" in notices[0]
    assert notices[1] == ""


def test_old_faults_of_fields_that_are_not_named_do_not_matter(apply: Any) -> None:
    Channel.objects.create(
        name="old", provider="x" * 30, key_mode="nonsense", model_names=[{"a": 1}], status="odd"
    )

    assert apply("channels: [{name: old, priority: 1, models: [m], enabled: true}]") == [
        "~ channel old: models +1 -0, priority 0 -> 1"
    ]


def test_true_and_one_are_different_settings(apply: Any) -> None:
    apply("channels: [{name: c, type: simulated, settings: {a: [1]}}]")

    assert apply("channels: [{name: c, settings: {a: [true]}}]") == [
        "~ channel c: settings changed"
    ]


def test_a_database_error_is_one_line(apply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OperationalError("no such table: channels_app_group\nmore")

    monkeypatch.setattr(
        "relay_app.management.commands.apply_config.config_apply", lambda *a, **k: fail()
    )

    with pytest.raises(CommandError, match=r"no such table: channels_app_group; run .* migrate"):
        apply("groups: []")


def test_a_database_error_does_not_hide_problems_of_the_file(
    apply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OperationalError("no such table: x")

    monkeypatch.setattr("relay_app.management.commands.apply_config.config_apply", fail)

    assert refused(apply, "groups: 1")[0].startswith("groups: 1 is not a list of rows")


def test_an_unchanged_file_costs_the_same_few_queries_at_any_size(apply: Any) -> None:
    rows = "".join(
        f"  - {{name: c{n}, type: openai, base_url: 'http://h{n}/v1', keys: [sk-{n}],"
        f" models: [{', '.join(f'm{m}' for m in range(20))}], groups: [default, vip]}}\n"
        for n in range(600)
    )
    text = f"version: 1\ngroups: [{{name: default}}, {{name: vip}}]\nchannels:\n{rows}"
    assert len(apply(text)) == 602

    with CaptureQueriesContext(connection) as queries:
        assert apply(text) == ["no changes"]

    assert len(queries) < 40


@pytest.mark.django_db(transaction=True)
def test_two_at_once_wait_for_each_other(tmp_path: Path) -> None:
    rows = "".join(f"  - {{name: c{n}, type: simulated, groups: [g]}}\n" for n in range(200))
    file = tmp_path / "relay.yaml"
    file.write_text(f"version: 1\ngroups: [{{name: g}}]\nchannels:\n{rows}")
    outputs: list[str] = []

    def run() -> None:
        out = io.StringIO()
        try:
            call_command("apply_config", str(file), stdout=out, stderr=io.StringIO())
            outputs.append(out.getvalue())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outputs)[1:] == ["no changes\n"] * 2
    assert Channel.objects.count() == 200
    assert SnapshotChange.objects.filter(section="channels").count() == 1
