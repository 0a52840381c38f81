"""A fake upstream on raw sockets, scripted per channel, that notes what it sees.

A channel's base URL is `upstream.url(NAME)`; `upstream.script(NAME, action, ...)` says
what its requests get, in order, the last action for all that follow.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.loop_thread import LoopThread


@dataclass
class Seen:
    """One request as the upstream saw it; times by `time.monotonic`."""

    name: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    at_s: float
    connection: int = 0  # a number for each
    sent_bytes: int = 0
    closed_at_s: float | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """What an action works with: write bytes, wait, cut."""

    def __init__(self, writer: asyncio.StreamWriter, seen: Seen) -> None:
        self.writer = writer
        self.seen = seen
        self.keep_alive = True

    async def send(self, data: bytes) -> None:
        self.seen.sent_bytes += len(data)
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        self.keep_alive = False
        self.writer.transport.abort()


Action = Callable[[Connection], Awaitable[None]]


class Gate:
    """Holds an action back until the test lets it go on: once for each `open`."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)

    def open(self) -> None:
        self._steps.release()

    async def passed(self) -> None:
        while not self._steps.acquire(blocking=False):  # noqa: ASYNC110  # opened by a thread
            await asyncio.sleep(0.002)


class Upstream:
    def __init__(self) -> None:
        self._loop = LoopThread("fake-upstream")
        self._scripts: dict[str, list[Action]] = {}
        self.seen: list[Seen] = []
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    def start(self) -> None:
        self._loop.run(self._start())

    def stop(self) -> None:
        self._loop.run(self._stop())
        self._loop.close()

    def reset(self) -> None:
        self._scripts.clear()
        self.seen.clear()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}/v1"

    def script(self, name: str, *actions: Action) -> None:
        self._scripts[name] = list(actions)

    def names(self) -> list[str]:
        """Return the channels in the order in which they were asked."""
        return [seen.name for seen in self.seen]

    def close_idle(self) -> None:
        """Close all open connections, as a server does with idle ones."""
        self._loop.run(self._close_all())

    async def _close_all(self) -> None:
        for writer in list(self._writers):
            writer.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, limit=2**20, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._close_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            number, begun = self.connections, b""
            while (begun := await self._one(reader, writer, begun, number)) is not None:
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: bytes, number: int
    ) -> bytes | None:
        """Answer one request, whose first bytes are `begun`; return what was read of the next
        one, or None at the end of the connection."""
        head = begun + await reader.readuntil(b"\r\n\r\n")
        line, *rows = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        headers = {k.lower(): v for k, _, v in (row.partition(": ") for row in rows if row)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        name = target.split("/")[1]
        seen = Seen(name, method, target, headers, body, time.monotonic(), number)
        self.seen.append(seen)
        actions = self._scripts.get(name) or [answer(500, {"error": {"message": "?"}})]
        action = actions.pop(0) if len(actions) > 1 else actions[0]
        connection = Connection(writer, seen)
        # Reading on is how a closed connection is noticed while the action runs.
        watch = asyncio.ensure_future(reader.read(1))
        work = asyncio.ensure_future(_run(action, connection))
        await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
        if watch.done() and not _next_byte(watch):
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if connection.keep_alive and (not watch.done() or _next_byte(watch)):
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            return _next_byte(watch)
        seen.closed_at_s = time.monotonic()
        seen.closed.set()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        return None


def _next_byte(watch: asyncio.Future[bytes]) -> bytes:
    """Return the byte of the next request that the watch has read, if it has."""
    return b"" if watch.cancelled() or watch.exception() else watch.result()


async def _run(action: Action, connection: Connection) -> None:
    try:
        await action(connection)
    except ConnectionError:
        connection.keep_alive = False


# -- actions -----------------------------------------------------------------------


def answer(status: int, document: Any, *, headers: dict[str, str] | None = None) -> Action:
    """A whole answer; `document` may be bytes."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    fields = {"Content-Type": "application/json", **(headers or {})}

    async def act(connection: Connection) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        await connection.send("\r\n".join([*lines, "", ""]).encode() + body)

    return act


def error(
    status: int,
    message: str = "fault",
    *,
    code: str | None = None,
    type_: str = "upstream_type",
    headers: dict[str, str] | None = None,
) -> Action:
    document = {"error": {"message": message, "type": type_, "param": None, "code": code}}
    return answer(status, document, headers=headers)


def chat(text: str = "hello", *, model: str = "m-upstream") -> dict[str, Any]:
    """A whole chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def chunk(text: str | None = None, *, finish: str | None = None, role: bool = False) -> bytes:
    """One chat chunk as an event."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if role else {}
    if text is not None:
        delta["content"] = text
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m-upstream",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def whole_stream(*texts: str) -> list[bytes]:
    """The events of a complete streamed answer."""
    return [chunk(role=True), *map(chunk, texts), chunk(finish="stop"), DONE]


def stream(
    pieces: Iterable[bytes],
    *,
    gap_s: float = 0.0,
    delay_s: float = 0.0,
    gate: Gate | None = None,
    end: str = "proper",
    headers: dict[str, str] | None = None,
) -> Action:
    """A chunked event stream; `end` is proper, cut (no last chunk), reset or stall.

    Nothing at all comes for `delay_s`.
    With a `gate`, each piece after the first waits for it, and so does the end.
    """
    parts = list(pieces)
    fields = {"Content-Type": "text/event-stream", **(headers or {})}

    async def act(connection: Connection) -> None:
        await asyncio.sleep(delay_s)
        lines = ["HTTP/1.1 200 OK", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        await connection.send("\r\n".join([*lines, "", ""]).encode())
        for position, part in enumerate(parts):
            if position and gap_s:
                await asyncio.sleep(gap_s)
            if position and gate:
                await gate.passed()
            await connection.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        if gate:
            await gate.passed()
        if end == "proper":
            await connection.send(b"0\r\n\r\n")
        elif end == "stall":
            await asyncio.sleep(3600)
        elif end == "reset":
            await asyncio.sleep(0.05)  # let the bytes out first
            connection.reset()
        else:
            connection.keep_alive = False

    return act


def held(action: Action, gate: Gate) -> Action:
    """`action`, once the gate is open."""

    async def act(connection: Connection) -> None:
        await gate.passed()
        await action(connection)

    return act


def flood(piece: bytes, *, most_bytes: int) -> Action:
    """A stream of the same piece, as fast as it is taken."""

    async def act(connection: Connection) -> None:
        await connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(most_bytes // len(piece)):
            await connection.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await connection.send(b"0\r\n\r\n")

    return act


def reset() -> Action:
    """A TCP reset instead of an answer."""

    async def act(connection: Connection) -> None:
        connection.reset()

    return act


def silent() -> Action:
    """Accepts the request and says nothing."""

    async def act(connection: Connection) -> None:
        await asyncio.sleep(3600)

    return act


def raw(*parts: bytes, gap_s: float = 0.0) -> Action:
    """These bytes as they are, then the end of the connection."""

    async def act(connection: Connection) -> None:
        for part in parts:
            await connection.send(part)
            await asyncio.sleep(gap_s)
        connection.keep_alive = False

    return act
