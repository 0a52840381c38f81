"""SIGTERM with streams open: they finish in the drain time, longer ones end in an error."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import threading
import time
from contextlib import closing

import httpx
import pytest

from tests.server.running import Serve, environment, manage, wait_for
from tests.support.relay import Client
from tests.support.speakers import SPEAKERS
from tests.support.upstream import silent, stream

KEY = "sk-relay-drain-client-1b2c3d"
TEXTS = ("Once ", "upon ", "a ", "time.")


@pytest.fixture
def served(tmp_path, upstream):
    """Return a function that starts a relay with a channel for each dialect."""
    started = []

    def start(*, options=None, **environ):
        serve = Serve(tmp_path / "data", LOG_FORMAT="json", **environ)
        started.append(serve)
        address = serve.wait_ready()
        config = {
            "version": 1,
            "groups": [{"name": "default"}],
            "channels": [channel(upstream, p) for p in ("openai", "anthropic", "gemini")],
            "options": {"AllowUnpricedModels": True, **(options or {})},
            "users": [{"name": "alice"}],
            "tokens": [{"name": "t", "user": "alice", "key": KEY, "unlimited": True}],
        }  # fmt: skip
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        done = manage("apply_config", str(path), env=environment(serve.data_dir))
        assert done.returncode == 0, done.stdout + done.stderr
        client = Client(address, KEY)
        wait_for(lambda: '"m"' in client.http.get("/v1/models").text, 10)
        client.http.close()
        return serve, address

    yield start
    for serve in started:
        serve.end()


def channel(upstream, provider):
    base = upstream.url(provider)
    if provider == "gemini":
        base = base.removesuffix("/v1") + "/v1beta"
    return {"name": provider, "type": provider, "keys": ["sk-u"], "base_url": base,
            "models": ["m"], "groups": ["default"]}  # fmt: skip


class Asker(threading.Thread):
    """One request in a thread of its own; `response` once it ended."""

    def __init__(self, address, speaker, *, is_stream=True):
        super().__init__(daemon=True)
        self.client = Client(address, KEY)
        self.speaker, self.is_stream = speaker, is_stream
        self.response = None
        self.start()

    def run(self):
        self.response = self.speaker.ask(self.client, is_stream=self.is_stream)
        self.client.http.close()

    def ended(self):
        self.join(20)
        assert self.response is not None, "no proper end of the response"
        return self.response


def ask_all(upstream, address, *, action, is_stream=True):
    """Ask once in each dialect; return the askers once the upstream has seen all."""
    before = len(upstream.seen)
    askers = []
    for speaker in SPEAKERS:
        upstream.script(speaker.provider, action(speaker))
        askers.append(Asker(address, speaker, is_stream=is_stream))
        wait_for(lambda: len(upstream.seen) == before + len(askers), 5)
    return askers


def test_streams_finish_within_the_drain_time(served, upstream):
    serve, address = served()
    askers = ask_all(upstream, address, action=lambda s: stream(s.stream(*TEXTS), gap_s=0.4))

    serve.process.send_signal(signal.SIGTERM)

    for asker in askers:
        response = asker.ended()
        assert asker.speaker.read(response.content) == "".join(TEXTS)
        assert asker.speaker.is_success(response.content)
    assert serve.process.wait(10) == 0
    assert "4 requests in flight" in serve.output


def so_far(speaker):
    return stream([*speaker.begin("m-upstream"), speaker.text("so far")], end="stall")


def test_longer_streams_end_in_an_error_event(served, upstream):
    serve, address = served(RELAY_DRAIN_S="1")
    askers = ask_all(upstream, address, action=so_far)
    time.sleep(0.3)

    assert serve.stop() == 0

    for asker in askers:
        speaker, response = asker.speaker, asker.ended()
        assert response.status_code == 200
        assert speaker.read(response.content) == "so far"
        assert speaker.is_error(response.content)
        assert not speaker.is_success(response.content)
        assert response.content.endswith(b"\n\n")
        assert b"the relay was stopped" in response.content
    assert all(seen.closed.wait(5) for seen in upstream.seen)
    assert "Traceback" not in serve.output
    assert rows(serve) == [(200, "relay_stopping")] * 4


def test_requests_without_an_answer_are_told(served, upstream):
    serve, address = served(RELAY_DRAIN_S="1")
    askers = [
        *ask_all(upstream, address, action=lambda _: silent()),
        *ask_all(upstream, address, action=lambda _: silent(), is_stream=False),
    ]

    assert serve.stop() == 0

    for asker in askers:
        response = asker.ended()
        assert response.status_code == 503
        assert "the relay was stopped" in response.json()["error"]["message"]
        assert response.headers["Retry-After"] == "1"
    assert all(seen.closed.wait(5) for seen in upstream.seen)
    assert len(upstream.seen) == 8
    assert "Traceback" not in serve.output
    assert rows(serve) == [(503, "relay_stopping")] * 8


def test_a_stream_kept_open_by_comments_is_told(served, upstream):
    speaker = SPEAKERS[0]
    serve, address = served(options={"KeepaliveBeforeCommit": True}, RELAY_DRAIN_S="11")
    upstream.script(speaker.provider, silent())
    asker = Asker(address, speaker)
    wait_for(lambda: upstream.seen, 5)

    assert serve.stop() == 0

    response = asker.ended()
    assert response.status_code == 200
    assert speaker.is_error(response.content)
    assert b"the relay was stopped" in response.content
    assert rows(serve) == [(200, "relay_stopping")]


def test_a_second_signal_tells_them_at_once(served, upstream):
    speaker = SPEAKERS[0]
    serve, address = served(RELAY_DRAIN_S="60")
    upstream.script(speaker.provider, stream([speaker.text("so far")], end="stall"))
    asker = Asker(address, speaker)
    wait_for(lambda: upstream.seen, 5)
    time.sleep(0.3)

    serve.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert serve.process.poll() is None
    assert serve.stop() == 0

    assert speaker.is_error(asker.ended().content)


def test_a_body_that_does_not_come_is_told(served):
    serve, address = served(RELAY_DRAIN_S="1")
    url = httpx.URL(address)
    with socket.create_connection((url.host, url.port)) as slow:
        slow.sendall(
            f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            "Content-Length: 100\r\n\r\n{".encode()
        )
        time.sleep(0.3)

        assert serve.stop() == 0

        told = slow.recv(65_536)
    assert told.startswith(b"HTTP/1.1 503 ")
    assert b'"type":"error"' in told
    assert b"the relay was stopped" in told
    assert rows(serve) == [(503, "relay_stopping")]


def test_a_client_that_reads_nothing_does_not_hold_the_stop(served, upstream):
    speaker = SPEAKERS[0]
    serve, address = served(RELAY_DRAIN_S="1")
    upstream.script(speaker.provider, stream([speaker.text("x" * 16_000)] * 2_000, end="stall"))
    url = httpx.URL(address)
    body = json.dumps(speaker.body(is_stream=True)).encode()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        deaf.connect((url.host, url.port))
        deaf.sendall(
            f"POST {speaker.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        wait_for(lambda: upstream.seen, 5)
        time.sleep(0.5)

        begun_s = time.monotonic()
        assert serve.stop() == 0

    assert time.monotonic() - begun_s < 8
    assert rows(serve) == [(200, "relay_stopping")]


def rows(serve: Serve) -> list[tuple[int, str]]:
    """Return status and outcome of each request, as the stopped relay left them."""
    with closing(sqlite3.connect(serve.data_dir / "relay.sqlite3")) as connection:
        return connection.execute(
            "SELECT status, outcome FROM relay_app_requestlog WHERE endpoint LIKE 'POST%'"
        ).fetchall()
