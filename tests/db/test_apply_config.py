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


EVERYTHING = """
groups:
  - {name: default, user_groups: [default]}
  - {name: vip}
auto_groups: [vip, default]
channels:
  - name: c
    type: simulated
    keys: [{key: sk-limited, limits: {rpm: 5, tpm: 0}}]
    model_mapping: {gpt-4o: gpt-4o-2024-11-20}
    param_override: {temperature: 0}
    header_override: {X-Team: relay}
    fault_domain: eu
    proxy: http://user:password@proxy:3128
    supports_prefill: true
    health_scope: model
    bill_upstream_model: true
    limits: {rpm: 100, tpm: 0, concurrency: 5}
users: [{name: op, staff: true, group: auto}]
tokens:
  - name: t
    user: op
    key: sk-t
    group: auto
    cross_group_retry: true
    specific_channel: c
    allow_ips: [203.0.113.7, 10.1.0.0/8]
    rpm: 1
    tpm: 2
    concurrency: 3
"""


def test_every_key_of_a_row_reaches_its_column(apply: Any) -> None:
    apply(EVERYTHING)

    channel = Channel.objects.get()
    assert channel.model_mapping == {"gpt-4o": "gpt-4o-2024-11-20"}
    assert channel.param_override == {"temperature": 0}
    assert channel.header_override == {"X-Team": "relay"}
    assert (channel.fault_domain, channel.health_scope) == ("eu", "model")
    assert (channel.supports_prefill, channel.bill_upstream_model) == (True, True)
    assert channel.proxy == "http://user:password@proxy:3128"
    assert channel.limits == {"rpm": 100, "concurrency": 5}
    assert channel.keys.get().limits == {"rpm": 5}
    token = Token.objects.get()
    assert (token.group, token.cross_group_retry, token.specific_channel) == ("auto", True, "c")
    assert token.allow_ips == ["203.0.113.7", "10.0.0.0/8"]
    assert (token.rpm, token.tpm, token.concurrency) == (1, 2, 3)
    assert Group.objects.get(name="default").user_groups == ["default"]
    assert Option.objects.get(name="AutoGroups").value == ["vip", "default"]
    assert User.objects.get().group == "auto"
    assert apply(EVERYTHING) == ["no changes"]


def test_changes_of_proxies_and_headers_are_told_without_their_values(apply: Any) -> None:
    apply(EVERYTHING)

    lines = apply(
        """
channels:
  - name: c
    proxy: socks5://user:password@other
    header_override: {X-Team: other-password}
    supports_prefill: null
    keys: [{key: sk-limited, limits: {rpm: 6}}]
tokens: [{name: t, user: op, allow_ips: [10.0.0.1], specific_channel: ""}]
"""
    )

    assert lines == [
        "~ channel c: header_override changed, proxy changed, supports_prefill true -> null,"
        " keys +0 -0 ~1",
        "~ token op/t: specific_channel c -> '', allow_ips +1 -2",
    ]


def test_limits_and_addresses_of_the_same_meaning_change_nothing(apply: Any) -> None:
    apply(EVERYTHING)
    Channel.objects.update(limits={"rpm": 100, "tpm": 0, "concurrency": 5})
    Token.objects.update(allow_ips=["10.0.0.0/8", "203.0.113.7/32"])

    assert apply(EVERYTHING) == ["no changes"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("auto_groups: [vip, vpi]", "auto_groups[1]: no group 'vpi'; did you mean vip?"),
        ("auto_groups: [auto]", "auto_groups[0]: no group 'auto'"),
        ("options: {AutoGroups: [vpi]}", "options.AutoGroups[0]: no group 'vpi'; did you mean"),
        ("groups: [{name: auto}]", "groups[0].name: auto stands for all of AutoGroups"),
        ("channels: [{name: c, type: simulated, groups: [auto]}]", "channels[0].groups: no gro"),
        (
            "tokens: [{name: t, user: alice, key: k, specific_channel: c}]",
            "tokens[0].specific_channel: user 'alice' is not staff, as it must be for this",
        ),
        (
            "users: [{name: op, staff: false}]\n"
            "tokens: [{name: t, user: op, key: k, specific_channel: c}]",
            "tokens[0].specific_channel: user 'op' is not staff",
        ),
        (
            "tokens: [{name: t, user: op, key: k, specific_channel: present1}]",
            "tokens[0].specific_channel: no channel 'present1'; did you mean present?",
        ),
        ("channels: [{name: present, proxy: {kept: true}}]", "channels[0].proxy: the channel has"),
        (
            "channels: [{name: present, header_override: {X-A: {kept: true}}}]",
            "channels[0].header_override.X-A: the channel has nothing here that could be kept;"
            " write it out",
        ),
        (
            f"channels: [{{name: present, keys: [{{hash: {'a' * 64}}}]}}]",
            "channels[0].keys[0]: the channel has no key with this hash; write the key out",
        ),
    ],
)
def test_what_refers_to_nothing_is_refused(apply: Any, text: str, problem: str) -> None:
    Group.objects.create(name="vip")
    Channel.objects.create(name="present", provider="simulated")
    Channel.objects.create(name="c", provider="simulated")
    if "name: c," in text:
        Channel.objects.filter(name="c").delete()
    User.objects.create(username="alice")
    User.objects.create(username="op", is_staff=True)

    (found,) = refused(apply, text)

    assert found.startswith(problem)


def test_a_specific_channel_may_be_of_the_same_file_and_its_user_become_staff(apply: Any) -> None:
    User.objects.create(username="alice")

    lines = apply(
        """
channels: [{name: c, type: simulated}]
users: [{name: alice, staff: true}]
tokens: [{name: t, user: alice, key: k, specific_channel: c}]
"""
    )

    assert lines[-1] == "+ token alice/t"


def test_references_that_went_away_do_not_matter_while_they_stay(apply: Any) -> None:
    apply(EVERYTHING)
    Channel.objects.all().delete()
    Group.objects.all().delete()
    User.objects.update(is_staff=False, group="gone")

    assert apply(
        "users: [{name: op, group: gone}]\n"
        "tokens: [{name: t, user: op, group: auto, specific_channel: c}]"
    ) == ["no changes"]


def test_user_groups_of_nobody_are_pointed_out(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text(
        "version: 1\ngroups: [{name: vip}, {name: g, user_groups: [vpi, later]}, {name: later}]"
    )
    err = io.StringIO()

    call_command("apply_config", str(file), stdout=io.StringIO(), stderr=err)

    assert err.getvalue() == (
        f"note: {file}: groups[1].user_groups: no user is in 'vpi' yet; did you mean vip?\n"
    )


def test_a_preset_comes_first_and_options_of_the_file_outrank_it(apply: Any) -> None:
    assert apply("preset: resilient\noptions: {RetryTimes: 5}") == [
        "~ option RetryTimes: 0 -> 5",
        "~ option RetryStrategy: tier_per_attempt -> untried_first",
        "~ option SameChannelRetries: 0 -> 1",
    ]
    assert apply("preset: resilient\noptions: {RetryTimes: 5}") == ["no changes"]
    assert apply("preset: newapi")[0] == "~ option RetryTimes: 5 -> 0"


def test_without_a_preset_the_defaults_stay(apply: Any) -> None:
    apply(EVERYTHING)

    assert set(Option.objects.values_list("name", flat=True)) == {"AutoGroups"}


def test_new_rows_are_in_the_history_and_the_snapshot_hears_of_them(
    apply: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        apply(EVERYTHING)

    for model in (Channel, ChannelKey, Group, User, Token, Option):
        histories: Any = model
        assert set(histories.history.values_list("history_type", flat=True)) == {"+"}
    changes = {change.section: change.row_ids for change in SnapshotChange.objects.all()}
    assert changes["channels"] == [Channel.objects.get().pk]
    assert changes["tokens"] == [Token.objects.get().pk]
    assert changes["users"] == [User.objects.get().pk]


def test_a_row_that_fails_late_undoes_everything(apply: Any) -> None:
    """The last table refuses: nothing of those before it is kept."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_app_token RENAME COLUMN tpm TO other")

    with pytest.raises(CommandError, match="the database says"):
        apply(EVERYTHING)

    assert not Channel.objects.exists()
    assert not ChannelKey.objects.exists()
    assert not Option.objects.exists()
    assert not Channel.history.exists()


def test_a_secret_that_nothing_opens_is_one_line(apply: Any, settings: Any) -> None:
    apply(EVERYTHING)
    settings.RELAY_ENCRYPTION_KEYS = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]

    (line,) = refused(apply, "channels: [{name: c, priority: 1}]")

    assert line.startswith("Channel.proxy can't be decrypted")


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


def test_options_that_are_lists_or_mappings_are_told_briefly(apply: Any) -> None:
    apply("groups: [{name: a}, {name: b}]\nauto_groups: [a]")

    assert apply(
        "auto_groups: [b, a]\n"
        "options: {ModelFallbacks: {a: [b]}, IdleTimeout: 7, TotalTimeout: 2.5}"
    ) == [
        "~ option ModelFallbacks: changed",
        "~ option IdleTimeout: 30 -> 7",
        "~ option TotalTimeout: 600 -> 2.5",
        "~ option AutoGroups: [a] -> [b, a]",
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


def test_large_files_show_progress(tmp_path: Path) -> None:
    rows = "".join(f"  - {{name: c{n}, type: simulated}}\n" for n in range(501))
    file = tmp_path / "relay.yaml"
    shown = []
    for channels in (rows, rows.replace("}", ", priority: 1}"), "  []"):
        file.write_text(f"version: 1\nchannels:\n{channels}")
        err = io.StringIO()
        call_command("apply_config", str(file), prune=True, stdout=io.StringIO(), stderr=err)
        shown += [line for line in err.getvalue().splitlines() if not line.startswith("note")]

    assert shown == [
        "500 of 501 channels",
        "500 of 501 changed rows",
        "500 of 501 channels deleted",
    ]


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


@pytest.mark.django_db(transaction=True)
def test_files_that_disagree_are_applied_one_after_the_other(tmp_path: Path) -> None:
    """Whichever comes last, the rows are all of the same file."""
    problems: list[BaseException] = []

    def run(priority: int) -> None:
        rows = "".join(
            f"  - {{name: c{n}, type: simulated, priority: {priority}, keys: [sk-{priority}],"
            f" groups: [g{priority}]}}\n"
            for n in range(60)
        )
        file = tmp_path / f"relay{priority}.yaml"
        file.write_text(f"version: 1\ngroups: [{{name: g{priority}}}]\nchannels:\n{rows}")
        try:
            for _ in range(3):
                call_command(
                    "apply_config",
                    str(file),
                    prune=True,
                    stdout=io.StringIO(),
                    stderr=io.StringIO(),
                )
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            problems.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(priority,)) for priority in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    (last,) = set(Channel.objects.values_list("priority", flat=True))
    assert list(Group.objects.values_list("name", flat=True)) == [f"g{last}"]
    assert {key.value for key in ChannelKey.objects.all()} == {f"sk-{last}"}
    assert Channel.groups.through.objects.count() == Channel.objects.count() == 60


def test_a_token_whose_group_is_closed_to_its_user_is_pointed_out(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text("""
version: 1
groups: [{name: default}, {name: vip, user_groups: [vip]}]
users: [{name: alice}, {name: bob, group: vip}]
tokens:
  - {name: a, user: alice, key: k1, group: vip}
  - {name: b, user: bob, key: k2}
  - {name: c, user: alice, key: k3, group: auto}
""")
    out = io.StringIO()

    call_command("apply_config", str(file), stdout=io.StringIO(), stderr=out)
    call_command("apply_config", str(file), stdout=io.StringIO(), stderr=out)

    assert out.getvalue() == (
        f"note: {file}: tokens[0]: group 'vip' is not open to users of group 'default': requests"
        " with this token are refused\n"
    )


def test_a_behaviour_with_unknown_words_is_refused(apply: Any) -> None:
    text = "channels: [{{name: c, type: simulated, settings: {{behaviour: {}}}}}]"
    apply(text.format("status-503-every-3"))

    assert refused(apply, text.format("statsu-503")) == [
        "channels[0].settings: behaviour: unknown word 'statsu'; known: refuse, empty, error, and"
        " with a number status, every, delay, chunks, gap, cut, stall, retryafter"
    ]
    # The words are of this type alone.
    apply("channels: [{name: o, type: openai, base_url: http://h, settings: {behaviour: x}}]")


def test_small_mappings_are_spelled_out_in_the_diff(apply: Any) -> None:
    text = "channels: [{{name: c, type: simulated, limits: {}, timeouts: {}}}]"
    apply(text.format("{rpm: 5}", "{}"))

    assert apply(text.format("{rpm: 10, concurrency: 2}", "{idle: 2.5}"))[0] == (
        "~ channel c: timeouts {} -> {idle: 2.5}, limits {rpm: 5} -> {concurrency: 2, rpm: 10}"
    )
