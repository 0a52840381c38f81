"""The relay under uvicorn on a real socket, inside the test process."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import uvicorn

from relayproject.server import BoundedHeadProtocol
from tests.support.loop_thread import LoopThread


class LiveRelay:
    """`url` answers; `refresh` makes what was saved count; `flush` writes the logs."""

    def __init__(self) -> None:
        from relayproject.asgi import application

        self._thread = LoopThread("live-relay")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(2048)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            application,
            http=BoundedHeadProtocol,
            log_config=None,
            lifespan="on",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._served: Any = None

    def start(self) -> None:
        self._thread.run(self._start(), timeout_s=60)

    def stop(self) -> None:
        self._thread.run(self._stop(), timeout_s=60)
        self._thread.close()

    def refresh(self) -> None:
        from relay_app import runtime

        self._thread.run(runtime.current().feed.refresh())

    def rebuild(self) -> None:
        """Read everything anew: emptied tables send no signals."""
        from relay_app import runtime

        self._thread.run(runtime.current().feed.rebuild())

    def flush(self) -> None:
        from relay_app import runtime

        self._thread.run(runtime.current().ledger.flush())
        self._thread.run(runtime.current().log_writer.flush())

    def options(self) -> Any:
        from relay_app import runtime

        return runtime.current().feed.current.routing.options

    def tasks(self) -> int:
        """Return how many tasks the relay's loop has."""
        import asyncio

        return len(asyncio.all_tasks(self._thread.loop))

    async def _start(self) -> None:
        import asyncio

        self._served = asyncio.ensure_future(
            self._server._serve(sockets=[self._socket])  # signals are the tests'
        )
        while not self._server.started:
            if self._served.done():
                self._served.result()
                raise RuntimeError("the relay did not start")
            await asyncio.sleep(0.01)

    async def _stop(self) -> None:
        self._server.should_exit = True
        await self._served


class Client:
    """An HTTP client with a token; every call is a fresh look at the relay."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key
        self.http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        )

    def chat(self, model: str = "m", **fields: Any) -> httpx.Response:
        document = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        return self.http.post("/v1/chat/completions", json={**document, **fields})

    def messages(self, model: str = "m", **fields: Any) -> httpx.Response:
        document = {
            "model": model,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "hi"}],
        }
        return self.http.post("/v1/messages", json={**document, **fields})

    def post(self, body: bytes, **options: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", content=body, **options)
