"""A body that is too large is refused at once, and its sender gets to read why."""

from __future__ import annotations

import socket
import threading

import pytest

from relayproject import handler
from tests.support.upstream import answer, chat

MIB = 2**20
CHAT = "/v1/chat/completions"


@pytest.fixture
def client(world, settings):
    settings.MAX_REQUEST_BODY_BYTES = MIB
    world.channel("a", answer(200, chat()))
    return world.ready()


def connect(client) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(client.url.rpartition(":")[2])))
    connection.settimeout(20)
    return connection


def head(client, *lines: str) -> bytes:
    rows = [f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {client.key}", *lines]
    return "\r\n".join([*rows, "", ""]).encode()


def read_answer(connection: socket.socket) -> bytes:
    """Return what comes until the answer is whole."""
    received = b""
    while b"request id" not in received:
        piece = connection.recv(65_536)
        assert piece, received
        received += piece
    return received


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65_536):
        received += piece
    return received


def test_the_length_alone_is_enough(client, world) -> None:
    with connect(client) as connection:
        connection.sendall(head(client, "Content-Length: 1000000000"))
        received = read_answer(connection)

    assert received.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in received
    assert b"connection: close" in received
    assert world.upstream.seen == []


def test_a_client_that_waits_is_not_asked_to_send(client) -> None:
    with connect(client) as connection:
        connection.sendall(head(client, "Content-Length: 2000000", "Expect: 100-continue"))
        received = read_answer(connection)

    assert received.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in received


def test_a_client_that_waits_with_a_body_that_fits_is_asked(client) -> None:
    body = b'{"model": "m", "messages": []}'
    with connect(client) as connection:
        lines = (f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close")
        connection.sendall(head(client, *lines))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert read_all(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("connection_header", ["keep-alive", "close"])
def test_a_client_that_sends_all_before_it_reads_gets_the_answer(client, connection_header) -> None:
    """More than the buffers of both sides hold: unread, it would end in a reset."""
    size = 32 * MIB
    with connect(client) as connection:
        lines = (f"Content-Length: {size}", f"Connection: {connection_header}")
        connection.sendall(head(client, *lines))
        for _ in range(size // MIB):
            connection.sendall(b"x" * MIB)
        received = read_all(connection)

    assert received.startswith(b"HTTP/1.1 413")
    assert received.endswith(b"}")


def test_chunks_without_an_end_are_answered(client, monkeypatch) -> None:
    monkeypatch.setattr(handler, "DISCARD_S", 0.2)
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    answered = threading.Event()

    def send_on() -> None:
        try:
            while not answered.is_set():
                connection.sendall(chunk)
        except OSError:  # closed at last
            answered.wait(20)

    with connect(client) as connection:
        connection.sendall(head(client, "Transfer-Encoding: chunked"))
        sender = threading.Thread(target=send_on)
        sender.start()
        try:
            received = read_answer(connection)
        finally:
            answered.set()
            sender.join()

    assert received.startswith(b"HTTP/1.1 413")


def test_a_client_that_stops_sending_is_let_go(client, monkeypatch) -> None:
    monkeypatch.setattr(handler, "DISCARD_IDLE_S", 0.05)
    with connect(client) as connection:
        connection.sendall(head(client, "Content-Length: 2000000") + b"x" * 1000)
        received = read_all(connection)

    assert received.startswith(b"HTTP/1.1 413")


def test_a_client_that_hangs_up_leaves_nothing_behind(client, world) -> None:
    with connect(client) as connection:
        connection.sendall(head(client, "Content-Length: 2000000"))
        read_answer(connection)

    assert client.chat().status_code == 200


def test_its_row_is_written(client, world) -> None:
    response = client.post(b"x" * 2 * MIB)

    row = world.log(response.headers["x-request-id"])
    assert (row.status, row.outcome) == (413, "request_too_large")
