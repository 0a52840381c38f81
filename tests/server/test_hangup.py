"""Clients that go away or stop reading: the upstream is let go, nothing stays behind."""

from __future__ import annotations

import json
import socket
import struct
import time

import pytest

from tests.support.speakers import SPEAKERS, Speaker
from tests.support.upstream import Gate, answer, chat, chunk, error, flood, held, silent, stream

GONE_S = 1.0  # spec 03 section 5
SETTLE_S = 10.0  # for what a loaded machine may be late with


CHAT = SPEAKERS[0]


class RawClient:
    """A client down to its socket: it reads when told to and hangs up when told to."""

    def __init__(
        self, client, *, is_stream: bool, receive_buffer: int = 0, speaker: Speaker = CHAT
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", int(client.url.rpartition(":")[2])))
        body = json.dumps(speaker.body(is_stream=is_stream)).encode()
        head = (
            f"POST {speaker.url(is_stream=is_stream)} HTTP/1.1\r\nHost: relay\r\n"
            f"Authorization: Bearer {client.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)

    def read_until(self, part: bytes) -> bytes:
        received = b""
        while part not in received:
            received += self.socket.recv(65_536)
        return received

    def hang_up(self, *, with_reset: bool = False) -> float:
        """Close the socket; return when."""
        if with_reset:  # what the kernel sends for a process that was killed
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        return time.monotonic()


def wait_until(condition, *, within_s: float = SETTLE_S) -> bool:
    give_up_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(autouse=True)
def settled(world):
    """No request outlives its test: its row would turn up in the next one."""
    tasks = world.relay.tasks()
    yield
    assert wait_until(lambda: world.relay.tasks() <= tasks)


def only_row(world):
    """Return the row of the one request, as soon as it is written."""
    from relay_app.models import RequestLog

    def is_written():
        world.relay.flush()
        return RequestLog.objects.exists()

    assert wait_until(is_written)
    return RequestLog.objects.get()


def seen_by_upstream(world, count: int = 1):
    assert wait_until(lambda: len(world.upstream.seen) >= count)
    return world.upstream.seen[count - 1]


def assert_let_go(world, seen, hung_up_s: float) -> None:
    assert seen.closed.wait(SETTLE_S)
    assert seen.closed_at_s - hung_up_s < GONE_S
    row = only_row(world)
    assert (row.status, row.outcome) == (499, "ABORTED")


SLOW_STREAM = stream([chunk(role=True)] + [chunk("x")] * 600, gap_s=0.05)

# name → (what the upstream does, whether it is a stream, what the client waits for).
MOMENTS = {
    "before-headers": (silent(), True, b""),
    "before-headers-whole": (silent(), False, b""),
    "before-first-token": (stream([chunk(role=True)], end="stall"), True, b""),
    "while-pings-come": (stream([b": ping\n\n"] * 600, gap_s=0.05), True, b""),
    "mid-stream": (SLOW_STREAM, True, b'"x"'),
    "silent-stream": (stream([chunk("x")], end="stall"), True, b'"x"'),
}


@pytest.mark.parametrize("with_reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_hang_up_closes_the_upstream(world, moment, with_reset):
    action, is_stream, wait_for = MOMENTS[moment]
    world.channel("a", action)
    client = RawClient(world.ready(), is_stream=is_stream)
    seen = seen_by_upstream(world)
    if wait_for:
        client.read_until(wait_for)
    else:
        time.sleep(0.1)  # into the wait

    hung_up_s = client.hang_up(with_reset=with_reset)

    assert_let_go(world, seen, hung_up_s)
    row = only_row(world)
    assert row.is_stream is is_stream
    assert (row.ttft_ms is not None) == bool(wait_for)
    assert row.attempt_count == 1


def phases(speaker):
    """Name → (what the upstream does, what the client waits for), as `speaker` has it."""
    begun, text = speaker.begin("m-upstream"), speaker.text("so far")
    return {
        "before-headers": (silent(), b""),
        "before-first-token": (stream([*begun, b": ping\n\n"], end="stall"), b""),
        "mid-stream": (stream([*begun, *[text] * 600], gap_s=0.02), b"so far"),
        "silent-stream": (stream([*begun, text], end="stall"), b"so far"),
    }


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.name)
@pytest.mark.parametrize("phase", phases(CHAT))
def test_every_dialect_lets_the_upstream_go(world, speaker, phase):
    action, wait_for = phases(speaker)[phase]
    base = world.upstream.url("a")
    if speaker.provider == "gemini":
        base = base.removesuffix("/v1") + "/v1beta"
    world.channel("a", action, provider=speaker.provider, base_url=base)
    client = RawClient(world.ready(), is_stream=True, speaker=speaker)
    seen = seen_by_upstream(world)
    if wait_for:
        client.read_until(wait_for)
    else:
        time.sleep(0.1)

    assert_let_go(world, seen, client.hang_up())
    assert only_row(world).attempt_count == 1


def test_a_hang_up_ends_the_attempts(world):
    """No channel is asked for somebody who is gone, and the attempt says why."""
    world.channel("a", silent(), priority=2)
    world.channel("b", answer(200, chat()), priority=1)
    world.options(RetryTimes=3)
    client = RawClient(world.ready(), is_stream=True)
    seen = seen_by_upstream(world)

    hung_up_s = client.hang_up()

    assert_let_go(world, seen, hung_up_s)
    assert world.upstream.names() == ["a"]
    attempt = only_row(world).attempts.get()
    assert (attempt.failure_class, attempt.decision) == ("ABORTED", "client gone")


def test_a_hang_up_during_the_pause_between_attempts(world):
    world.channel("a", error(500, headers={"Retry-After": "3"}))
    world.options(RetryTimes=3)
    client = RawClient(world.ready(), is_stream=False)
    seen_by_upstream(world)
    time.sleep(0.3)

    client.hang_up()

    row = only_row(world)
    assert (row.status, row.outcome, row.attempt_count) == (499, "ABORTED", 1)
    assert len(world.upstream.seen) == 1


def test_a_hang_up_while_the_body_is_sent_leaves_nothing(world):
    client = world.ready()
    world.channel("a", answer(200, chat()))
    world.relay.refresh()
    tasks = settled_tasks(world)

    with socket.create_connection(("127.0.0.1", int(client.url.rpartition(":")[2]))) as half:
        half.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )
        time.sleep(0.1)

    assert wait_until(lambda: world.relay.tasks() <= tasks)
    assert world.upstream.seen == []
    assert client.chat().status_code == 200


def settled_tasks(world) -> int:
    """Return how many tasks the relay has when no request is under way."""
    counts = [world.relay.tasks()]
    while len(counts) < 20:
        time.sleep(0.02)
        counts.append(world.relay.tasks())
    return min(counts)


def test_no_task_is_left_after_many_hang_ups(world):
    world.channel("a", SLOW_STREAM, silent(), model_names=["m"])
    world.ready()
    tasks = settled_tasks(world)

    clients = []
    for n in range(50):
        world.upstream.script(
            "a", (SLOW_STREAM, silent(), stream([chunk("x")], end="stall"))[n % 3]
        )
        client = RawClient(world.client, is_stream=True)
        clients.append(client)
        seen_by_upstream(world, n + 1)
    for client in clients:
        client.hang_up()

    assert wait_until(lambda: all(seen.closed.is_set() for seen in world.upstream.seen))
    assert wait_until(lambda: world.relay.tasks() <= tasks)
    assert wait_until(lambda: aborted(world) == 50)


def aborted(world) -> int:
    from relay_app.models import RequestLog

    world.relay.flush()
    return RequestLog.objects.filter(status=499, outcome="ABORTED").count()


def test_a_finished_stream_is_no_hang_up(world):
    """Closing right after the end is what clients do."""
    world.channel("a", stream([chunk("x"), chunk(finish="stop"), b"data: [DONE]\n\n"]))
    client = RawClient(world.ready(), is_stream=True)

    client.read_until(b"[DONE]")
    client.hang_up()

    row = only_row(world)
    assert (row.status, row.outcome) == (200, "ok")


def test_an_end_of_input_is_a_hang_up(world):
    """What a client that closes only its side looks like; no HTTP client does it."""
    world.channel("a", silent())
    client = RawClient(world.ready(), is_stream=True)
    seen = seen_by_upstream(world)

    client.socket.shutdown(socket.SHUT_WR)

    assert seen.closed.wait(SETTLE_S)
    client.hang_up()


PIECE = chunk("x" * 16_000)


def sent_until_it_stops(seen) -> int:
    """Return what the upstream could send, once it sends no more."""
    last, steady = -1, 0
    give_up_s = time.monotonic() + SETTLE_S
    while steady < 20 and time.monotonic() < give_up_s:
        steady = steady + 1 if seen.sent_bytes == last else 0
        last = seen.sent_bytes
        time.sleep(0.05)
    return last


def test_a_reader_that_stops_stops_the_upstream(world):
    """What waits is bounded: some MiB in the kernel, 256 KiB of ours; 256 MiB are to be sent."""
    world.channel("a", flood(PIECE, most_bytes=256 * 2**20))
    client = RawClient(world.ready(), is_stream=True, receive_buffer=65_536)
    client.read_until(b"data: ")

    seen = seen_by_upstream(world)
    sent = sent_until_it_stops(seen)

    assert not seen.closed.is_set()
    assert sent < 32 * 2**20
    hung_up_s = client.hang_up()
    assert_let_go(world, seen, hung_up_s)


def test_a_reader_that_goes_on_gets_everything(world):
    """The idle limit does not count while it is the client that is slow."""
    world.channel("a", flood(PIECE, most_bytes=32 * 2**20), timeouts={"idle": 0.5})
    client = RawClient(world.ready(), is_stream=True, receive_buffer=65_536)
    client.read_until(b"data: ")
    sent_until_it_stops(seen_by_upstream(world))

    received = 0
    while part := client.socket.recv(2**20):
        received += part.count(b"chat.completion.chunk")
        if part.endswith(b"\r\n0\r\n\r\n"):
            break

    assert received >= 32 * 2**20 // len(PIECE) - 10
    client.hang_up()


def test_one_slow_reader_does_not_slow_the_others(world):
    world.channel("slow", flood(PIECE, most_bytes=64 * 2**20))
    world.channel("quick", answer(200, chat()), model_names=["q"])
    client = RawClient(world.ready(), is_stream=True, receive_buffer=65_536)
    client.read_until(b"data: ")
    sent_until_it_stops(seen_by_upstream(world))

    began_s = time.monotonic()
    for _ in range(20):
        assert world.client.chat("q").status_code == 200

    assert time.monotonic() - began_s < 5
    client.hang_up()


def test_the_answer_that_arrives_with_the_hang_up(world):
    """Whichever is first, there is one row and no error of ours."""
    gate = Gate()
    world.channel("a", held(answer(200, chat()), gate))
    client = RawClient(world.ready(), is_stream=False)
    seen_by_upstream(world)

    gate.open()
    client.hang_up()

    assert only_row(world).outcome in ("ok", "ABORTED")
