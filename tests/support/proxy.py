"""A tiny proxy on 127.0.0.1 (HTTP forwarding, CONNECT, SOCKS5) that notes what it is asked."""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import dataclass, field

from tests.support.loop_thread import LoopThread


@dataclass
class Proxy:
    """`answers` maps the hosts that clients ask for to the ports they are led to: names are
    never resolved, nothing but 127.0.0.1 is connected to."""

    user: str = ""
    password: str = ""
    answers: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0

    def start(self) -> None:
        self._loop = LoopThread("proxy")
        self._server, self._tasks = None, set()
        self._loop.run(self._start())

    def stop(self) -> None:
        self._loop.run(self._stop())
        self._loop.close()

    def url(self, scheme: str = "http", *, user: str = "", password: str = "") -> str:
        who = f"{user}:{password}@" if user else ""
        return f"{scheme}://{who}127.0.0.1:{self.port}"

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        try:
            first = await reader.readexactly(1)
            if first == b"\x05":
                await self._socks(reader, writer)
            else:
                await self._http(first, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _http(self, first, reader, writer) -> None:
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        method, target, _ = head.split("\r\n")[0].split(" ")
        wanted = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if self.user and f"Basic {wanted}" not in head:
            writer.write(b"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
        else:
            host, _, port = target.split("/")[2].partition(":")
        self.asked.append(host)
        far_reader, far_writer = await self._connect(host, int(port or 80))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await _pipe_both(reader, writer, far_reader, far_writer)
            return
        try:
            await asyncio.gather(self._forward(head, reader, far_writer), _pipe(far_reader, writer))
        finally:
            far_writer.close()

    async def _forward(self, head: str, reader, far_writer) -> None:
        """Send the requests of one connection on, as a server wants them."""
        while True:
            target = head.split(" ")[1]
            far_writer.write(
                head.replace(target, "/" + target.split("/", 3)[3], 1).encode("latin-1")
            )
            size = re.search(r"(?i)content-length: (\d+)", head)
            far_writer.write(await reader.readexactly(int(size[1]) if size else 0))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def _socks(self, reader, writer) -> None:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        if self.user:
            if 2 not in methods:
                writer.write(b"\x05\xff")
                return
            writer.write(b"\x05\x02")
            await reader.readexactly(1)
            user = await reader.readexactly((await reader.readexactly(1))[0])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            is_known = (user.decode(), password.decode()) == (self.user, self.password)
            writer.write(b"\x01\x00" if is_known else b"\x01\x01")
            if not is_known:
                return
        else:
            writer.write(b"\x05\x00")
        kind = (await reader.readexactly(4))[3]
        size = 4 if kind == 1 else (await reader.readexactly(1))[0]
        raw = await reader.readexactly(size)
        host = ".".join(map(str, raw)) if kind == 1 else raw.decode()
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append(host)
        far_reader, far_writer = await self._connect(host, port)
        writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
        await _pipe_both(reader, writer, far_reader, far_writer)

    async def _connect(self, host: str, port: int):
        return await asyncio.open_connection("127.0.0.1", self.answers.get(host, port))


async def _pipe_both(reader, writer, far_reader, far_writer) -> None:
    try:
        await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))
    finally:
        far_writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
