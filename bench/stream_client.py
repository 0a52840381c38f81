"""Clients of bench/streams.py: a stream down to its socket, and what many of them saw."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import cast

# What bench/paced_mock.py puts into an event: its number and when it was sent, in µs.
STAMP = re.compile(rb'"content":"(\d+):(\d+)"')
LONGEST_STAMP = 64  # bytes: the start of one may wait for its end
SLOTS = 100_000  # of a tenth of a millisecond; longer counts as 10 s


class Histogram:
    """Times, counted by tenths of a millisecond."""

    def __init__(self) -> None:
        self.counts = [0] * SLOTS

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[min(max(int(seconds * 10_000), 0), SLOTS - 1)] += 1

    def at(self, share: float) -> float:
        """Return the milliseconds that `share` of the times do not exceed."""
        left = share * sum(self.counts)
        for slot, count in enumerate(self.counts):
            left -= count
            if count and left <= 0:
                return slot / 10
        return 0.0


@dataclass
class Tally:
    """What all streams of a phase saw."""

    gaps: Histogram = field(default_factory=Histogram)
    sent_gaps: Histogram = field(default_factory=Histogram)
    delays: Histogram = field(default_factory=Histogram)
    events: int = 0
    lost: int = 0
    repeated: int = 0
    # Streams that did not end as they should.
    failed: int = 0


class StreamClient(asyncio.Protocol):
    """One request for a stream. `begun`: its first content came; `ended`: all of it came."""

    def __init__(self, key: str, model: str, *, tally: Tally, name: str = "") -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.status = 0
        self.name = name
        self._tally = tally
        self._next = 0
        self._last_s = self._last_sent_s = 0.0
        self._rest = b""
        document = {"model": model, "messages": [], "stream": True, "user": name}
        body = json.dumps(document).encode()
        self._request = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has a class of its own
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Check and time the events."""
        now_s = time.monotonic()
        if not self.status:
            self.status = int(data.split(b" ", 2)[1])
        data, end = self._rest + data, 0
        for match in STAMP.finditer(data):
            self._take(int(match[1]), int(match[2]) / 1e6, now_s)
            end = match.end()
        if b'"content":"' in data and not self.begun.done():
            self.begun.set_result(None)
        if b"data: [DONE]" in data and not self.ended.done():
            self.ended.set_result(None)
        self._rest = data[end:][-LONGEST_STAMP:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a stream that had no end."""
        if not self.begun.done():
            self.begun.set_result(None)
        if not self.ended.done():
            self._tally.failed += 1
            self.ended.set_result(None)

    def pause(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def hang_up(self) -> float:
        """Close, half of the time with a reset; return when."""
        if not self.ended.done():
            self.ended.set_result(None)
        if random.random() < 0.5:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
        return time.monotonic()

    def _take(self, number: int, sent_s: float, now_s: float) -> None:
        tally = self._tally
        tally.events += 1
        tally.delays.add(now_s - sent_s)
        if number < self._next:
            tally.repeated += 1
            return
        tally.lost += number - self._next
        if self._last_s:
            tally.gaps.add(now_s - self._last_s)
            tally.sent_gaps.add(sent_s - self._last_sent_s)
        self._next, self._last_s, self._last_sent_s = number + 1, now_s, sent_s


async def open_stream(
    port: int, key: str, model: str, *, tally: Tally, name: str = "", receive_buffer: int = 0
) -> StreamClient:
    """Return a stream that was just asked for."""
    raw = socket.socket()
    raw.setblocking(False)
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", port))
    _, client = await loop.create_connection(
        lambda: StreamClient(key, model, tally=tally, name=name), sock=raw
    )
    return client
