"""Streams through the real server: when bytes go out, which bytes, and how it ends."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time

import pytest

from tests.support.upstream import (
    DONE,
    Gate,
    answer,
    chat,
    chunk,
    error,
    held,
    raw,
    reset,
    silent,
    stream,
    whole_stream,
)

WHOLE = whole_stream("Hel", "lo")
ROLE = chunk(role=True)
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m-upstream","choices":[],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}\n\n'
)


def ask(world, **fields):
    """Return the whole answer to a stream request."""
    return world.ready().chat(stream=True, **fields)


@contextlib.contextmanager
def opened(client):
    """Give a streamed response whose body has not been read."""
    body = {"model": "m", "messages": [], "stream": True}
    with client.http.stream("POST", "/v1/chat/completions", json=body) as response:
        yield response


def content_of(body: bytes) -> str:
    """Return the text that the chunks in `body` add up to."""
    return "".join(
        choice["delta"].get("content") or ""
        for document in documents(body)
        for choice in document.get("choices", [])
    )


def documents(body: bytes) -> list:
    lines = [line for line in body.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line[6:]) for line in lines]


def with_fallback(world, first, **fields):
    """Make `first` the action of channel a and a good stream that of channel b."""
    world.channel("a", first, priority=2, **fields)
    world.channel("b", stream(whole_stream("from b")), priority=1)
    world.options(RetryTimes=1)


def assert_broken_off(response, text: str) -> None:
    """The content so far, then one error event with the request id, and no good end."""
    body, request_id = response.content, response.headers["x-request-id"]
    errors = [d["error"] for d in documents(body) if "error" in d]
    assert response.status_code == 200
    assert content_of(body) == text
    assert len(errors) == 1
    assert errors[0]["code"] == "stream_interrupted"
    assert errors[0]["message"].endswith(f"(request id: {request_id})")
    assert set(errors[0]) == {"message", "type", "param", "code"}
    assert b"error" in body.split(b"\n\n")[-2]
    assert body.endswith(b"\n\n")
    assert b"[DONE]" not in body


# -- when --------------------------------------------------------------------------------


def test_each_chunk_arrives_before_the_next_is_sent(world):
    """The upstream sends the next one only after the client has seen the one before."""
    gate = Gate()
    pieces = [chunk(str(n)) for n in range(5)] + [chunk(finish="stop"), DONE]
    world.channel("a", stream(pieces, gate=gate))

    with opened(world.ready()) as response:
        arriving = response.iter_raw()
        for piece in pieces[:-1]:
            assert next(arriving) == piece
            gate.open()
        assert b"".join(arriving) == DONE


def test_the_end_is_not_waited_for(world):
    """After [DONE] the client is let go, even if the upstream does not end its body."""
    world.channel("a", stream(WHOLE, end="stall"))

    began_s = time.monotonic()
    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert time.monotonic() - began_s < 10
    assert world.upstream.seen[0].closed.wait(2)


@pytest.mark.parametrize("filler", [ROLE, b": PROCESSING\n\n", chunk(""), b"event: ping\n\n"])
def test_nothing_is_shown_before_content(world, filler):
    """No status, no header, while role chunks, comments and empty deltas come."""
    gate = Gate()
    world.channel("a", stream([filler, filler, *WHOLE], gate=gate))
    client = world.ready()
    shown = threading.Event()
    bodies = []

    def read():
        with opened(client) as response:
            shown.set()
            bodies.append(response.read())

    reader = threading.Thread(target=read)
    reader.start()
    gate.open()
    gate.open()  # the second filler and the role chunk of the answer
    assert not shown.wait(0.5)
    for _ in WHOLE:
        gate.open()
    reader.join(10)

    assert bodies == [filler + filler + b"".join(WHOLE)]


# -- before the commit point: another channel ---------------------------------------------


ERROR_EVENT = b'data: {"error":{"message":"busy","type":"server_error","code":null}}\n\n'


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(error(500, "first failed"), id="status"),
        pytest.param(answer(200, {"error": {"message": "x", "code": 503}}), id="json-error"),
        pytest.param(answer(200, b"<html>busy</html>"), id="not-json"),
        pytest.param(reset(), id="reset-at-once"),
        pytest.param(stream([ERROR_EVENT]), id="error-event"),
        pytest.param(stream([ROLE, b": x\n\n", ERROR_EVENT, DONE]), id="error-event-later"),
        pytest.param(stream([b"event: error\n" + ERROR_EVENT]), id="named-error-event"),
        pytest.param(stream([], end="proper"), id="ended-empty"),
        pytest.param(stream([ROLE]), id="ended-after-role"),
        pytest.param(stream([ROLE], end="cut"), id="cut"),
        pytest.param(stream([ROLE], end="reset"), id="reset"),
        pytest.param(stream([b"data: not json\n\n"]), id="only-malformed"),
        pytest.param(stream([chunk("half")[:-20]], end="cut"), id="cut-inside-first-content"),
        pytest.param(stream([chunk(role=True)[:30]]), id="ended-inside-an-event"),
    ],
)
def test_a_failure_before_content_is_not_shown(world, first):
    with_fallback(world, first)

    response = ask(world)

    assert response.status_code == 200
    assert response.content == b"".join(whole_stream("from b"))
    assert response.headers["x-relay-attempts"] == "2"
    # A pooled connection that breaks before an answer is tried once more on a fresh one.
    assert list(dict.fromkeys(world.upstream.names())) == ["a", "b"]


@pytest.mark.parametrize("limit", ["first_byte", "first_token"])
def test_limits_before_content_fail_over(world, limit):
    action = silent() if limit == "first_byte" else stream([ROLE, b": x\n\n"], end="stall")
    with_fallback(world, action, timeouts={limit: 0.3})

    response = ask(world)

    assert response.content == b"".join(whole_stream("from b"))
    assert world.upstream.seen[0].closed.wait(2)
    log = world.log(response.headers["x-request-id"])
    assert log.attempts.get(number=1).failure_class == "TIMEOUT"


def test_comments_do_not_put_off_the_first_token_limit(world):
    pings = [b": ping\n\n"] * 200
    with_fallback(world, stream(pings, gap_s=0.05), timeouts={"first_token": 0.4})

    assert ask(world).content == b"".join(whole_stream("from b"))


def test_all_attempts_failing_tells_the_upstreams_error(world):
    world.channel("a", stream([ROLE, ERROR_EVENT]))

    response = ask(world)

    assert response.status_code == 502
    assert response.headers["content-type"] == "application/json"
    request_id = response.headers["x-request-id"]
    assert response.json()["error"]["message"] == f"busy (request id: {request_id})"


def test_an_error_event_with_a_status_of_its_own(world):
    event = b'data: {"error":{"message":"slow down","code":"rate_limit_exceeded"}}\n\n'
    world.channel("a", stream([event]))

    assert ask(world).status_code == 429


def test_an_empty_stream_is_tried_again_then_passed_on(world):
    empty = [ROLE, chunk(finish="stop"), DONE]
    for name in ("a", "b"):
        world.channel(name, stream(empty))
    world.options(RetryTimes=1)

    response = ask(world)

    assert sorted(world.upstream.names()) == ["a", "b"]
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.content == b"".join(empty)


def test_an_empty_stream_is_replaced_by_one_with_content(world):
    with_fallback(world, stream([ROLE, chunk(finish="stop"), DONE]))

    assert ask(world).content == b"".join(whole_stream("from b"))


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_cut_short_answer_without_content_is_an_answer(world, reason):
    pieces = [ROLE, chunk(finish=reason), DONE]
    with_fallback(world, stream(pieces))

    assert ask(world).content == b"".join(pieces)
    assert world.upstream.names() == ["a"]


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
    ],
)
def test_more_than_text_is_content(world, delta):
    document = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    pieces = [b"data: " + json.dumps(document).encode() + b"\n\n", chunk(finish="stop"), DONE]
    with_fallback(world, stream(pieces))

    assert ask(world).content == b"".join(pieces)


# -- after the commit point ----------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(stream([ROLE, chunk("so "), chunk("far")], end="cut"), id="cut"),
        pytest.param(stream([ROLE, chunk("so "), chunk("far")], end="reset"), id="reset"),
        pytest.param(stream([ROLE, chunk("so "), chunk("far")], end="stall"), id="stall"),
        pytest.param(stream([ROLE, chunk("so "), chunk("far")]), id="ended-unfinished"),
        pytest.param(stream([ROLE, chunk("so far"), chunk("lost")[:40]]), id="half-an-event"),
        pytest.param(stream([ROLE, chunk("so far"), ERROR_EVENT, DONE]), id="error-event"),
        pytest.param(stream([chunk("so far") + ERROR_EVENT + chunk("x")]), id="same-packet"),
        pytest.param(stream([chunk("so far"), b"event: error\ndata: {}\n\n"]), id="named"),
    ],
)
def test_a_stream_that_breaks_ends_in_an_error_event(world, first):
    with_fallback(world, first, timeouts={"idle": 0.3})

    response = ask(world)

    assert_broken_off(response, "so far")
    assert world.upstream.names() == ["a"]
    log = world.log(response.headers["x-request-id"])
    assert (log.status, log.outcome) == (200, "STREAM_INTERRUPTED")


def test_a_total_limit_cuts_a_stream_that_goes_on(world):
    world.channel("a", stream([chunk("x")] * 200, gap_s=0.05), timeouts={"total": 0.5})

    response = ask(world)

    text = content_of(response.content)
    assert_broken_off(response, text)
    assert 1 <= len(text) < 100


def test_done_without_a_finish_is_no_proper_end(world):
    world.channel("a", stream([chunk("x"), DONE]))

    response = ask(world)

    assert_broken_off(response, "x")
    assert DONE not in response.content


def test_a_finish_that_names_an_error_is_one(world):
    world.channel("a", stream([chunk("x"), chunk(finish="error"), DONE]))

    response = ask(world)

    assert_broken_off(response, "x")
    assert DONE not in response.content


def of_choice(index, piece):
    return piece.replace(b'"index": 0', b'"index": %d' % index)


def test_every_choice_needs_an_end(world):
    begun = [chunk("x"), of_choice(1, chunk("y")), chunk(finish="stop")]
    world.channel("a", stream([*begun, DONE]), stream([*begun, of_choice(1, chunk(finish="stop"))]))

    first, second = ask(world), ask(world)

    assert_broken_off(first, "xy")
    assert second.content.endswith(DONE)
    assert world.log(second.headers["x-request-id"]).outcome == "ok"


def test_what_is_no_text_is_dropped(world):
    bad = chunk("x").replace(b"x", b"\xff\xfe")
    assert bad != chunk("x")
    world.channel("a", stream([chunk("a"), bad, chunk("b"), chunk(finish="stop"), DONE]))

    response = ask(world)

    assert b"\xff" not in response.content
    assert content_of(response.content) == "ab"


def test_a_stream_that_stays_open_after_its_usage_is_ended(world):
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    world.channel("a", stream([chunk("x"), chunk(finish="stop"), usage], end="stall"))

    began_s = time.monotonic()
    response = ask(world, stream_options={"include_usage": True})

    assert response.content.endswith(usage + DONE)
    assert time.monotonic() - began_s < 10  # the idle limit is 30 s


def test_the_attempt_of_a_broken_stream_says_so(world):
    world.channel("a", stream([ROLE, chunk("so far")], end="cut", headers={"x-request-id": "up-1"}))

    log = world.log(ask(world).headers["x-request-id"])

    attempt = log.attempts.get()
    assert (attempt.failure_class, attempt.decision) == ("STREAM_INTERRUPTED", "answer begun")
    assert attempt.upstream_request_id == "up-1"


def test_a_missing_done_is_added(world):
    world.channel("a", stream(WHOLE[:-1]))

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert world.log(response.headers["x-request-id"]).outcome == "ok"


@pytest.mark.parametrize("end", ["reset", "cut", "stall"])
def test_a_break_after_the_finish_is_a_proper_end(world, end):
    world.channel("a", stream(WHOLE[:-1], end=end), timeouts={"idle": 0.3})

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert world.log(response.headers["x-request-id"]).outcome == "ok"


@pytest.mark.parametrize("asked", [True, False])
def test_usage_after_the_finish_is_passed_on_to_those_who_asked(world, asked):
    pieces = [chunk("x"), chunk(finish="stop"), USAGE, DONE]
    world.channel("a", stream(pieces))

    response = ask(world, **({"stream_options": {"include_usage": True}} if asked else {}))

    [seen] = world.upstream.seen
    assert seen.json["stream_options"] == {"include_usage": True}
    assert response.content == b"".join(pieces if asked else pieces[:2] + pieces[3:])
    log = world.log(response.headers["x-request-id"])
    assert (log.input_tokens, log.output_tokens) == (7, 9)


@pytest.mark.parametrize(
    "bad", [b"data: {broken\n\n", b"data: 5\n\n", b"data: \n\n", b'data: ["x"]\n\n']
)
def test_a_malformed_event_is_dropped(world, bad):
    world.channel("a", stream([ROLE, bad, chunk("a"), bad, chunk("b"), chunk(finish="stop"), DONE]))

    response = ask(world)

    assert response.content == b"".join([ROLE, chunk("a"), chunk("b"), chunk(finish="stop"), DONE])


# -- bytes ---------------------------------------------------------------------------------


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(WHOLE, id="plain"),
        pytest.param([b"".join(WHOLE)], id="one-packet"),
        pytest.param([crlf(piece) for piece in WHOLE], id="crlf"),
        pytest.param([piece.replace(b"\n", b"\r") for piece in WHOLE], id="cr"),
        pytest.param([b"\xef\xbb\xbf" + WHOLE[0], *WHOLE[1:]], id="byte-order-mark"),
        pytest.param([b"id: 7\nretry: 10\n" + piece for piece in WHOLE], id="other-fields"),
        pytest.param([piece.replace(b"data: ", b"data:") for piece in WHOLE], id="no-space"),
        pytest.param([b": c\n\n", *WHOLE[:2], b":\n\n", *WHOLE[2:]], id="comments"),
        pytest.param([piece + b"\n\n" for piece in WHOLE[:-1]] + [DONE], id="spare-blank-lines"),
        pytest.param([chunk("\u2028\u2029\x85\x0b"), *WHOLE], id="unicode-line-ends"),
        pytest.param(
            [chunk("x").replace(b"\\u2028", "\u2028".encode()), *WHOLE], id="escapes-kept"
        ),
        pytest.param([chunk("x" * 2**20), *WHOLE], id="one-mebibyte"),
    ],
)
def test_the_bytes_are_the_upstreams(world, pieces):
    world.channel("a", stream(pieces))

    assert ask(world).content == b"".join(pieces)


def raw_text_chunk(text: str) -> bytes:
    """A chunk whose text is UTF-8 on the wire, not escaped."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


def test_raw_line_separators_do_not_split_an_event(world):
    pieces = [raw_text_chunk("a\u2028b\u0085c"), *WHOLE]
    world.channel("a", stream(pieces))

    assert ask(world).content == b"".join(pieces)


def test_data_over_several_lines_is_one_event(world):
    document = b'data: {"choices": [\ndata: {"index": 0, "delta": {"content": "ab"}}\ndata: ]}\n\n'
    pieces = [document, chunk(finish="stop"), DONE]
    world.channel("a", stream(pieces))

    assert ask(world).content == b"".join(pieces)
    assert world.upstream.names() == ["a"]


def test_utf8_split_across_packets(world):
    piece = raw_text_chunk("\u00e9\u20ac\U0001f600")
    cuts = [piece[i : i + 1] for i in range(len(piece))]
    world.channel("a", stream([*cuts, chunk(finish="stop"), DONE], gap_s=0.002))

    response = ask(world)

    assert response.content == piece + chunk(finish="stop") + DONE
    assert content_of(response.content) == "\u00e9\u20ac\U0001f600"


@pytest.mark.parametrize("form", [bytes, crlf])
def test_one_byte_per_packet(world, form):
    whole = form(b"".join(WHOLE))
    world.channel("a", stream([whole[i : i + 1] for i in range(len(whole))], gap_s=0.001))

    response = ask(world)

    # With CR LF the blank line is complete at its CR, and [DONE] then ends the stream.
    assert response.content.removesuffix(b"\n") == whole.removesuffix(b"\n")


@pytest.mark.parametrize("lost", [1, 2])
def test_a_missing_blank_line_at_the_end_is_added(world, lost):
    world.channel("a", stream([b"".join(WHOLE)[:-lost]]))

    assert ask(world).content == b"".join(WHOLE)


def test_a_body_that_ends_with_the_connection(world):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
    world.channel("a", raw(head, *WHOLE))

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_a_body_with_a_length(world):
    headers = {"Content-Type": "text/event-stream"}
    world.channel("a", answer(200, b"".join(WHOLE), headers=headers))

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert "content-length" not in response.headers


def test_a_length_not_reached_is_a_break(world):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 5000\r\n\r\n"
    world.channel("a", raw(head, ROLE, chunk("so far")))

    assert_broken_off(ask(world), "so far")


def test_a_large_stream_arrives_whole(world):
    pieces = [chunk(str(n).rjust(20_000, "x")) for n in range(200)] + WHOLE
    world.channel("a", stream(pieces))

    assert ask(world).content == b"".join(pieces)


def test_what_came_before_a_break_arrives_at_a_slow_reader(world):
    """Bytes that wait behind a slow client are not thrown away with the connection."""
    count = 800
    pieces = [chunk(str(n).rjust(20_000, "x")) for n in range(count)]
    world.channel("a", stream(pieces, end="cut"))
    client = world.ready()
    body = b'{"model": "m", "messages": [], "stream": true}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer {client.key}"
        f"\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    received = bytearray()

    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        slow.connect(("127.0.0.1", int(client.url.rpartition(":")[2])))
        slow.sendall(head.encode() + body)
        time.sleep(0.5)  # until the relay has to wait for this reader
        while part := slow.recv(65_536):
            received += part

    assert received.count(b"chat.completion.chunk") == count
    assert received.count(b"stream_interrupted") == 1


# -- compressed though identity was asked for ---------------------------------------------


def test_streams_ask_for_identity(world):
    world.channel("a", stream(WHOLE))

    world.ready().http.post(
        "/v1/chat/completions",
        json={"model": "m", "messages": [], "stream": True},
        headers={"Accept-Encoding": "gzip, br"},
    )

    assert world.upstream.seen[0].headers["accept-encoding"] == "identity"


def test_a_compressed_stream_is_unpacked(world):
    data = gzip.compress(b"".join(WHOLE))
    world.channel("a", stream([data[:40], data[40:]], headers={"Content-Encoding": "gzip"}))

    response = ask(world)

    assert response.content == b"".join(WHOLE)
    assert "content-encoding" not in response.headers


def test_a_compressed_answer_is_unpacked(world):
    body = json.dumps(chat("hi")).encode()
    world.channel("a", answer(200, gzip.compress(body), headers={"Content-Encoding": "gzip"}))

    response = world.ready().chat()

    assert response.content == body
    assert "content-encoding" not in response.headers


def test_a_compressed_error_is_read(world):
    body = gzip.compress(b'{"error":{"message":"too much","type":"t"}}')
    world.channel("a", answer(418, body, headers={"Content-Encoding": "gzip"}))

    response = ask(world)

    assert response.status_code == 418
    assert response.json()["error"]["message"].startswith("too much (request id: ")


@pytest.mark.parametrize("is_stream", [True, False])
def test_compression_that_is_none_is_a_failed_attempt(world, is_stream):
    headers = {"Content-Encoding": "gzip", "Content-Type": "text/event-stream"}
    world.channel("a", answer(200, b"not gzip at all", headers=headers), priority=2)
    good = stream(WHOLE) if is_stream else answer(200, chat("fine"))
    world.channel("b", good, priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat(stream=is_stream)

    assert response.status_code == 200
    assert world.upstream.names() == ["a", "b"]


# -- headers and the row -------------------------------------------------------------------


def test_an_error_to_a_stream_request_is_json(world):
    world.channel("a", error(429, "slow down", headers={"Retry-After": "7"}))

    response = ask(world)

    assert response.status_code == 429
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["message"].startswith("slow down (request id: ")


def test_a_whole_answer_to_a_stream_request_is_passed_on(world):
    """Some servers ignore `stream`; what they say is still an answer."""
    world.channel("a", answer(200, chat("whole")))

    response = ask(world)

    assert response.headers["content-type"] == "application/json"
    assert response.json()["choices"][0]["message"]["content"] == "whole"


UPSTREAM_HEADERS = {
    "Set-Cookie": "session=1",
    "x-ratelimit-remaining-requests": "1",
    "x-request-id": "upstream-id",
    "Server": "upstream",
    "Connection": "keep-alive",
}


@pytest.mark.parametrize("is_stream", [True, False])
def test_headers_of_the_upstream_stay_behind(world, is_stream):
    whole = stream(WHOLE, headers=UPSTREAM_HEADERS)
    world.channel("a", whole if is_stream else answer(200, chat(), headers=UPSTREAM_HEADERS))

    response = world.ready().chat(stream=is_stream)

    assert "set-cookie" not in response.headers
    assert "x-ratelimit-remaining-requests" not in response.headers
    assert response.headers.get("server") != "upstream"
    assert response.headers["x-request-id"] != "upstream-id"
    assert response.headers["x-relay-attempts"] == "1"
    assert ("content-length" in response.headers) != is_stream


def test_cookies_of_one_answer_are_not_sent_with_the_next_request(world):
    world.channel("a", stream(WHOLE, headers=UPSTREAM_HEADERS))
    client = world.ready()

    client.chat(stream=True)
    client.chat(stream=True)

    assert "cookie" not in world.upstream.seen[1].headers


def test_a_stream_says_that_it_must_not_be_buffered(world):
    world.channel("a", stream(WHOLE))

    response = ask(world)

    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert len(response.headers["x-request-id"]) == 32


def test_the_row_of_a_stream(world):
    gate = Gate()
    pieces = [ROLE, chunk("x"), chunk(finish="stop"), USAGE, DONE]
    world.channel("a", held(stream(pieces), gate))
    client = world.ready()

    threading.Timer(0.3, gate.open).start()
    response = client.chat(stream=True)

    log = world.log(response.headers["x-request-id"])
    assert (log.status, log.outcome, log.is_stream) == (200, "ok", True)
    assert (log.request_model, log.response_model) == ("m", "m-upstream")
    assert (log.input_tokens, log.output_tokens) == (7, 9)
    assert 250 <= log.ttft_ms <= log.duration_ms
    assert log.token_name == "t"
    assert (log.attempts.get().status, log.attempts.get().decision) == (200, "answered")


def test_a_row_without_reported_tokens(world):
    world.channel("a", stream(WHOLE))

    log = world.log(ask(world).headers["x-request-id"])

    assert (log.input_tokens, log.output_tokens) == (None, None)
    assert log.ttft_ms is not None


def test_absurd_token_counts_do_not_cost_the_row(world):
    absurd = USAGE.replace(b'"completion_tokens":9', b'"completion_tokens":' + b"9" * 30)
    world.channel("a", stream([chunk("x"), chunk(finish="stop"), absurd, DONE]))

    log = world.log(ask(world).headers["x-request-id"])

    assert log.outcome == "ok"


def test_many_streams_at_once_do_not_mix(world):
    for n in range(20):
        pieces = [chunk(f"{n}-{i} ") for i in range(20)] + [chunk(finish="stop"), DONE]
        world.channel(f"c{n}", stream(pieces, gap_s=0.005), model_names=[f"m{n}"])
    client = world.ready()
    bodies = {}

    def read(n):
        bodies[n] = client.chat(f"m{n}", stream=True).content

    readers = [threading.Thread(target=read, args=(n,)) for n in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)

    for n in range(20):
        assert content_of(bodies[n]) == "".join(f"{n}-{i} " for i in range(20))
