"""A mock upstream that streams: EVENTS chat chunks an answer, each in a write of its own."""

from __future__ import annotations

import asyncio
import sys

import uvloop

EVENTS = 500
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
END = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
YIELD_EVERY = 4  # events written before other streams get their turn


def framed(data: bytes) -> bytes:
    """Return `data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request on one connection with a whole stream."""
    event, ending = framed(EVENT), framed(END) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n")
                 if line.startswith(b"content-length:")), 0,
            )  # fmt: skip
            await reader.readexactly(size)
            writer.write(HEAD)
            for number in range(EVENTS):
                writer.write(event)
                if number % YIELD_EVERY == 0:
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.write(ending)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main(port: int) -> None:
    """Listen until ended."""
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
