"""POST /v1/messages/count_tokens: how long a message would be."""

from __future__ import annotations

import json

import pytest

from tests.conftest import WIRE_DIR
from tests.support import anthropic as a
from tests.support.anthropic import assert_told
from tests.support.upstream import answer, chat

BODY = b'{"model":  "m", "messages": [ ], "stream": true, "max_tokens": 5}'


def channel(world, name, *actions, **fields):
    return world.channel(name, *actions, **{"provider": "anthropic", **fields})


def ask(world, body=BODY):
    return world.ready().http.post("/v1/messages/count_tokens?beta=true", content=body)


@pytest.mark.parametrize("count", [0, 2095])
def test_a_count_passes_through_untouched(world, count):
    """It is no empty answer, whatever it says, and never a stream."""
    told = b'{ "input_tokens":%d }' % count
    channel(world, "a", answer(200, told), priority=2)
    channel(world, "b", answer(200, told), priority=1)
    world.options(RetryTimes=1)

    response = ask(world)

    assert (response.status_code, response.content) == (200, told)
    assert response.headers["request-id"] == response.headers["x-request-id"]
    [seen] = world.upstream.seen
    assert (seen.target, seen.body) == ("/a/v1/messages/count_tokens?beta=true", BODY)
    assert seen.headers["accept"] == "application/json"
    log = world.log(response.headers["x-request-id"])
    assert (log.endpoint, log.outcome) == ("POST /v1/messages/count_tokens", "ok")
    assert not log.is_stream


def test_a_mapped_model_is_asked_for(world):
    channel(world, "a", answer(200, {"input_tokens": 1}), model_mapping={"m": "other"})

    ask(world)

    assert world.upstream.seen[0].json["model"] == "other"


def test_only_channels_that_speak_it_are_asked(world):
    world.channel("openai", answer(200, chat()), priority=9)
    channel(world, "anthropic", answer(200, {"input_tokens": 1}), priority=1)

    assert ask(world).json() == {"input_tokens": 1}
    assert world.upstream.names() == ["anthropic"]


def test_errors_have_the_form_of_the_dialect(world):
    channel(world, "a", a.error(429, "slow", type_="rate_limit_error"))
    http = world.ready().http

    assert assert_told(ask(world), 429, "rate_limit_error") == "slow"
    assert_told(ask(world, b"{}"), 400, "invalid_request_error", "invalid_request")
    wrong = http.get("/v1/messages/count_tokens")
    assert_told(wrong, 405, "invalid_request_error", "method_not_allowed")


def test_an_error_object_or_noise_in_a_200_is_a_failure(world):
    channel(world, "a", answer(200, a.problem(type_="overloaded_error")), priority=3)
    channel(world, "b", answer(200, b"<html>"), priority=2)
    channel(world, "c", answer(200, {"input_tokens": 1}), priority=1)
    world.options(RetryTimes=2)

    assert ask(world).json() == {"input_tokens": 1}
    assert world.upstream.names() == ["a", "b", "c"]


@pytest.mark.wire
def test_a_recorded_error(world, wire_dir):
    path = WIRE_DIR / "recordings/anthropic__messages-count_tokens__err404__01.json"
    recorded = json.loads(path.read_text())["response"]["body"]
    channel(world, "a", answer(404, recorded.encode()))

    told = assert_told(ask(world), 404, "not_found_error")

    assert told == json.loads(recorded)["error"]["message"]


def test_the_simulated_upstream_counts_too(world):
    world.channel("s", provider="simulated", base_url="")

    assert ask(world).json() == {"input_tokens": 8}
