"""`apply_config --prune`: what goes, what is disabled instead, and what is left alone."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from billing_app.models import Price, Token, User
from billing_app.services import token_create
from channels_app.models import Channel, ChannelKey, Group, Option
from channels_app.services import options_set
from relay_app.models import RequestLog, SnapshotChange

pytestmark = pytest.mark.django_db

FULL = """
options: {RetryTimes: 3, IdleTimeout: 7}
groups: [{name: default}, {name: vip}]
auto_groups: [vip, default]
channels:
  - {name: a, type: simulated, keys: [sk-a, sk-b], groups: [default, vip]}
  - {name: b, type: simulated, keys: [sk-c], groups: [vip], proxy: "http://u:p@h"}
users: [{name: alice}, {name: bob}, {name: op, staff: true}]
tokens:
  - {name: one, user: alice, key: sk-1}
  - {name: two, user: alice, key: sk-2}
  - {name: three, user: bob, key: sk-3}
"""


@pytest.fixture
def apply(tmp_path: Path) -> Any:
    """Return a function that applies a text, pruning; it returns lines and notes."""

    def run(text: str, *, prune: bool = True, **options: Any) -> tuple[list[str], list[str]]:
        file = tmp_path / "relay.yaml"
        file.write_text(f"version: 1\n{text}")
        out, err = io.StringIO(), io.StringIO()
        call_command("apply_config", str(file), prune=prune, stdout=out, stderr=err, **options)
        notes = [line.partition("relay.yaml: ")[2] for line in err.getvalue().splitlines()]
        return out.getvalue().splitlines(), notes

    return run


def log_of(token: Token) -> None:
    """Put a request of the token into the log."""
    RequestLog.objects.create(
        request_id=f"r{token.pk}",
        created_at=timezone.now(),
        user_name=token.user.username,
        token_id=token.pk,
        endpoint="/v1/chat/completions",
        status=200,
        outcome="ok",
    )


def test_the_whole_file_again_takes_nothing_away(apply: Any) -> None:
    apply(FULL)

    lines, notes = apply(FULL)

    assert lines == ["no changes"]
    assert notes == []


def test_rows_that_the_named_sections_lack_go(apply: Any) -> None:
    apply(FULL)

    lines, _ = apply(
        """
options: {IdleTimeout: 7}
groups: [{name: default}]
auto_groups: [default]
channels: [{name: a, groups: [default]}]
users: [{name: alice}, {name: op}]
tokens: [{name: one, user: alice}]
"""
    )

    assert lines == [
        "~ option AutoGroups: [vip, default] -> [default]",
        "- option RetryTimes: 3 -> 0",
        "- channel b",
        "- user bob, tokens -1",
        "- token alice/two",
        "- group vip",
        "~ channel a: groups +0 -1",
        "applied",
    ]
    assert list(Channel.objects.values_list("name", flat=True)) == ["a"]
    assert ChannelKey.objects.count() == 2
    assert list(Group.objects.values_list("name", flat=True)) == ["default"]
    assert set(User.objects.values_list("username", flat=True)) == {"alice", "op"}
    assert list(Token.objects.values_list("name", flat=True)) == ["one"]
    assert set(Option.objects.values_list("name", flat=True)) == {"AutoGroups", "IdleTimeout"}


def test_prices_that_are_not_named_go_and_parts_that_are_not_named_stay(apply: Any) -> None:
    apply('prices: [{model: a, input: 1, output: "2.5"}, {model: "b*", per_call: "0.1"}]')

    lines, _ = apply("prices: [{model: a, input: 3, cached_input: null}]")

    assert lines == ["- price b*", "~ price a: input 1 -> 3", "applied"]
    [price] = Price.objects.all()
    assert (price.model, price.input, price.output) == ("a", 3, Decimal("2.5"))


def test_sections_that_are_not_named_are_left_alone(apply: Any) -> None:
    apply(FULL)

    assert apply("channels:\ntokens:") == (["no changes"], [])
    assert apply("options: {RetryTimes: 3}")[0] == ["- option IdleTimeout: 7 -> 30", "applied"]
    assert apply("channels: []")[0] == ["- channel a", "- channel b", "applied"]
    assert Option.objects.get(name="AutoGroups").value == ["vip", "default"]
    assert (Group.objects.count(), User.objects.count(), Token.objects.count()) == (2, 3, 3)


def test_without_the_word_nothing_goes(apply: Any) -> None:
    apply(FULL)

    assert apply("channels: []\ntokens: []\noptions: {}", prune=False)[0] == ["no changes"]


def test_a_dry_run_prints_the_same_and_takes_nothing_away(apply: Any) -> None:
    apply(FULL)
    text = "channels: []\nusers: []\ntokens: []\ngroups: []\noptions: {}\nauto_groups: []"

    lines, notes = apply(text, dry_run=True)

    assert lines.pop() == "dry run: nothing was changed"
    assert (Channel.objects.count(), Token.objects.count(), Group.objects.count()) == (2, 3, 2)
    assert apply(text) == ([*lines, "applied"], notes)


def test_tokens_and_users_with_requests_in_the_log_are_disabled(apply: Any) -> None:
    apply(FULL)
    log_of(Token.objects.get(name="two"))
    log_of(Token.objects.get(name="three"))

    lines, _ = apply("users: [{name: alice}]\ntokens: [{name: one, user: alice}]")

    assert lines == [
        "~ user bob: disabled, as the log has requests of it",
        "~ token alice/two: disabled, as the log has requests of it",
        "~ token bob/three: disabled, as the log has requests of it",
        "applied",
    ]
    assert not User.objects.get(username="bob").is_active
    assert not Token.objects.get(name="two").is_enabled
    assert apply("users: [{name: alice}]\ntokens: [{name: one, user: alice}]")[0] == ["no changes"]
    assert apply("users: [{name: bob, enabled: true}]", prune=False)[0] == [
        "~ user bob: enabled false -> true",
        "applied",
    ]


def test_users_of_the_admin_are_never_touched(apply: Any) -> None:
    User.objects.create_superuser("root")
    User.objects.create(username="hidden-root", is_superuser=True)
    apply("users: [{name: op, staff: true}, {name: alice}]", prune=False)

    lines, notes = apply("users: []")

    assert lines == ["- user alice", "applied"]
    assert notes == ["users: hidden-root, op, root: of the admin, never pruned"]


def test_a_user_whose_tokens_the_file_has_stays(apply: Any) -> None:
    apply(FULL)

    lines, _ = apply("users: [{name: alice}]\ntokens: [{name: three, user: bob}]")

    assert lines == ["- token alice/one", "- token alice/two", "applied"]
    assert User.objects.filter(username="bob").exists()


def test_a_key_is_free_for_another_token_once_its_own_goes(apply: Any) -> None:
    apply(FULL)

    lines, _ = apply("tokens: [{name: renamed, user: alice, key: sk-1}]")

    assert "- token alice/one" in lines
    assert "+ token alice/renamed" in lines
    log_of(Token.objects.get(name="renamed"))
    with pytest.raises(Exception, match="its key is already used by token alice/renamed"):
        apply("tokens: [{name: again, user: alice, key: sk-1}]")


def test_what_goes_can_not_be_named_by_the_rest_of_the_file(apply: Any) -> None:
    apply(FULL)

    with pytest.raises(Exception, match="nothing was changed") as caught:
        apply(
            """
groups: [{name: default}]
channels: [{name: a, groups: [vip]}]
users: [{name: op}]
tokens: [{name: t, user: op, key: k, specific_channel: b, group: vip}]
auto_groups: [vip]
"""
        )

    assert [line.partition("relay.yaml: ")[2] for line in str(caught.value).splitlines()[1:]] == [
        "auto_groups[0]: no group 'vip'",
        "channels[0].groups: no group 'vip'",
        "tokens[0].group: no group 'vip'",
        "tokens[0].specific_channel: no channel 'b'",
    ]


def test_those_of_a_group_that_goes_are_named(apply: Any) -> None:
    apply(FULL)
    User.objects.filter(username__in=["alice", "bob"]).update(group="vip")
    token_create(user=User.objects.get(username="op"), name="own", group="vip")
    Token.objects.filter(name="three").update(group="vip")

    _, notes = apply(
        "groups: [{name: default}]\nusers: [{name: alice}, {name: bob, group: default}, {name: op}]"
    )

    assert notes == [
        "groups: user alice, token bob/three, token op/own and 1 more: still of a group that is"
        " deleted"
    ]
    assert Group.objects.count() == 1


def test_options_of_a_preset_count_as_named(apply: Any) -> None:
    options_set(values={"SameChannelRetries": 1, "IdleTimeout": 7})
    Option.objects.create(name="OfANewerVersion", value=1)

    lines, _ = apply("preset: resilient\noptions: {}")

    assert lines[-2:] == ["- option IdleTimeout: 7 -> 30", "applied"]
    assert "SameChannelRetries" not in "".join(lines)
    assert Option.objects.filter(name="OfANewerVersion").exists()


@pytest.mark.django_db(transaction=True)
def test_the_snapshot_and_the_history_hear_of_it(apply: Any) -> None:
    apply(FULL)
    SnapshotChange.objects.all().delete()
    channel_id = Channel.objects.get(name="b").pk

    apply("channels: [{name: a}]\ntokens: []\ngroups: [{name: default}]\noptions: {}")

    changes = {change.section: change.row_ids for change in SnapshotChange.objects.all()}
    assert set(changes) == {"channels", "groups", "options", "tokens"}
    assert channel_id in changes["channels"]
    assert Channel.history.filter(id=channel_id, history_type="-").exists()
    assert ChannelKey.history.filter(history_type="-").count() == 1


def test_what_no_key_opens_any_more_can_be_taken_away(apply: Any, settings: Any) -> None:
    apply(FULL)
    settings.RELAY_ENCRYPTION_KEYS = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]

    assert apply("channels: []")[0] == ["- channel a", "- channel b", "applied"]
