"""Limits of tokens, channels and keys through the real server, counted by one process."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.upstream import (
    Gate,
    answer,
    chat,
    chunk,
    error,
    held,
    silent,
    stream,
    whole_stream,
)

GOOD = answer(200, chat())


def limit(world, **limits):
    for name, value in limits.items():
        setattr(world.token, name, value)
    world.token.save()


def statuses(client, count, **fields):
    return [client.chat(**fields).status_code for _ in range(count)]


# -- tokens --------------------------------------------------------------------------------


def test_requests_a_minute(world):
    world.channel("a", GOOD)
    limit(world, rpm=3)
    client = world.ready()

    responses = [client.chat() for _ in range(5)]

    assert [r.status_code for r in responses] == [200, 200, 200, 429, 429]
    assert len(world.upstream.seen) == 3
    assert [r.headers["x-ratelimit-remaining-requests"] for r in responses] == list("21000")
    refused = responses[-1]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "3 requests a minute" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-limit-requests"] == "3"
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
    assert refused.headers["x-relay-attempts"] == "0"
    log = world.log(refused.headers["x-request-id"])
    assert (log.status, log.outcome, log.token_name) == (429, "rate_limit_exceeded", "t")


def test_the_refusal_is_told_in_the_dialect_of_the_path(world):
    world.channel("a", GOOD)
    world.channel("b", GOOD, provider="anthropic")
    world.channel("c", GOOD, provider="gemini")
    limit(world, rpm=1)
    client = world.ready()
    client.chat()

    assert client.messages().json()["error"]["type"] == "rate_limit_error"
    gemini = client.http.post("/v1beta/models/m:generateContent", json={"contents": []})
    assert gemini.json()["error"]["status"] == "RESOURCE_EXHAUSTED"


def test_tokens_a_minute_are_corrected_by_what_was_used(world):
    """The estimate is over 100 (the answer may have 100 tokens); 5 are used each time."""
    world.channel("a", GOOD)
    limit(world, tpm=150)
    client = world.ready()

    assert statuses(client, 5, max_tokens=100) == [200] * 5
    left = client.chat(max_tokens=10).headers["x-ratelimit-remaining-tokens"]
    assert int(left) < 150 - 25


def test_tokens_that_were_used_count(world):
    whole = chat()
    whole["usage"] = {"prompt_tokens": 90, "completion_tokens": 10}
    world.channel("a", answer(200, whole))
    limit(world, tpm=100)
    client = world.ready()

    responses = [client.chat(), client.chat()]

    assert [r.status_code for r in responses] == [200, 429]
    assert "100 tokens a minute" in responses[1].json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"max_tokens": 1_000_000_000}, "lower max_tokens"),
        ({"max_tokens": 2**31}, "lower max_tokens"),
        ({"max_completion_tokens": 101}, "lower max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 1000}]}, "shorten the prompt"),
    ],
)
def test_a_request_larger_than_a_whole_minute_is_told_so(world, fields, advice):
    """It passes when nothing else came, and leaves no room for others while it runs."""
    whole = chat()
    whole["usage"] = {"prompt_tokens": 90, "completion_tokens": 10}
    world.channel("a", answer(200, whole))
    limit(world, tpm=100)
    client = world.ready()

    responses = [client.chat(**fields), client.chat(**fields)]

    assert [r.status_code for r in responses] == [200, 429]
    message = responses[1].json()["error"]["message"]
    assert "100 tokens a minute" in message
    assert f"more than a whole minute allows: {advice} (request id" in message
    assert responses[1].headers["retry-after"]


def test_an_absurd_limit_of_the_answer_reserves_the_whole_minute(world):
    gate = Gate()
    world.channel("a", held(GOOD, gate))
    limit(world, tpm=100)
    client = world.ready()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.chat, max_tokens=2**31)
        while not (world.upstream.seen or first.done()):
            time.sleep(0.01)
        refused = client.chat()
        gate.open()
        assert refused.status_code == 429
        assert first.result().status_code == 200


def test_a_failed_request_used_no_tokens(world):
    world.channel("a", error(500))
    limit(world, tpm=1000)
    client = world.ready()

    assert statuses(client, 5, max_tokens=900) == [500] * 5


def test_a_refused_request_consumes_nothing(world):
    """Refused for its tokens, it takes no request either."""
    whole = chat()
    whole["usage"] = {"prompt_tokens": 100, "completion_tokens": 0}
    world.channel("a", answer(200, whole))
    limit(world, tpm=100, rpm=5)
    client = world.ready()

    responses = [client.chat() for _ in range(4)]

    assert [r.status_code for r in responses] == [200, 429, 429, 429]
    assert {r.headers["x-ratelimit-remaining-requests"] for r in responses} == {"4"}


def test_requests_at_once_hold_under_a_rush(world):
    gate = Gate()
    world.channel("a", held(GOOD, gate))
    limit(world, concurrency=5)
    client = world.ready()

    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(client.chat) for _ in range(40)]
        while sum(one.done() for one in asked) < 35:
            time.sleep(0.01)
        for _ in range(5):
            gate.open()
        codes = sorted(one.result().status_code for one in asked)

    assert codes == [200] * 5 + [429] * 35
    assert len(world.upstream.seen) == 5


def free_slots(client):
    """Return once a request finds a slot; fail after 2 s."""
    until_s = time.monotonic() + 2
    while time.monotonic() < until_s:
        if client.chat(model="probe").status_code == 200:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(answer(200, chat()), id="answer"),
        pytest.param(answer(503, {}), id="error"),
        pytest.param(stream(whole_stream("x")), id="stream"),
        pytest.param(stream([chunk("x")], end="cut"), id="broken-stream"),
        pytest.param(answer(200, b"noise"), id="noise"),
    ],
)
def test_the_slot_is_free_after_every_end(world, script):
    world.channel("a", script)
    world.channel("b", GOOD, model_names=["probe"])
    limit(world, concurrency=1)
    client = world.ready()

    client.chat(stream=True)

    assert free_slots(client)


@pytest.mark.parametrize("script", [silent(), stream([chunk("x")], end="stall")])
def test_the_slot_is_free_after_a_hang_up(world, script):
    world.channel("a", script)
    world.channel("b", GOOD, model_names=["probe"])
    limit(world, concurrency=1)
    client = world.ready()
    body = {"model": "m", "messages": [], "stream": True}

    def ask():
        with client.http.stream("POST", "/v1/chat/completions", json=body, timeout=0.3) as got:
            for _ in got.iter_raw():
                return

    thread = threading.Thread(target=lambda: _quietly(ask))
    thread.start()
    while not world.upstream.seen:
        time.sleep(0.01)
    thread.join()

    assert free_slots(client)


def _quietly(work):
    with contextlib.suppress(httpx.HTTPError):
        work()


def test_the_slot_lives_as_long_as_the_stream(world):
    gate = Gate()
    world.channel("a", stream([*whole_stream("x")], gate=gate))
    world.channel("b", GOOD, model_names=["probe"])
    limit(world, concurrency=1)
    client = world.ready()
    body = {"model": "m", "messages": [], "stream": True}

    gate.open()
    with client.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert client.chat(model="probe").status_code == 429
        for _ in range(10):
            gate.open()
        response.read()

    assert free_slots(client)


# -- channels and keys ---------------------------------------------------------------------


def test_a_full_channel_is_passed_over_at_no_cost(world):
    world.channel("a", GOOD, priority=9, limits={"rpm": 2})
    world.channel("b", GOOD)
    client = world.ready()

    assert statuses(client, 5) == [200] * 5
    assert world.upstream.names() == ["a", "a", "b", "b", "b"]


def test_a_full_key_gives_way_to_another(world):
    from channels_app.models import ChannelKey
    from channels_app.services import channel_key_add

    channel = world.channel("a", GOOD, key_mode="polling")
    ChannelKey.objects.filter(channel=channel).update(limits={"rpm": 1})
    channel_key_add(channel=channel, value="sk-second-0123456789abcdef")
    world.relay.rebuild()
    client = world.ready()

    assert statuses(client, 4) == [200] * 4
    sent = [seen.headers["authorization"] for seen in world.upstream.seen]
    assert sum("sk-upstream-a" in value for value in sent) == 1


def test_all_full_is_told_with_a_time(world):
    world.channel("a", GOOD, limits={"rpm": 1})
    world.options(AllParkedWaitMax=0, RetryTimes=3)
    client = world.ready()

    responses = [client.chat(), client.chat()]

    assert [r.status_code for r in responses] == [200, 429]
    assert responses[1].json()["error"]["code"] == "upstream_capacity"
    assert 1 <= int(responses[1].headers["retry-after"]) <= 60
    assert "a" not in responses[1].json()["error"]["message"].split()
    assert world.log(responses[1].headers["x-request-id"]).stop_reason == "all full"


def test_a_slot_that_becomes_free_is_waited_for(world):
    gate = Gate()
    world.channel("a", held(GOOD, gate), GOOD, limits={"concurrency": 1})
    client = world.ready()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.chat)
        while not world.upstream.seen:
            time.sleep(0.01)
        second = pool.submit(client.chat)
        time.sleep(0.1)
        assert not second.done()
        gate.open()
        assert first.result().status_code == second.result().status_code == 200


def test_a_failure_of_its_own_stands_before_full_channels(world):
    world.channel("a", error(503), priority=9)
    world.channel("b", GOOD, limits={"rpm": 1})
    world.options(AllParkedWaitMax=0, RetryTimes=1)
    client = world.ready()

    assert statuses(client, 2) == [200, 503]


def test_a_channels_tokens_are_corrected(world):
    world.channel("a", GOOD, limits={"tpm": 150})
    world.options(AllParkedWaitMax=0)
    client = world.ready()

    assert statuses(client, 5, max_tokens=100) == [200] * 5


def test_a_token_of_staff_is_limited_by_its_channel_too(world):
    world.channel("a", GOOD, limits={"rpm": 1})
    world.options(AllParkedWaitMax=0)
    world.token.specific_channel = "a"
    world.token.save()
    world.user.is_staff = True
    world.user.save()

    assert statuses(world.ready(), 2) == [200, 429]


def test_a_request_that_found_all_channels_full_costs_its_token_nothing(world):
    world.channel("a", GOOD, limits={"rpm": 1})
    world.options(AllParkedWaitMax=0)
    limit(world, rpm=3)
    client = world.ready()

    assert statuses(client, 6) == [200, 429, 429, 429, 429, 429]
    assert client.chat().json()["error"]["code"] == "upstream_capacity"


def test_an_aborted_request_keeps_its_estimate(world):
    """Nobody knows what the upstream spent on it."""
    world.channel("a", silent())
    world.channel("b", GOOD, model_names=["probe"])
    limit(world, tpm=500)
    client = world.ready()

    with contextlib.suppress(httpx.HTTPError):
        client.http.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": [], "max_tokens": 400},
            timeout=0.2,
        )

    left = int(client.chat(model="probe").headers["x-ratelimit-remaining-tokens"])
    assert left < 100
