"""What probes are told: that the process is alive, whether it can serve, what is missing."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import orjson
import redis.asyncio as redis
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse

from billing_app.database_thread import DatabaseThread
from relay_app import runtime

CHECK_S = 2.0
# Requests go on without the database on a snapshot as old as this; then say so.
MAX_SNAPSHOT_AGE_S = 120.0
ROOT_TEXT = (
    b"relayproject, a relay for LLM APIs. Clients use /v1 with a token (GET /v1/models lists\n"
    b"models); people use /admin/; probes use /healthz and /readyz.\n"
)

# Threads on their way out: a database that hangs holds one, never the answer.
_closing: set[asyncio.Task[None]] = set()


async def root(request: HttpRequest) -> HttpResponse:
    """Answer probes of SDKs and load balancers, and people who look whether it is there."""
    return HttpResponse(ROOT_TEXT, content_type="text/plain; charset=utf-8")


async def healthz(request: HttpRequest) -> HttpResponse:
    """Say that the process is alive."""
    return HttpResponse(b"ok\n", content_type="text/plain")


async def readyz(request: HttpRequest) -> HttpResponse:
    """Return 200 when database, state store and snapshot are fine, else 503.

    The detail is for the machine itself and for holders of METRICS_TOKEN.
    """
    checks = {
        "database": await _try(_database()),
        "state_store": await _try(_state_store()),
        "snapshot": _snapshot(),
    }
    is_ready = all(check["ok"] for check in checks.values())
    document: dict[str, Any] = {"ready": is_ready}
    if _may_see_detail(request):
        document["checks"] = checks
    return HttpResponse(
        orjson.dumps(document),
        status=200 if is_ready else 503,
        content_type="application/json",
    )


def _snapshot() -> dict[str, Any]:
    age_s = runtime.current().feed.age_s
    return {"ok": age_s < MAX_SNAPSHOT_AGE_S, "age_s": round(age_s, 1)}


async def _try(check: Any) -> dict[str, Any]:
    try:
        await asyncio.wait_for(check, CHECK_S)
    except Exception as error:  # noqa: BLE001  # whatever is wrong with it, it is not ready
        return {"ok": False, "error": type(error).__name__}
    return {"ok": True}


async def _database() -> None:
    thread = DatabaseThread("readyz")
    try:
        await thread.run(_select_one)
    finally:
        task = asyncio.create_task(thread.close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)


def _select_one() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


async def _state_store() -> None:
    client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=CHECK_S)
    try:
        await client.ping()
    finally:
        await client.aclose()


def _may_see_detail(request: HttpRequest) -> bool:
    token = settings.METRICS_TOKEN
    sent = request.META.get("HTTP_AUTHORIZATION", "").encode("utf-8", "replace")
    if token and secrets.compare_digest(sent, f"Bearer {token}".encode()):
        return True
    is_forwarded = "HTTP_X_FORWARDED_FOR" in request.META
    return not is_forwarded and request.META.get("REMOTE_ADDR") in ("127.0.0.1", "::1")
