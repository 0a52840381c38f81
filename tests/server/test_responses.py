"""POST /v1/responses through the real server: whole answers, streams, failures."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.upstream import Gate, answer, error, stream
from tests.support.wire import recordings

USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 2,
    "total_tokens": 11,
}


def response(text="hello", *, status="completed", **fields):
    """A whole response."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": content}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "model": "m-upstream",
        "output": [item] if text else [],
        "usage": USAGE,
        **fields,
    }


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def delta(text):
    return event("response.output_text.delta", item_id="msg_1", delta=text)


CREATED = event("response.created", response=response("", status="in_progress", usage=None))
IN_PROGRESS = event("response.in_progress", response=response("", status="in_progress", usage=None))
ADDED = event("response.output_item.added", item={"type": "message", "content": []})
DONE = b"data: [DONE]\n\n"


def end(text="", *, kind="response.completed", **fields):
    return event(kind, response=response(text, **fields))


def failed(code="server_error", message="it broke"):
    problem = {"code": code, "message": message}
    return event("response.failed", response=response("", status="failed", error=problem))


def whole_stream(*texts):
    return [CREATED, IN_PROGRESS, ADDED, *map(delta, texts), end("".join(texts))]


def ask(world, **fields):
    return world.ready().http.post("/v1/responses", json={"model": "m", "input": "hi", **fields})


def with_fallback(world, first):
    """Make `first` the action of channel a and a good answer that of channel b."""
    world.channel("a", first, priority=2)
    world.channel("b", stream(whole_stream("from b")), priority=1)
    world.options(RetryTimes=1)


# -- whole answers -----------------------------------------------------------------


def test_an_answer_passes_through_untouched(world):
    odd = b'{ "output":[{"type":"x"}],\n "model": "\xc3\xa9", "n":1e2}'
    world.channel("a", answer(200, odd))
    body = b'{"model":  "m", "input": [ ], "unknown": [1.0, null]}'

    answered = world.ready().http.post("/v1/responses?include=x", content=body)

    assert answered.status_code == 200
    assert answered.content == odd
    [seen] = world.upstream.seen
    assert seen.body == body
    assert seen.target == "/a/v1/responses?include=x"
    assert seen.headers["accept"] == "application/json"


def test_model_and_usage_are_logged(world):
    world.channel("a", answer(200, response()))

    log = world.log(ask(world).headers["x-request-id"])

    assert (log.status, log.outcome, log.request_model) == (200, "ok", "m")
    assert (log.response_model, log.input_tokens, log.output_tokens) == ("m-upstream", 9, 2)


@pytest.mark.parametrize(
    "first",
    [
        error(500),
        answer(200, response("", status="failed", error={"code": "server_error", "message": "x"})),
        answer(200, {"error": {"message": "x"}}),
        answer(200, response("", usage=None)),
        answer(200, b"<html>busy</html>"),
    ],
    ids=["status", "failed", "error", "empty", "page"],
)
def test_a_failed_answer_is_tried_elsewhere(world, first):
    world.channel("a", first, priority=2)
    world.channel("b", answer(200, response("from b")), priority=1)
    world.options(RetryTimes=1)

    answered = ask(world)

    assert answered.json() == response("from b")
    assert answered.headers["x-relay-attempts"] == "2"


def test_a_failed_answer_is_told_by_its_error(world):
    problem = {"code": "rate_limit_exceeded", "message": "slow down"}
    world.channel("a", answer(200, response("", status="failed", error=problem)))

    answered = ask(world)

    assert answered.status_code == 429
    assert answered.json()["error"]["code"] == "rate_limit_exceeded"
    assert answered.json()["error"]["message"].startswith("slow down (request id: ")


def test_a_queued_answer_is_no_empty_one(world):
    queued = response("", status="queued", usage=None)
    world.channel("a", answer(200, queued))

    assert ask(world, background=True).json() == queued


def test_without_a_model_the_client_is_told_to_send_one(world):
    world.channel("a", answer(200, response()))

    answered = world.ready().http.post("/v1/responses", json={"prompt": {"id": "p"}})

    assert answered.status_code == 400
    assert answered.json()["error"]["param"] == "model"
    assert "the relay routes by it" in answered.json()["error"]["message"]
    assert not world.upstream.seen


# -- streams -----------------------------------------------------------------------


def test_a_stream_passes_through_byte_for_byte(world):
    world.channel("a", stream(whole_stream("Hel", "lo \u2028é")))

    answered = ask(world, stream=True)

    assert answered.content == b"".join(whole_stream("Hel", "lo \u2028é"))
    assert answered.headers["content-type"] == "text/event-stream"
    assert world.upstream.seen[0].headers["accept"] == "text/event-stream"
    log = world.log(answered.headers["x-request-id"])
    assert (log.outcome, log.response_model, log.output_tokens) == ("ok", "m-upstream", 2)


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_both_proper_ends_are_good(world, kind):
    pieces = [CREATED, delta("x"), end("x", kind=kind)]
    world.channel("a", stream(pieces))

    answered = ask(world, stream=True)

    assert answered.content == b"".join(pieces)
    assert world.log(answered.headers["x-request-id"]).outcome == "ok"


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_mark_behind_the_end_is_passed_on(world, is_apart):
    """OpenRouter's streams have one."""
    last = [end("x"), DONE] if is_apart else [end("x") + DONE]
    world.channel("a", stream([delta("x"), *last], gap_s=0.1))

    assert ask(world, stream=True).content == delta("x") + end("x") + DONE


def test_the_end_of_the_connection_is_not_waited_for(world):
    world.channel("a", stream(whole_stream("x"), end="stall"))

    began_s = time.monotonic()
    answered = ask(world, stream=True)

    assert answered.content == b"".join(whole_stream("x"))
    assert time.monotonic() - began_s < 5
    assert world.upstream.seen[0].closed.wait(2)


def test_nothing_is_shown_before_content(world):
    gate = Gate()
    pieces = [CREATED, IN_PROGRESS, ADDED]
    world.channel("a", stream([*pieces, failed()], gate=gate), priority=2)
    world.channel("b", stream(whole_stream("from b")), priority=1)
    world.options(RetryTimes=1)
    for _ in pieces:
        gate.open()

    assert ask(world, stream=True).content == b"".join(whole_stream("from b"))


@pytest.mark.parametrize(
    "pieces",
    [
        [CREATED, failed()],
        [CREATED, event("error", code="server_error", message="x", param=None)],
        [event("error", error={"code": "server_error", "message": "x"}), failed()],
        [CREATED, IN_PROGRESS],
        [CREATED, end("", usage=None)],
        [b"data: noise\n\n"],
    ],
    ids=["failed", "flat-error", "nested-error", "cut", "empty", "noise"],
)
def test_a_failure_before_content_is_tried_elsewhere(world, pieces):
    with_fallback(world, stream(pieces))

    answered = ask(world, stream=True)

    assert answered.content == b"".join(whole_stream("from b"))
    assert answered.headers["x-relay-attempts"] == "2"


@pytest.mark.parametrize(
    ("code", "status"),
    [("rate_limit_exceeded", 429), ("server_error", 502), ("context_length_exceeded", 400)],
)
def test_a_failed_stream_is_told_by_its_error(world, code, status):
    world.channel("a", stream([CREATED, failed(code, "why it broke")]))

    answered = ask(world, stream=True)

    assert answered.status_code == status
    assert answered.json()["error"]["code"] == code
    assert answered.json()["error"]["message"].startswith("why it broke (request id: ")


@pytest.mark.parametrize(
    ("last", "code", "outcome"),
    [
        ([], "stream_interrupted", "STREAM_INTERRUPTED"),
        ([failed()], "server_error", "SERVER"),
        ([event("error", message="x")], "stream_interrupted", "STREAM_INTERRUPTED"),
    ],
)
def test_a_stream_that_breaks_ends_in_an_error_of_the_dialect(world, last, code, outcome):
    world.channel("a", stream([CREATED, delta("so far"), *last], end="proper" if last else "cut"))

    answered = ask(world, stream=True)

    good = CREATED + delta("so far")
    assert answered.content.startswith(good)
    [name, data] = answered.content[len(good) :].decode().removesuffix("\n\n").split("\n")
    assert name == "event: error"
    document = json.loads(data.removeprefix("data: "))
    request_id = answered.headers["x-request-id"]
    assert (document["type"], document["code"]) == ("error", code)
    assert document["message"].endswith(f"(request id: {request_id})")
    assert document["error"]["message"] == document["message"]
    assert world.log(request_id).outcome == outcome


def test_an_error_behind_the_proper_end_changes_nothing(world):
    world.channel("a", stream([*whole_stream("x"), failed()]))

    assert ask(world, stream=True).content == b"".join(whole_stream("x"))


# -- recorded ------------------------------------------------------------------------------


@pytest.mark.wire
@pytest.mark.parametrize("recording", recordings("stream", "responses"))
def test_the_bytes_of_recorded_streams(world, recording):
    world.channel("a", recording.action)

    answered = ask(world, stream=True)

    if recording.document["features"].count("sse:errorchunk"):
        assert answered.status_code == 429
        assert answered.json()["error"]["code"] == "insufficient_quota"
    elif not recording.is_cut:
        assert answered.content == recording.body
    elif answered.status_code == 200:
        assert b"stream_interrupted" in answered.content
    else:
        assert answered.json()["error"]["code"] == "upstream_unreachable"


@pytest.mark.wire
@pytest.mark.parametrize("recording", [*recordings("json", "responses")])
def test_the_bytes_of_recorded_answers(world, recording):
    world.channel("a", recording.action)

    answered = ask(world)

    if recording.is_cut:
        assert answered.status_code == 502
    else:
        assert answered.content == recording.body
        assert answered.headers["content-type"] == recording.content_type
