"""The tables of spec 01 through the real server: budgets, strategies, groups, waits."""

from __future__ import annotations

import pytest

from relay_app import pipeline
from tests.support.upstream import answer, chat, error, reset


class FakeClock:
    """Time that passes only when somebody sleeps; `slept` are the waits in seconds."""

    def __init__(self):
        self.time_s = 1000.0
        self.slept = []

    def now_s(self):
        return self.time_s

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.time_s += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(pipeline, "clock", clock)
    return clock


def answered(name):
    return answer(200, chat(name))


def groups_of_channels(world, groups, *actions):
    """Make one channel a tier for each group: A0, A1, B0, ...; `groups` are tier counts."""
    from channels_app.models import Group

    for letter, count in zip("ABC", groups, strict=False):
        group = Group.objects.create(name=letter)
        for tier in range(count):
            channel = world.channel(f"{letter}{tier}", *actions, priority=-tier)
            channel.groups.set([group])
    world.options(AutoGroups=["A", "B", "C"][: len(groups)])
    world.token.group = "auto"


@pytest.mark.parametrize(
    ("groups", "retry_times", "expected"),
    [
        ((2, 2), 3, "A0 A1 B0 B1"),
        ((2, 2), 1, "A0 A1 B0 B1"),
        ((2, 2), 0, "A0"),
        ((1, 1), 3, "A0 B0 B0 B0"),
        ((2,), 3, "A0 A1 A1 A1"),
        ((0, 2), 2, "B0 B1 B1"),
        ((3, 2), 1, "A0 A1 B0 B1"),
    ],
)
def test_auto_groups_are_walked_as_the_table_says(world, clock, groups, retry_times, expected):
    groups_of_channels(world, groups, error(500))
    world.options(RetryTimes=retry_times, MaxSwitchesPerRequest=20)
    world.token.cross_group_retry = True
    world.token.save()

    response = world.ready().chat()

    assert response.status_code == 500
    assert world.upstream.names() == expected.split()
    assert response.headers["x-relay-attempts"] == str(len(expected.split()))


def test_without_cross_group_retry_only_the_first_group_with_a_channel_counts(world, clock):
    groups_of_channels(world, (0, 2, 2), error(500))
    world.options(RetryTimes=3)
    world.token.save()

    assert world.ready().chat().status_code == 500

    assert world.upstream.names() == ["B0", "B1", "B1", "B1"]


def test_the_log_names_the_group_that_served(world):
    groups_of_channels(world, (1, 1), answered("x"))
    world.upstream.script("A0", error(500))
    world.options(RetryTimes=1)
    world.token.cross_group_retry = True
    world.token.save()

    response = world.ready().chat()

    assert response.status_code == 200
    assert world.log(response.headers["x-request-id"]).group == "B"


def test_auto_walks_only_groups_that_are_open_to_the_user(world):
    from channels_app.models import Group

    groups_of_channels(world, (1, 1), answered("x"))
    group = Group.objects.get(name="A")
    group.user_groups = ["vip"]
    group.save()
    world.token.save()

    assert world.ready().chat().status_code == 200
    assert world.upstream.names() == ["B0"]

    world.user.group = "vip"
    world.user.save()
    assert world.ready().chat().status_code == 200
    assert world.upstream.names() == ["B0", "A0"]


def _channels(name):
    from channels_app.models import Channel

    return Channel.objects.filter(name=name)


def test_auto_without_a_group_says_which_option_to_set(world):
    world.channel("a", answered("a"))
    world.token.group = "auto"
    world.token.save()

    response = world.ready().chat()

    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_channel_available"
    assert "AutoGroups" in response.json()["error"]["message"]


def test_a_group_that_is_closed_to_the_user_is_403(world):
    world.channel("a", answered("a"))
    world.group.user_groups = ["vip"]
    world.group.save()

    response = world.ready().chat()

    assert response.status_code == 403
    assert response.json()["error"]["code"] == "group_not_allowed"
    assert world.upstream.names() == []


def test_auto_lists_the_models_of_all_its_groups(world):
    groups_of_channels(world, (1, 1), answered("x"))
    for name in ("A0", "B0"):
        _channels(name).update(model_names=[f"model-{name}"])
    world.token.save()
    world.relay.rebuild()

    listed = world.ready().http.get("/v1/models").json()["data"]

    assert [row["id"] for row in listed] == ["model-A0", "model-B0"]


# -- strategies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("tier_per_attempt", [100, 50, 10, 10, 10]),
        ("untried_first", [100, 50, 10, 10, 100]),
        ("exhaust_tier", [100, 100, 50, 10, 10]),
    ],
)
def test_strategies(world, clock, strategy, expected):
    tiers = {"a": 100, "b": 100, "c": 50, "d": 10, "e": 10}
    for name, priority in tiers.items():
        world.channel(name, error(500), priority=priority)
    world.options(RetryTimes=4, RetryStrategy=strategy)

    assert world.ready().chat().status_code == 500

    assert [tiers[name] for name in world.upstream.names()] == expected
    if strategy != "tier_per_attempt":
        assert len(set(world.upstream.names())) == 5


# -- the same channel again ---------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_blip_is_met_on_the_same_channel_after_a_wait(world, clock, status):
    world.channel("a", error(status), answered("a"), priority=9)
    world.channel("b", answered("b"))
    world.options(SameChannelRetries=1)

    response = world.ready().chat()

    assert response.json()["choices"][0]["message"]["content"] == "a"
    assert world.upstream.names() == ["a", "a"]
    assert response.headers["x-relay-attempts"] == "2"
    [wait_s] = clock.slept
    assert 0.3 <= wait_s <= 0.7
    rows = world.log(response.headers["x-request-id"]).attempts
    assert list(rows.values_list("decision", flat=True)) == ["same channel", "answered"]


def test_a_reset_is_met_on_the_same_channel(world, clock):
    """A pooled connection that breaks is tried once more by the transport, without a wait."""
    world.channel("a", reset(), reset(), answered("a"))
    world.options(SameChannelRetries=2)

    assert world.ready().chat().status_code == 200
    assert len(clock.slept) in (1, 2)


@pytest.mark.parametrize(("hint", "slept"), [("2", [2.0]), ("3", [3.0]), ("4", [])])
def test_a_published_wait_is_slept_or_the_channel_left_at_once(world, clock, hint, slept):
    limited = error(429, headers={"Retry-After": hint})
    world.channel("a", limited, answered("a"), priority=9)
    world.channel("b", answered("b"))
    world.options(SameChannelRetries=1, RetryTimes=1)

    assert world.ready().chat().status_code == 200

    assert world.upstream.names() == (["a", "a"] if slept else ["a", "b"])
    assert clock.slept == pytest.approx(slept)


def test_waits_grow_and_none_follows_the_last_attempt(world, clock):
    world.channel("a", error(503))
    world.options(SameChannelRetries=4)

    assert world.ready().chat().status_code == 503

    assert len(world.upstream.seen) == 5
    assert len(clock.slept) == 4
    for number, wait_s in enumerate(clock.slept):
        assert 0.3 <= wait_s <= 0.3 + min(4.0, 0.4 * 2**number)


def test_no_attempt_starts_after_the_total_timeout(world, clock):
    world.channel("a", error(503, headers={"Retry-After": "3"}))
    world.options(SameChannelRetries=20, TotalTimeout=10)

    response = world.ready().chat()

    assert response.status_code == 503
    assert len(world.upstream.seen) == 4
    assert clock.slept == [3.0, 3.0, 3.0]
    assert world.log(response.headers["x-request-id"]).stop_reason == "total time limit"


def test_a_status_that_is_never_sent_again_is_not_on_the_same_channel(world, clock):
    world.channel("a", error(504))
    world.options(SameChannelRetries=3, RetryTimes=3)

    assert world.ready().chat().status_code == 504
    assert (len(world.upstream.seen), clock.slept) == (1, [])


def test_at_most_five_calls_to_one_channel_under_the_resilient_values(world, clock):
    world.channel("a", error(500))
    world.options(RetryTimes=3, RetryStrategy="untried_first", SameChannelRetries=1)

    world.ready().chat()

    assert len(world.upstream.seen) == 5


# -- keys --------------------------------------------------------------------------------


def _keys(world, count):
    from channels_app.services import channel_key_add

    for name in ("a", "b"):
        channel = world.channel(name, error(401, code="invalid_api_key"), key_mode="polling")
        channel.priority = 9 if name == "a" else 0
        channel.save()
        for number in range(count - 1):
            channel_key_add(channel=channel, value=f"sk-further-{name}-{number}-0123456789")


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "invalid_api_key"), (429, "rate_limit_exceeded"), (402, "insufficient_quota")],
)
def test_a_fault_of_a_key_goes_on_with_the_next_at_once(world, clock, status, code):
    _keys(world, 2)
    world.upstream.script("a", error(status, code=code), answered("a"))

    response = world.ready().chat()

    assert response.status_code == 200
    sent = [seen.headers["authorization"] for seen in world.upstream.seen]
    assert (len(set(sent)), clock.slept) == (2, [])
    rows = world.log(response.headers["x-request-id"]).attempts
    assert list(rows.values_list("decision", flat=True)) == ["next key", "answered"]


def test_one_selection_uses_four_keys_at_most(world, clock):
    _keys(world, 6)
    world.options(RetryTimes=1)

    world.ready().chat()

    assert world.upstream.names() == ["a"] * 4 + ["b"] * 4
    assert len({seen.headers["authorization"] for seen in world.upstream.seen}) == 8


# -- a channel by name, other models -------------------------------------------------------


def test_a_token_of_staff_for_one_channel_asks_it_alone(world, clock):
    world.channel("a", answered("a"), priority=9)
    named = world.channel("b", error(503), model_names=["other"])
    world.options(RetryTimes=3, SameChannelRetries=3)
    world.token.specific_channel = named.name
    world.token.save()
    world.user.is_staff = True
    world.user.save()

    response = world.ready().chat()

    assert response.status_code == 503
    assert world.upstream.names() == ["b"]


def test_a_channel_by_name_counts_for_staff_only(world):
    world.channel("a", answered("a"))
    world.channel("b", answered("b"), model_names=["other"])
    world.token.specific_channel = "b"
    world.token.save()

    assert world.ready().chat().status_code == 200
    assert world.upstream.names() == ["a"]


def test_a_named_channel_that_is_disabled_is_said(world):
    world.channel("a", answered("a"))
    world.channel("b", answered("b"), status="disabled")
    world.token.specific_channel = "b"
    world.token.save()
    world.user.is_staff = True
    world.user.save()

    response = world.ready().chat()

    assert response.status_code == 503
    assert "'b'" in response.json()["error"]["message"]


def test_another_model_answers_when_every_channel_failed(world, clock):
    world.channel("a", error(500))
    world.channel("b", answered("b"), model_names=["n"])
    world.options(ModelFallbacks={"m": ["n"]})

    response = world.ready().chat()

    assert response.status_code == 200
    assert [seen.json["model"] for seen in world.upstream.seen] == ["m", "n"]
    log = world.log(response.headers["x-request-id"])
    assert log.request_model == "m"
    assert list(log.attempts.values_list("upstream_model", "decision")) == [
        ("m", "model fallback"),
        ("n", "answered"),
    ]


def test_a_fallback_that_the_token_may_not_use_is_passed_over(world, clock):
    world.channel("a", error(500))
    world.channel("b", answered("b"), model_names=["n"])
    world.channel("c", answered("c"), model_names=["o"])
    world.options(ModelFallbacks={"m": ["n", "o"]})
    world.token.model_names = ["m", "o"]
    world.token.save()

    assert world.ready().chat().status_code == 200
    assert world.upstream.names() == ["a", "c"]


def test_a_model_without_a_channel_falls_back(world):
    world.channel("b", answered("b"), model_names=["n"])
    world.options(ModelFallbacks={"gone": ["n"]})

    assert world.ready().chat(model="gone").status_code == 200


def test_a_request_that_is_at_fault_is_not_asked_of_another_model(world):
    world.channel("a", error(400))
    world.channel("b", answered("b"), model_names=["n"])
    world.options(ModelFallbacks={"m": ["n"]}, RetryTimes=3)

    assert world.ready().chat().status_code == 400
    assert world.upstream.names() == ["a"]


# -- blocked words -------------------------------------------------------------------------


def test_a_prompt_with_a_blocked_word_reaches_no_upstream(world):
    world.channel("a", answered("a"))
    world.options(BlockedWords="forbidden fruit\nsecret", RetryTimes=3)
    client = world.ready()

    response = client.chat(messages=[{"role": "user", "content": "The SECRET of it"}])

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "blocked_content"
    assert response.headers["x-relay-attempts"] == "0"
    assert client.chat(model="m").status_code == 200
    assert len(world.upstream.seen) == 1


def test_a_prompt_too_deep_to_be_searched_for_blocked_words_is_refused(world):
    world.channel("a", answered("a"))
    world.options(BlockedWords="secret")
    content = b"[" * 990 + b'"secret"' + b"]" * 990

    response = world.ready().post(b'{"model": "m", "messages": [' + content + b"]}")

    assert response.status_code == 400
    assert "nested too deeply" in response.text
    assert not world.upstream.seen
