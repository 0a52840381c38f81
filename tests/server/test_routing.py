"""Routing and retries through the real server: order of attempts, budget, what ends."""

from __future__ import annotations

import collections
import time

import pytest

from tests.support.upstream import answer, chat, error, reset, silent


def test_an_answer_passes_through_untouched(world):
    """The body is the upstream's own, byte for byte, and so is the request's."""
    odd = b'{ "choices":[{"message":{"content":"\xc3\xa9"},"finish_reason":"stop"}],\n"x": 1e2}'
    world.channel("a", answer(200, odd))
    body = b'{"model":  "m", "messages": [], "unknown": [1.0, null], "n": 1}'

    response = world.ready().post(body)

    assert response.status_code == 200
    assert response.content == odd
    assert world.upstream.seen[0].body == body
    assert world.upstream.seen[0].target == "/a/v1/chat/completions"
    assert world.upstream.seen[0].headers["authorization"].startswith("Bearer sk-upstream-a")
    assert response.headers["x-relay-attempts"] == "1"
    assert len(response.headers["x-request-id"]) == 32


@pytest.mark.parametrize("retries", range(5))
def test_attempts_follow_the_tiers(world, retries):
    """The table of spec 01 section 4: one tier an attempt, then the last one repeats."""
    tiers = {"a": 100, "b": 100, "c": 50, "d": 10, "e": 10}
    for name, priority in tiers.items():
        world.channel(name, error(500), priority=priority)
    world.options(RetryTimes=retries)

    response = world.ready().chat()

    want = [100, 50, 10, 10, 10][: retries + 1]
    assert response.status_code == 500
    assert [tiers[name] for name in world.upstream.names()] == want
    assert response.headers["x-relay-attempts"] == str(retries + 1)


def test_failover_answers_and_is_logged(world):
    first = world.channel("a", error(503), priority=10)
    second = world.channel("b", answer(200, chat()), priority=5)
    world.options(RetryTimes=3)

    response = world.ready().chat()

    assert response.status_code == 200
    assert response.json()["model"] == "m-upstream"
    log = world.log(response.headers["x-request-id"])
    assert log.chain == f"{first.pk}->{second.pk}"
    assert (log.status, log.outcome, log.request_model) == (200, "ok", "m")
    assert (log.response_model, log.input_tokens, log.output_tokens) == ("m-upstream", 3, 2)
    rows = list(log.attempts.values_list("number", "channel_name", "status", "failure_class"))
    assert rows == [(1, "a", 503, "SERVER"), (2, "b", 200, "")]


@pytest.mark.parametrize(
    ("status", "attempts"),
    [
        (301, 2), (400, 1), (401, 2), (402, 2), (403, 2), (404, 2), (408, 1), (413, 2),
        (422, 2), (429, 2), (500, 2), (502, 2), (503, 2), (504, 1), (524, 1), (529, 2),
    ],
)  # fmt: skip
def test_statuses_that_are_tried_again(world, status, attempts):
    """Defaults of AutomaticRetryStatusCodes, through the real server."""
    world.channel("a", error(status, "fault here"), priority=2)
    world.channel("b", error(status, "fault here"), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert len(world.upstream.seen) == attempts
    assert response.status_code == status
    message = response.json()["error"]["message"]
    assert message == f"fault here (request id: {response.headers['x-request-id']})"
    assert response.json()["error"]["type"] == "upstream_type"


def test_weights_share_the_traffic(world):
    world.channel("a", answer(200, chat()), weight=70)
    world.channel("b", answer(200, chat()), weight=30)
    world.channel("c", answer(200, chat()), weight=0)
    client = world.ready()

    for _ in range(600):
        client.chat()

    counts = collections.Counter(world.upstream.names())
    assert counts["c"] == 0
    assert 0.6 < counts["a"] / 600 < 0.8


def test_a_lone_channel_is_asked_again_after_a_pause(world):
    world.channel("a", error(500), answer(200, chat()))
    world.options(RetryTimes=1)

    response = world.ready().chat()

    first, second = world.upstream.seen
    assert response.status_code == 200
    assert second.at_s - first.at_s >= 0.3


def test_a_long_retry_after_is_not_waited_out(world):
    world.channel("a", error(429, headers={"Retry-After": "30"}))
    world.options(RetryTimes=3)

    response = world.ready().chat()

    assert response.status_code == 429
    assert response.headers["retry-after"] == "30"
    assert len(world.upstream.seen) == 1


def test_a_very_long_retry_after_tells_sdks_not_to_retry(world):
    world.channel("a", error(429, headers={"Retry-After": "7200"}))

    response = world.ready().chat()

    assert "retry-after" not in response.headers
    assert response.headers["x-should-retry"] == "false"


def test_a_published_wait_is_kept(world):
    world.channel("a", error(429, headers={"Retry-After": "1"}), answer(200, chat()))
    world.options(RetryTimes=1)

    response = world.ready().chat()

    first, second = world.upstream.seen
    assert response.status_code == 200
    assert 0.95 <= second.at_s - first.at_s < 2


def test_no_answer_at_all_is_502(world):
    world.channel("a", reset(), priority=2)
    world.channel("b", priority=1, base_url="http://no-such-host.invalid/v1")
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_unreachable"
    assert response.headers["x-relay-attempts"] == "2"
    log = world.log(response.headers["x-request-id"])
    assert [a.failure_class for a in log.attempts.all()] == ["TRANSPORT", "TRANSPORT"]
    assert log.message.startswith("no upstream gave an answer (2 attempts): ConnectError: ")


def test_channels_that_nothing_can_be_sent_to_are_told_as_such_without_names(world):
    world.channel("planted-name").keys.update(status="disabled")

    response = world.ready().chat()

    problem = response.json()["error"]
    assert (response.status_code, problem["code"]) == (502, "upstream_unreachable")
    assert problem["message"].startswith("nothing could be sent to an upstream: ")
    assert "(1 attempt)" in problem["message"]
    assert "planted" not in response.text
    attempt = world.log(response.headers["x-request-id"]).attempts.get()
    assert attempt.upstream_code == "channel:no_available_key"


def test_one_attempt_that_was_sent_is_counted_in_the_singular(world):
    world.channel("a", reset())

    assert "no upstream gave an answer (1 attempt)" in world.ready().chat().text


def test_a_time_limit_of_ours_is_504_and_not_repeated(world):
    world.channel("a", silent(), timeouts={"response": 0.3})
    world.options(RetryTimes=3)
    began_s = time.monotonic()

    response = world.ready().chat()

    assert response.status_code == 504
    assert response.json()["error"]["code"] == "upstream_timeout"
    assert len(world.upstream.seen) == 1
    assert time.monotonic() - began_s < 3
    assert world.upstream.seen[0].closed.wait(2)


def test_the_true_error_is_told_not_a_later_silence(world):
    world.channel("a", error(503, "busy"), priority=2)
    world.channel("b", reset(), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 503
    assert response.json()["error"]["message"].startswith("busy (request id: ")


def test_status_code_mapping_decides_retry_and_answer(world):
    world.channel("a", error(404, "x"), priority=2, status_code_mapping={"404": 400})
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 400
    assert world.upstream.names() == ["a"]


def test_an_error_object_in_a_200_is_a_failure(world):
    world.channel("a", answer(200, {"error": {"message": "no", "code": 429}}), priority=2)
    world.channel("b", answer(200, chat("fine")), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.json()["choices"][0]["message"]["content"] == "fine"


def test_an_empty_answer_is_tried_again_then_passed_on(world):
    empty = chat("")
    empty["usage"]["completion_tokens"] = 0
    world.channel("a", answer(200, empty), priority=2)
    world.channel("b", answer(200, empty), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert world.upstream.names() == ["a", "b"]
    assert response.status_code == 200
    assert response.json() == empty


def test_a_channel_without_keys_is_passed_over(world):
    world.channel("a", answer(200, chat()), priority=2).keys.all().delete()
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.status_code == 200
    log = world.log(response.headers["x-request-id"])
    assert log.attempts.get(number=1).upstream_code == "channel:no_available_key"


def test_an_idle_connection_closed_by_the_peer_is_no_failure(world):
    """The request goes out once more on a fresh connection; no attempt is used up."""
    world.channel("a", answer(200, chat()))
    client = world.ready()
    assert client.chat().status_code == 200
    world.upstream.close_idle()

    response = client.chat()

    assert response.status_code == 200
    assert response.headers["x-relay-attempts"] == "1"


def test_a_closed_idle_connection_of_the_second_channel_is_no_failure_either(world):
    world.channel("a", answer(500, b"{}"), priority=2)
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=1)
    client = world.ready()
    assert client.chat().status_code == 200
    world.upstream.close_idle()

    response = client.chat()

    assert response.status_code == 200
    assert response.headers["x-relay-attempts"] == "2"


def test_a_same_channel_retry_goes_out_on_a_connection_of_its_own(world):
    """No idle connection that the peer has closed can use it up, or be asked twice for it."""
    world.channel("a", answer(200, chat()))
    world.options(RetryTimes=0, SameChannelRetries=1)
    client = world.ready()
    client.chat()
    world.upstream.script("a", answer(500, b"{}"), answer(200, chat()))

    response = client.chat()

    assert response.status_code == 200
    assert len(world.upstream.seen) == 3
    first, second, third = (seen.connection for seen in world.upstream.seen)
    assert third not in (first, second)


def test_a_fresh_connection_that_breaks_is_one_attempt(world):
    world.channel("a", reset())
    world.upstream.close_idle()  # or a used connection of another test serves this one

    response = world.ready().chat()

    assert response.status_code == 502
    assert len(world.upstream.seen) == 1


def test_keys_in_turn(world):
    from channels_app.services import channel_key_add

    channel = world.channel("a", answer(200, chat()), key_mode="polling")
    channel_key_add(channel=channel, value="sk-second-0123456789")
    client = world.ready()

    for _ in range(4):
        client.chat()

    keys = [seen.headers["authorization"] for seen in world.upstream.seen]
    assert keys[0] != keys[1]
    assert keys[:2] == keys[2:]


def test_secrets_of_the_channel_are_not_told(world):
    key = "sk-upstream-a-0123456789"
    world.channel("a", error(401, f"wrong key {key} at https://u:p4ss@host/?key=abcdefgh"))

    response = world.ready().chat()

    assert response.status_code == 401
    assert key not in response.text
    assert "p4ss" not in response.text
    assert "abcdefgh" not in response.text
    log = world.log(response.headers["x-request-id"])
    assert key not in log.message + log.attempts.get().message
