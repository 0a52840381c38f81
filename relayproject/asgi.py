"""The ASGI application: lifespan, relay paths to the lean handler, the rest to Django."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "relayproject.settings")

import django

django.setup(set_prefix=False)

from typing import Any  # noqa: E402  # Django must be set up before models are imported

import structlog  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402

from relay_app import runtime, urls  # noqa: E402, F401  # urls: a fault in it stops the start
from relayproject.handler import LeanHandler, Receive, Scope, Send  # noqa: E402

log = structlog.get_logger(__name__)

# What Django serves with its middleware; all other paths are the relay's.
DJANGO_PATHS = ("/admin/", "/static/")

_django: Any = get_asgi_application()
_relay = LeanHandler()


def interrupt() -> None:
    """End the relay's requests under way, each with an error in its dialect."""
    _relay.interrupt()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one ASGI scope."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1000})
    elif scope["path"].startswith(DJANGO_PATHS) or scope["path"] == "/admin":
        await _django(scope, receive, send)
    else:
        await _relay(scope, receive, send)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await runtime.open_runtime()
            except Exception as error:  # outermost edge: the server is told, and stops
                log.exception("start failed")
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        else:
            await runtime.close_runtime()
            await send({"type": "lifespan.shutdown.complete"})
            return
