"""What is saved is what requests are decided on: changes, rollbacks, rebuilds, misses."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from billing_app.models import Token
from billing_app.services import key_hash, token_create
from channels_app.models import Channel, Option
from channels_app.services import channel_key_add, options_set
from relay_app import signals, snapshot
from relay_app.models import SnapshotChange
from tests.support.upstream import Gate, answer, chat, error, held

POLLED_S = 2.0  # spec 01 section 3


def names(world) -> set[str]:
    """Return the models that the relay offers now, as it was last refreshed."""
    response = world.client.http.get("/v1/models")
    assert response.status_code == 200
    return {row["id"] for row in response.json()["data"]}


@pytest.fixture
def channel(world):
    channel = world.channel("a", answer(200, chat()), model_names=["m"])
    world.ready()
    SnapshotChange.objects.all().delete()
    return channel


def test_a_saved_channel(world, channel):
    channel.model_names = ["new"]
    channel.save()
    world.relay.refresh()

    assert names(world) == {"new"}


@pytest.mark.parametrize("status", ["disabled", "auto_disabled"])
def test_a_channel_disabled_and_enabled_again(world, channel, status):
    channel.status = status
    channel.save()
    world.relay.refresh()
    assert names(world) == set()

    channel.status = "enabled"
    channel.save()
    world.relay.refresh()
    assert names(world) == {"m"}


def test_a_deleted_channel(world, channel):
    channel.delete()
    world.relay.refresh()

    assert names(world) == set()


def test_channels_deleted_by_a_query(world, channel):
    Channel.objects.filter(pk=channel.pk).delete()
    world.relay.refresh()

    assert names(world) == set()


def test_groups_added_removed_and_cleared_from_the_channel(world, channel):
    for change, want in (
        (channel.groups.clear, set()),
        (lambda: channel.groups.add(world.group), {"m"}),
        (lambda: channel.groups.remove(world.group), set()),
        (lambda: channel.groups.set([world.group]), {"m"}),
        (lambda: channel.groups.set([]), set()),
    ):
        change()
        world.relay.refresh()
        assert names(world) == want


def test_channels_added_removed_and_cleared_from_the_group(world, channel):
    for change, want in (
        (world.group.channels.clear, set()),
        (lambda: world.group.channels.add(channel), {"m"}),
        (lambda: world.group.channels.remove(channel), set()),
        (lambda: world.group.channels.set([channel]), {"m"}),
    ):
        change()
        world.relay.refresh()
        assert names(world) == want


def test_a_group_renamed(world, channel):
    world.group.name = "renamed"
    world.group.save()
    world.relay.refresh()
    assert names(world) == set()

    world.user.group = "renamed"
    world.user.save()
    world.relay.refresh()
    assert names(world) == {"m"}


def test_a_group_deleted(world, channel):
    world.group.delete()
    world.relay.refresh()

    assert names(world) == set()


def test_keys_added_changed_and_deleted(world, channel):
    key = channel.keys.get()
    world.client.chat()
    key.delete()
    channel_key_add(channel=channel, value="sk-another-0123456789")
    world.relay.refresh()

    world.client.chat()

    sent = [seen.headers["authorization"] for seen in world.upstream.seen]
    assert sent == ["Bearer sk-upstream-a-0123456789", "Bearer sk-another-0123456789"]


def test_a_key_disabled(world, channel):
    key = channel.keys.get()
    key.status = "disabled"
    key.save()
    world.relay.refresh()

    assert world.client.chat().status_code == 502
    assert world.upstream.seen == []


def test_options(world, channel):
    options_set(values={"RetryTimes": 4})
    world.relay.refresh()
    assert world.relay.options().retry_times == 4

    Option.objects.get(name="RetryTimes").delete()
    world.relay.refresh()
    assert world.relay.options().retry_times == 0


def test_token_edits(world, channel):
    token = world.token
    for field, value, status in (
        ("is_enabled", False, 401),
        ("is_enabled", True, 200),
        ("model_names", ["other"], 403),
        ("model_names", [], 200),
        ("group", "elsewhere", 503),
        ("group", "", 200),
    ):
        setattr(token, field, value)
        token.save()
        world.relay.refresh()
        assert world.client.chat().status_code == status, (field, value)


def test_user_edits_reach_all_tokens_of_the_user(world, channel):
    _, other_key = token_create(user=world.user, name="second")
    for field, value, status in (
        ("is_active", False, 401),
        ("is_active", True, 200),
        ("group", "elsewhere", 503),
        ("group", "default", 200),
    ):
        setattr(world.user, field, value)
        world.user.save()
        world.relay.refresh()
        for key in (world.key, other_key):
            headers = {"Authorization": f"Bearer {key}"}
            response = world.client.http.post(
                "/v1/chat/completions", json={"model": "m", "messages": []}, headers=headers
            )
            assert response.status_code == status, (field, value)


def test_a_deleted_user_takes_the_tokens_along(world, channel):
    world.user.delete()
    world.relay.refresh()

    assert world.client.chat().status_code == 401


def test_changes_are_in_use_by_themselves(world, channel):
    channel.model_names = ["polled"]
    channel.save()
    saved_s = time.monotonic()

    while names(world) != {"polled"}:
        assert time.monotonic() - saved_s < POLLED_S
        time.sleep(0.02)


# -- transactions --------------------------------------------------------------------------


class Undone(Exception):
    pass


@contextlib.contextmanager
def undone():
    """A transaction, or a savepoint within one, that is rolled back."""
    with contextlib.suppress(Undone), transaction.atomic():
        yield
        raise Undone


def test_a_transaction_writes_one_change_for_each_section(world, channel):
    with transaction.atomic():
        for n in range(3):
            world.channel(f"c{n}", model_names=[f"m{n}"])
        world.user.save()
        assert not SnapshotChange.objects.exists()  # not before it is true

    changes = SnapshotChange.objects.values_list("section", flat=True)
    assert sorted(changes) == ["channels", "users"]
    world.relay.refresh()
    assert names(world) == {"m", "m0", "m1", "m2"}


def test_a_transaction_undone_changes_nothing(world, channel):
    with undone():
        channel.model_names = ["undone"]
        channel.save()
    world.relay.refresh()

    assert not SnapshotChange.objects.exists()
    assert names(world) == {"m"}


def test_changes_after_an_undone_transaction_are_seen(world, channel):
    with undone():
        channel.save()
    channel.model_names = ["later"]
    channel.save()
    world.relay.refresh()

    assert names(world) == {"later"}


def test_changes_after_an_undone_savepoint_are_seen(world, channel):
    with transaction.atomic():
        with undone():
            world.user.save()
        channel.model_names = ["after"]
        channel.save()
    world.relay.refresh()

    assert names(world) == {"after"}


def test_changes_before_an_undone_savepoint_are_seen(world, channel):
    with transaction.atomic():
        channel.model_names = ["before"]
        channel.save()
        with undone():
            world.user.save()
    world.relay.refresh()

    assert names(world) == {"before"}


def test_changes_in_a_savepoint_between_undone_ones_are_seen(world, channel):
    def tried_in_vain():
        with undone():
            channel.model_names = ["undone"]
            channel.save()

    with transaction.atomic():
        tried_in_vain()
        with transaction.atomic():
            channel.model_names = ["kept"]
            channel.save()
            tried_in_vain()
        tried_in_vain()
    world.relay.refresh()

    assert names(world) == {"kept"}


def test_more_rows_than_are_listed(world, channel, monkeypatch):
    monkeypatch.setattr(signals, "MAX_LISTED_ROWS", 3)
    with transaction.atomic():
        for n in range(5):
            world.channel(f"c{n}", model_names=[f"m{n}"])
            token_create(user=world.user, name=f"t{n}")
        world.token.group = "default"
        world.token.save()

    changes = dict(SnapshotChange.objects.values_list("section", "row_ids"))
    assert changes == {"channels": None, "tokens": None}
    world.relay.refresh()
    assert names(world) == {"m", *(f"m{n}" for n in range(5))}


def test_signing_in_is_no_change(world, channel, client):
    world.user.set_password("pw")
    world.user.save()
    SnapshotChange.objects.all().delete()

    assert client.login(username="alice", password="pw")

    assert get_user_model().objects.get(pk=world.user.pk).last_login is not None
    assert not SnapshotChange.objects.exists()


def test_a_refresh_with_nothing_new_keeps_the_snapshot(world, channel):
    world.relay.refresh()
    from relay_app import runtime

    before = runtime.current().feed.current
    world.relay.refresh()

    assert runtime.current().feed.current is before


# -- what escapes the signals --------------------------------------------------------------


def test_bulk_updates_are_seen_by_a_rebuild(world, channel):
    Channel.objects.update(model_names=["bulk"])
    world.relay.refresh()
    assert names(world) == {"m"}

    world.relay.rebuild()
    assert names(world) == {"bulk"}


def test_a_change_during_a_rebuild_is_not_lost(world, channel, monkeypatch):
    """It lands after the rows were read and before they count."""
    read, go_on = threading.Event(), threading.Event()
    load = snapshot._load

    def slow_load():
        loaded = load()
        read.set()
        assert go_on.wait(20)
        return loaded

    monkeypatch.setattr(snapshot, "_load", slow_load)
    rebuild = threading.Thread(target=world.relay.rebuild)
    rebuild.start()
    assert read.wait(20)
    channel.model_names = ["meanwhile"]
    channel.save()
    world.relay.refresh()
    go_on.set()
    rebuild.join(20)

    assert names(world) == {"meanwhile"}


@pytest.mark.parametrize(
    "fields",
    [
        {"model_names": 5},
        {"model_names": "text"},
        {"model_names": [5, {"a": 1}, "good"]},
        {"timeouts": 5},
        {"timeouts": {"nonsense": 1}},
        {"timeouts": {"idle": "soon"}},
        {"status_code_mapping": ["x"]},
        {"status_code_mapping": {"a": "b"}},
        {"settings": [1, 2]},
        {"settings": "text"},
        {"base_url": "nonsense"},
        {"provider": "nonsense"},
    ],
    ids=str,
)
def test_a_broken_row_costs_only_itself(world, channel, fields):
    """Rows may be written by hand or by SQL; the other channels must go on."""
    world.channel("broken", **{"model_names": ["other"], **fields})
    world.relay.refresh()
    world.relay.rebuild()

    assert "m" in names(world)
    assert world.client.chat().status_code == 200


@pytest.mark.parametrize("value", [5, "text", {"a": 1}, [5]], ids=str)
def test_a_broken_token_costs_only_itself(world, channel, value):
    token, key = token_create(user=world.user, name="broken")
    Token.objects.filter(pk=token.pk).update(model_names=value)
    token.refresh_from_db()
    token.save()
    world.relay.refresh()
    world.relay.rebuild()

    assert world.client.chat().status_code == 200
    assert ask_with(world, key) == 403  # it allows nothing, never all


def test_a_broken_option_costs_only_itself(world, channel):
    Option.objects.create(name="RetryTimes", value="many")
    Option.objects.create(name="OfANewerVersion", value=1)
    options_set(values={"IdleTimeout": 7})
    world.relay.refresh()

    assert world.relay.options().retry_times == 0
    assert world.relay.options().idle_timeout == 7


# -- one request, one snapshot -------------------------------------------------------------


def test_a_request_keeps_the_snapshot_that_it_began_with(world):
    """With the first channel gone, tier 1 would be the third channel, not the second."""
    gate = Gate()
    first = world.channel("a", held(error(500), gate), priority=3)
    world.channel("b", answer(200, chat("b")), priority=2)
    world.channel("c", answer(200, chat("c")), priority=1)
    world.options(RetryTimes=1)
    client = world.ready()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(client.chat()))
    asking.start()
    while not world.upstream.seen:
        time.sleep(0.01)

    first.status = "disabled"
    first.save()
    world.relay.refresh()
    gate.open()
    asking.join(20)

    assert world.upstream.names() == ["a", "b"]
    assert answers[0].json()["choices"][0]["message"]["content"] == "b"
    client.chat()
    assert world.upstream.names() == ["a", "b", "b"]


# -- tokens that the snapshot lacks --------------------------------------------------------


def ask_with(world, key: str) -> int:
    return world.client.http.post(
        "/v1/chat/completions",
        json={"model": "m", "messages": []},
        headers={"Authorization": f"Bearer {key}"},
    ).status_code


def make_unnoticed(world, key: str) -> None:
    """Make a token without a signal."""
    Token.objects.bulk_create([Token(user=world.user, name="quiet", key_hash=key_hash(key))])


def test_a_token_made_a_moment_ago_works_at_once(world, channel):
    make_unnoticed(world, "sk-relay-unnoticed")

    assert ask_with(world, "sk-relay-unnoticed") == 200


def test_a_miss_is_remembered_for_two_seconds(world, channel, monkeypatch):
    looked_up = []
    find = snapshot.find_token
    monkeypatch.setattr(
        snapshot, "find_token", lambda hashed: looked_up.append(hashed) or find(hashed)
    )
    key = f"sk-relay-missing-{time.monotonic_ns()}"

    began_s = time.monotonic()
    statuses = [ask_with(world, key) for _ in range(10)]
    is_quick = time.monotonic() - began_s < snapshot.MISS_S

    assert statuses == [401] * 10
    assert len(looked_up) == 1 or not is_quick
    make_unnoticed(world, key)
    time.sleep(snapshot.MISS_S + 0.1)
    assert ask_with(world, key) == 200
