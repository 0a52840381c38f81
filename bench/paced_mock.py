"""A mock upstream for bench/streams.py: streams by the clock, a flood, several silences.

The model of a request says what it gets:

    b-pace-100-50   50 events, one every 100 ms, numbered, each with the time it was sent
    b-flood-64      64 MiB in events of 16 KB, as fast as they are taken
    b-silent        nothing, not even headers
    b-held          headers and the role, then nothing
    b-stall         some content, then nothing

The `user` field of a request names it; `GET /closed` tells when each connection was closed
(CLOCK_MONOTONIC, which all processes share) and how many are open.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import cast

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
)
ROLE = EVENT.replace(b'"content":"%b"', b'"role":"assistant","content":""')
END = EVENT.replace(b'"content":"%b"', b"").replace(b"null}", b'"stop"}') + b"data: [DONE]\n\n"
FLOOD_BYTES = 16_000
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")

# The requests that came, by name: when its connection was closed, None while it is not.
closed_s: dict[str, float | None] = {}
connections: set[asyncio.Transport] = set()


def framed(data: bytes) -> bytes:
    """Return `data` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """One connection of the relay; one timer of its own sends what is due."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._name = ""
        self._timer: asyncio.TimerHandle | None = None
        self._may_write = asyncio.Event()
        self._flood: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to count it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has a class of its own
        connections.add(self._transport)
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note when the one request in hand was given up."""
        connections.discard(self._transport)
        if self._name:
            closed_s[self._name] = time.monotonic()
        if self._timer:
            self._timer.cancel()
        if self._flood:
            self._flood.cancel()

    def pause_writing(self) -> None:
        """Hold the flood back."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let it go on."""
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Answer a request once it is whole."""
        self._received += data
        head, mark, body = self._received.partition(b"\r\n\r\n")
        found = LENGTH.search(head)
        size = int(found[1]) if found else 0
        if not mark or len(body) < size:
            return
        self._received = body[size:]
        if head.startswith(b"GET"):
            self._tell()
            return
        document = json.loads(body[:size])
        self._name = document.get("user", "")
        if self._name:
            closed_s[self._name] = None
        self._answer(document["model"].split("-")[1:])

    def _tell(self) -> None:
        body = json.dumps({"closed_s": closed_s, "open": len(connections) - 1}).encode()
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)
        self._transport.close()

    def _answer(self, words: list[str]) -> None:
        kind = words[0]
        if kind == "silent":
            return
        self._transport.write(HEAD + framed(ROLE))
        if kind == "pace":
            self._gap_s, self._count = int(words[1]) / 1000, int(words[2])
            self._number, self._begin_s = 0, self._loop.time()
            self._send_next()
        elif kind == "stall":
            self._transport.write(framed(EVENT % b"so far"))
        elif kind == "flood":
            self._flood = self._loop.create_task(self._send_flood(int(words[1]) * 2**20))

    def _send_next(self) -> None:
        if self._number == self._count:
            self._finish()
            return
        stamp = b"%d:%d" % (self._number, time.monotonic_ns() // 1000)
        self._transport.write(framed(EVENT % stamp))
        self._number += 1
        due_s = self._begin_s + self._number * self._gap_s
        self._timer = self._loop.call_at(due_s, self._send_next)

    async def _send_flood(self, size: int) -> None:
        piece = framed(EVENT % (b"x" * FLOOD_BYTES))
        for _ in range(size // FLOOD_BYTES):
            await self._may_write.wait()
            self._transport.write(piece)
        self._finish()

    def _finish(self) -> None:
        self._name = ""  # closing later is nobody's hang-up
        self._transport.write(framed(END) + b"0\r\n\r\n")


async def main(port: int) -> None:
    """Listen until ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
