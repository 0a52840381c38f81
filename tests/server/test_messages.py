"""POST /v1/messages through the real server: whole answers and streams."""

from __future__ import annotations

import httpx
import pytest

from tests.support import anthropic as a
from tests.support.anthropic import assert_told, events_of
from tests.support.upstream import Gate, answer, chat, stream

WHOLE = a.whole_stream("Hel", "lo")


def channel(world, name, *actions, **fields):
    return world.channel(name, *actions, **{"provider": "anthropic", **fields})


def ask(world, **fields):
    return world.ready().messages(stream=True, **fields)


# -- whole answers -----------------------------------------------------------------


def test_an_answer_passes_through_untouched(world):
    odd = b'{ "content":[{"type":"text","text":"\xc3\xa9"}],\n"stop_reason": null, "n":1e2}'
    channel(world, "a", answer(200, odd))
    body = b'{"model":  "m", "messages": [ ], "unknown": [1.0, null], "max_tokens": 1}'

    response = world.ready().http.post("/v1/messages?beta=true&key=&x=%20", content=body)

    assert response.status_code == 200
    assert response.content == odd
    assert response.headers["request-id"] == response.headers["x-request-id"]
    [seen] = world.upstream.seen
    assert seen.body == body
    assert seen.target == "/a/v1/messages?beta=true&x=%20"
    assert seen.headers["x-api-key"] == "sk-upstream-a-0123456789"
    assert "authorization" not in seen.headers
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["anthropic-version"] == "2023-06-01"


def test_headers_of_the_dialect_go_upstream_and_no_others(world):
    channel(world, "a", answer(200, a.message()))
    headers = {
        "anthropic-version": "2026-10-21",
        "anthropic-beta": "files-api-2025-04-14,x",
        "openai-beta": "assistants=v2",
        "x-stainless-lang": "python",
        "accept-encoding": "gzip",
        "cookie": "a=b",
    }

    world.ready().http.post("/v1/messages", json={"model": "m", "messages": []}, headers=headers)

    seen = world.upstream.seen[0].headers
    assert seen["anthropic-version"] == "2026-10-21"
    assert seen["anthropic-beta"] == "files-api-2025-04-14,x"
    assert seen["accept-encoding"] == "identity"
    assert not seen.keys() & {"openai-beta", "x-stainless-lang", "cookie"}


def test_an_openai_upstream_is_not_bothered_with_them(world):
    world.channel("a", answer(200, chat()))
    headers = {"anthropic-version": "x", "anthropic-beta": "y", "openai-beta": "z"}

    world.ready().post(b'{"model": "m", "messages": []}', headers=headers)

    seen = world.upstream.seen[0].headers
    assert not seen.keys() & {"anthropic-version", "anthropic-beta", "x-api-key"}
    assert seen["openai-beta"] == "z"


def test_a_header_that_can_not_be_sent_is_left_out(world):
    """It is no fault of the channel's key."""
    channel(world, "a", answer(200, a.message()))

    response = world.ready().http.post(
        "/v1/messages",
        json={"model": "m", "messages": []},
        headers={b"anthropic-beta": b"caf\xc3\xa9"},
    )

    assert response.status_code == 200
    assert "anthropic-beta" not in world.upstream.seen[0].headers


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_tokens_are_taken_from_both_headers(world, header):
    channel(world, "a", answer(200, a.message()))
    world.ready()
    value = f"Bearer {world.key}" if header == "Authorization" else world.key

    response = httpx.post(
        f"{world.relay.url}/v1/messages",
        json={"model": "m", "messages": []},
        headers={header: value},
    )

    assert response.status_code == 200
    assert world.key not in str(world.upstream.seen[0].headers)


def test_failover_answers_and_is_logged(world):
    first = channel(world, "a", a.error(529, type_="overloaded_error"), priority=2)
    second = channel(world, "b", answer(200, a.message()), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().messages()

    assert response.json() == a.message()
    log = world.log(response.headers["x-request-id"])
    assert log.chain == f"{first.pk}->{second.pk}"
    assert (log.endpoint, log.outcome) == ("POST /v1/messages", "ok")
    assert (log.response_model, log.input_tokens, log.output_tokens) == ("m-upstream", 3, 2)
    assert [row.failure_class for row in log.attempts.order_by("number")] == ["SERVER", ""]


def test_an_error_object_in_a_200_is_a_failure(world):
    channel(world, "a", answer(200, a.problem(type_="overloaded_error")), priority=2)
    channel(world, "b", answer(200, a.message("fine")), priority=1)
    world.options(RetryTimes=1)

    assert world.ready().messages().json()["content"][0]["text"] == "fine"


@pytest.mark.parametrize(
    ("type_", "status", "told"),
    [
        ("invalid_request_error", 400, "invalid_request_error"),
        ("authentication_error", 401, "authentication_error"),
        ("permission_error", 401, "permission_error"),
        ("not_found_error", 400, "not_found_error"),
        ("billing_error", 429, "billing_error"),
        ("rate_limit_error", 429, "rate_limit_error"),
        ("api_error", 502, "api_error"),
        ("overloaded_error", 502, "overloaded_error"),
        ("of_elsewhere", 502, "api_error"),
    ],
)
def test_an_error_object_in_a_200_has_the_status_of_its_class(world, type_, status, told):
    channel(world, "a", answer(200, a.problem("what happened", type_=type_)))

    assert assert_told(world.ready().messages(), status, told) == "what happened"


def test_an_empty_answer_is_tried_again_then_passed_on(world):
    empty = a.message(content=[], usage={"input_tokens": 3, "output_tokens": 0})
    channel(world, "a", answer(200, empty), priority=2)
    channel(world, "b", answer(200, empty), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().messages()

    assert world.upstream.names() == ["a", "b"]
    assert (response.status_code, response.json()) == (200, empty)


def test_a_refusal_is_an_answer(world):
    refusal = a.message(content=[], stop_reason="refusal", usage=None)
    channel(world, "a", answer(200, refusal), priority=2)
    channel(world, "b", answer(200, a.message()), priority=1)
    world.options(RetryTimes=1)

    assert world.ready().messages().json() == refusal


# -- streams -----------------------------------------------------------------------


def test_a_stream_passes_through_untouched(world):
    channel(world, "a", stream(WHOLE, headers={"Content-Type": "text/event-stream; charset=utf-8"}))

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"]
    log = world.log(response.headers["x-request-id"])
    assert (log.outcome, log.response_model) == ("ok", "m-upstream")
    assert (log.input_tokens, log.output_tokens) == (3, 2)


def test_nothing_is_sent_before_something_is_said(world):
    """The beginning, an empty block and pings say nothing; a break there costs nothing."""
    nothing = [a.start(), a.block(), a.PING, a.text("")]
    channel(world, "a", stream(nothing, end="cut"), priority=2)
    channel(world, "b", stream(WHOLE), priority=1)
    world.options(RetryTimes=1)

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert world.upstream.names() == ["a", "b"]


@pytest.mark.parametrize(
    "meaningful",
    [
        a.text("x"),
        a.block(type="tool_use", id="t", name="f", input={}),
        a.event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "x"}),
    ],
)
def test_the_first_meaningful_event_commits(world, meaningful):
    gate = Gate()
    pieces = [a.start() + a.block() + meaningful, a.block_stop(), a.finish() + a.STOP]
    channel(world, "a", stream(pieces, gate=gate))
    client = world.ready()

    document = {"model": "m", "messages": [], "stream": True}
    with client.http.stream("POST", "/v1/messages", json=document) as response:
        parts = response.iter_raw()
        assert next(parts) == pieces[0]
        for _ in pieces:
            gate.open()
        assert b"".join(parts) == b"".join(pieces[1:])


def test_an_error_event_at_first_is_a_failed_attempt(world):
    channel(world, "a", stream([a.start(), a.PING, a.error_event()]), priority=2)
    channel(world, "b", stream(WHOLE), priority=1)
    world.options(RetryTimes=1)

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    log = world.log(response.headers["x-request-id"])
    assert log.attempts.get(number=1).failure_class == "SERVER"


def test_an_error_event_at_first_is_told_as_an_error_answer(world):
    channel(world, "a", stream([a.start(), a.error_event("slow down", type_="rate_limit_error")]))

    assert assert_told(ask(world), 429, "rate_limit_error") == "slow down"


@pytest.mark.parametrize("end", ["cut", "reset", "proper", "error event"])
def test_a_break_in_the_middle_ends_in_an_error_event(world, end):
    said = [a.start(), a.block(), a.text("Hel")]
    more = [a.error_event()] if end == "error event" else []
    channel(world, "a", stream(said + more, end="proper" if more else end))

    response = ask(world)

    request_id = response.headers["x-request-id"]
    *before, (name, last) = events_of(response)
    assert response.content.startswith(b"".join(said))
    assert response.content.endswith(b"\n\n")
    assert len(before) == len(said)
    assert name == last["type"] == "error"
    assert last["error"]["type"] == ("overloaded_error" if more else "api_error")
    assert last["error"]["details"] == {"error_code": "stream_interrupted"}
    assert last["request_id"] == request_id
    assert request_id in last["error"]["message"]
    assert b"message_stop" not in response.content
    assert world.log(request_id).outcome == "STREAM_INTERRUPTED"


@pytest.mark.parametrize("end", ["cut", "reset", "error event", "stall"])
def test_a_stop_reason_without_a_clean_end_is_no_proper_end(world, end):
    *said, _ = WHOLE
    more = [a.error_event()] if end == "error event" else []
    channel(
        world, "a", stream([*said, *more], end="proper" if more else end), timeouts={"idle": 0.3}
    )

    response = ask(world)

    assert b"message_stop" not in response.content
    assert events_of(response)[-1][0] == "error"
    assert world.log(response.headers["x-request-id"]).outcome == "STREAM_INTERRUPTED"


def test_a_missing_stop_is_added_after_a_stop_reason(world):
    *said, _ = WHOLE
    channel(world, "a", stream(said))

    response = ask(world)

    added = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    assert response.content == b"".join(said) + added
    assert world.log(response.headers["x-request-id"]).outcome == "ok"


def test_a_stop_without_a_stop_reason_is_a_proper_end(world):
    pieces = [a.start(), a.block(), a.text("x"), a.block_stop(), a.STOP]
    channel(world, "a", stream(pieces))

    assert ask(world).content == b"".join(pieces)


@pytest.mark.parametrize(
    "pieces",
    [
        [a.start(), a.finish("end_turn", output_tokens=0), a.STOP],
        [a.start(), a.finish("end_turn", output_tokens=0)],
        [a.start(), a.block(), a.block_stop(), a.finish(output_tokens=0), a.STOP],
        [a.start(), a.STOP],
    ],
)
def test_an_empty_stream_is_tried_again_then_passed_on(world, pieces):
    channel(world, "a", stream(pieces), priority=2)
    channel(world, "b", stream(pieces), priority=1)
    world.options(RetryTimes=1)

    response = ask(world)

    assert world.upstream.names() == ["a", "b"]
    assert response.status_code == 200
    assert response.content.startswith(b"".join(pieces[:2]))
    assert events_of(response)[-1][0] == "message_stop"


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "model_context_window_exceeded"])
def test_a_stream_cut_short_before_anything_was_said_is_an_answer(world, reason):
    pieces = [a.start(), a.PING, a.finish(reason, output_tokens=0), a.STOP]
    channel(world, "a", stream(pieces), priority=2)
    channel(world, "b", stream(WHOLE), priority=1)
    world.options(RetryTimes=1)

    assert ask(world).content == b"".join(pieces)


def test_a_malformed_event_is_dropped_and_unknown_ones_are_not(world):
    new = a.event("of_a_newer_api", x=[1])
    broken = b'event: content_block_delta\ndata: {"type": "content_bl\n\n'
    channel(world, "a", stream([*WHOLE[:4], broken, new, *WHOLE[4:]]))

    assert ask(world).content == b"".join([*WHOLE[:4], new, *WHOLE[4:]])
