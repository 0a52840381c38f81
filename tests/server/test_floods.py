"""Upstreams and clients that never stop: memory, logs and other requests stay out of it."""

from __future__ import annotations

import gzip
import json
import socket
import time

from relay_app import attempt
from tests.support.upstream import DONE, answer, chat, chunk, flood, raw, stream, whole_stream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_events_without_content_are_held_only_up_to_a_limit(world):
    """A stream of 1 MiB of role chunks has failed; the next channel answers."""
    padded = chunk(role=True)[:-3] + b',"pad":"' + b"x" * 4000 + b'"}\n\n'
    world.channel("a", stream([padded] * 256), priority=2)
    world.channel("b", stream(whole_stream("fine")), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat(stream=True)

    assert b"fine" in response.content
    log = world.log(response.headers["x-request-id"])
    assert "without content" in log.attempts.get(number=1).message


def test_malformed_events_without_end_break_the_stream(world, capfd):
    bad = b"data: {bad\n\n"
    world.channel("a", stream([chunk("so far"), *[bad * 50] * 10, chunk("never"), DONE]))

    response = world.ready().chat(stream=True)

    assert b"so far" in response.content
    assert b"never" not in response.content
    assert b"stream_interrupted" in response.content
    world.log(response.headers["x-request-id"])
    assert capfd.readouterr().err.count("malformed events dropped") == 1


def test_noise_behind_the_proper_end_does_not_keep_the_stream_open(world):
    """The answer is whole, so the client gets its end, at the first hundred of them."""
    noise = [b"data: {bad\n\n" * 50] * 10
    world.channel("a", stream([chunk("all"), chunk(finish="stop"), *noise], end="stall"))
    began_s = time.monotonic()

    response = world.ready().chat(stream=True)

    assert response.content.endswith(DONE)
    assert b"stream_interrupted" not in response.content
    assert time.monotonic() - began_s < 10  # the idle limit is 30 s


def test_malformed_events_are_no_sign_of_life(world):
    """The idle limit goes on while only noise comes in."""
    bad = b"data: {bad\n\n"
    world.channel("a", stream([chunk("so far"), *[bad] * 60], gap_s=0.05), timeouts={"idle": 0.5})
    began_s = time.monotonic()

    response = world.ready().chat(stream=True)

    assert b"stream_interrupted" in response.content
    assert time.monotonic() - began_s < 2.5


def test_bad_chunking_in_a_whole_answer_is_noticed_at_once(world):
    parts = (HEAD % b"application/json" + framed(b'{"a":'), b"ZZ\r\nfoo\r\n")
    world.channel("a", raw(*parts, gap_s=0.2), priority=2, timeouts={"response": 20})
    world.channel("b", answer(200, chat("fine")), priority=1)
    world.options(RetryTimes=1)
    began_s = time.monotonic()

    response = world.ready().chat()

    assert response.json()["choices"][0]["message"]["content"] == "fine"
    assert time.monotonic() - began_s < 10
    log = world.log(response.headers["x-request-id"])
    assert log.attempts.get(number=1).failure_class == "TRANSPORT"


def test_bad_chunking_in_a_stream_is_noticed_at_once(world):
    parts = (HEAD % b"text/event-stream" + framed(chunk("so far")), b"ZZZ\r\nfoo\r\n")
    world.channel("a", raw(*parts, gap_s=0.2), timeouts={"idle": 20})
    began_s = time.monotonic()

    response = world.ready().chat(stream=True)

    assert b"so far" in response.content
    assert b"stream_interrupted" in response.content
    assert time.monotonic() - began_s < 10


def test_an_answer_without_end_is_cut_off(world, monkeypatch):
    monkeypatch.setattr(attempt, "MAX_ANSWER_BYTES", 1024 * 1024)
    world.channel("a", flood(b"x" * 65536, most_bytes=16 * 2**20), priority=2)
    world.channel("b", answer(200, chat("fine")), priority=1)
    world.options(RetryTimes=1)

    response = world.ready().chat()

    assert response.json()["choices"][0]["message"]["content"] == "fine"


def test_a_compressed_bomb_is_cut_off(world, monkeypatch):
    monkeypatch.setattr(attempt, "MAX_ANSWER_BYTES", 1024 * 1024)
    bomb = gzip.compress(json.dumps(chat("a" * 20_000_000)).encode())
    world.channel("a", answer(200, bomb, headers={"Content-Encoding": "gzip"}))

    response = world.ready().chat()

    assert response.status_code == 502
    assert "larger than" in response.json()["error"]["message"]


def test_a_request_head_without_end_is_refused(world):
    client = world.ready()
    host, port = client.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n")
        try:
            for number in range(400):
                connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 4096))
        except OSError:
            pass  # closed while we sent: that is the point

        told = connection.recv(65536)

    assert told.startswith(b"HTTP/1.1 431 ")
    assert client.chat("nope").status_code == 404


def test_a_large_head_that_ends_is_served(world):
    world.channel("a", answer(200, chat()))
    client = world.ready()

    response = client.http.get("/v1/models", headers={"X-Trace": "y" * 60_000})

    assert response.status_code == 200
