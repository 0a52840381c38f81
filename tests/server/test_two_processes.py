"""An installation of two relay processes, configured from beside: what operators do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.running import Serve, environment, manage, wait_for
from tests.support.upstream import Gate, Upstream, answer, chat, chunk, error, held, stream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CHANNEL_KEY = "sk-planted-channel-key-4f6b1d"
CLIENT_KEY = "sk-relay-planted-client-7c2e9a"
IN_USE_S = 2.0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    serve = Serve(tmp_path / "data", "--workers", "2", LOG_LEVEL="DEBUG", LOG_FORMAT="json")
    try:
        yield serve
    finally:
        serve.end()


def apply(serve: Serve, **config: object) -> None:
    path = serve.data_dir.parent / "config.json"
    path.write_text(json.dumps({"version": 1, "options": {"AllowUnpricedModels": True}} | config))
    done = manage("apply_config", str(path), env=environment(serve.data_dir))
    assert done.returncode == 0, done.stdout + done.stderr
    assert CHANNEL_KEY not in done.stdout + done.stderr
    assert CLIENT_KEY not in done.stdout + done.stderr


def configure(serve: Serve, upstream: Upstream, **token: object) -> None:
    apply(
        serve,
        groups=[{"name": "default"}],
        channels=[
            {
                "name": "a", "type": "openai", "base_url": upstream.url("a"),
                "keys": [CHANNEL_KEY], "models": ["m"], "groups": ["default"],
            }
        ],
        users=[{"name": "alice"}],
        tokens=[{"name": "t", "user": "alice", "key": CLIENT_KEY, "unlimited": True, **token}],
    )  # fmt: skip


def statuses(address: str, *, key: str = CLIENT_KEY, model: str = "m") -> set[int]:
    """Ask on twelve fresh connections, so that both processes are met."""
    body = {"model": model, "messages": []}
    headers = {"Authorization": f"Bearer {key}"}
    return {
        httpx.post(f"{address}/v1/chat/completions", json=body, headers=headers).status_code
        for _ in range(12)
    }


def test_changes_are_in_use_on_both_processes_in_two_seconds(
    serve: Serve, upstream: Upstream
) -> None:
    address = serve.wait_ready()
    upstream.script("a", answer(200, chat()))

    configure(serve, upstream)
    wait_for(lambda: statuses(address) == {200}, IN_USE_S)

    apply(serve, channels=[{"name": "a", "models": ["m", "m-new"]}])
    wait_for(lambda: statuses(address, model="m-new") == {200}, IN_USE_S)

    apply(serve, channels=[{"name": "a", "enabled": False}])
    wait_for(lambda: statuses(address) == {404}, IN_USE_S)


def test_a_new_token_works_at_once_on_both(serve: Serve, upstream: Upstream) -> None:
    address = serve.wait_ready()
    upstream.script("a", answer(200, chat()))
    configure(serve, upstream)
    wait_for(lambda: statuses(address) == {200}, IN_USE_S)

    made = manage("create_token", "--user", "alice", "--name", "n", env=environment(serve.data_dir))

    assert statuses(address, key=made.stdout.strip()) == {200}


def rush(address: str, count: int) -> Counter[int]:
    """Ask `count` times at once, each on a connection of its own; return the statuses."""
    body, headers = {"model": "m", "messages": []}, {"Authorization": f"Bearer {CLIENT_KEY}"}

    async def ask(client: httpx.AsyncClient) -> int:
        path = f"{address}/v1/chat/completions"
        return (await client.post(path, json=body, headers=headers)).status_code

    async def ask_all() -> list[int]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, timeout=30) as client:
            return await asyncio.gather(*(ask(client) for _ in range(count)))

    return Counter(asyncio.run(ask_all()))


def test_limits_of_a_token_hold_over_both(serve: Serve, upstream: Upstream) -> None:
    """Of 200 requests at once exactly as many pass as a minute allows, and no more at a time
    than may."""
    address = serve.wait_ready()
    upstream.script("a", answer(200, chat()))
    configure(serve, upstream)
    wait_for(lambda: statuses(address) == {200}, IN_USE_S)
    upstream.seen.clear()
    apply(serve, tokens=[{"name": "t", "user": "alice", "rpm": 100}])
    time.sleep(IN_USE_S)

    assert rush(address, 200) == {200: 100, 429: 100}
    assert len(upstream.seen) == 100

    gate = Gate()
    upstream.script("a", held(answer(200, chat()), gate))
    apply(serve, tokens=[{"name": "t", "user": "alice", "rpm": 0, "concurrency": 7}])
    time.sleep(IN_USE_S)
    thread = threading.Thread(target=lambda: (time.sleep(2), [gate.open() for _ in range(7)]))
    thread.start()

    assert rush(address, 200) == {200: 7, 429: 193}
    thread.join()


def test_a_balance_is_spent_once_over_both(serve: Serve, upstream: Upstream) -> None:
    """Of 500 requests at once exactly as many are served as there is money for."""
    address = serve.wait_ready()
    upstream.script("a", answer(200, chat()))
    configure(serve, upstream)
    wait_for(lambda: statuses(address) == {200}, IN_USE_S)
    env = environment(serve.data_dir)
    assert manage("wallet_topup", "alice", "1", env=env).returncode == 0
    upstream.seen.clear()
    apply(
        serve,
        options={"AllowUnpricedModels": False, "TrustQuota": "0"},
        prices=[{"model": "m", "per_call": "0.01"}],
    )
    time.sleep(IN_USE_S)

    assert rush(address, 500) == {200: 100, 403: 400}
    assert len(upstream.seen) == 100
    wait_for(lambda: "$1.00" in spent(serve), 10)
    audit = manage("audit_ledger", env=env)
    assert audit.returncode == 0, audit.stdout


def spent(serve: Serve) -> str:
    return manage("shell", "-v0", "-c", SPENT, env=environment(serve.data_dir)).stdout


SPENT = """
from billing_app.core.money import show_usd
from billing_app.models import Wallet
wallet = Wallet.objects.get(user__username="alice")
print(show_usd(wallet.spent_nusd), show_usd(wallet.available_nusd))
"""


def test_requests_go_on_without_the_state_store(serve: Serve, upstream: Upstream) -> None:
    address = serve.wait_ready()
    upstream.script("a", answer(200, chat()))
    configure(serve, upstream, rpm=1000, concurrency=100)
    wait_for(lambda: statuses(address) == {200}, IN_USE_S)

    [valkey] = serve.children()["valkey"]
    os.kill(valkey, signal.SIGKILL)

    assert rush(address, 50) == {200: 50}
    wait_for(lambda: "rate limits count per process" in serve.output, 5)
    wait_for(lambda: "rate limits are shared again" in serve.output, 20)
    assert statuses(address) == {200}


def test_keys_and_tokens_are_nowhere_in_clear(serve: Serve, upstream: Upstream) -> None:
    """Not in the database and its write-ahead log, Valkey's file, logs, or errors."""
    address = serve.wait_ready()
    configure(serve, upstream)
    echo = f"key {CHANNEL_KEY} of Bearer {CHANNEL_KEY} is wrong"
    upstream.script("a", error(401, echo), error(500, echo, code=CHANNEL_KEY), answer(200, chat()))
    wait_for(lambda: statuses(address) != {401}, IN_USE_S)
    wrong = CLIENT_KEY + "-wrong"
    told = [
        httpx.post(
            f"{address}/v1/chat/completions?key={wrong}",
            headers={"Authorization": f"Bearer {key}"},
            json={"model": "m", "messages": []},
        ).text
        for key in (wrong, CLIENT_KEY)
    ]
    upstream.script("a", error(401, echo, code=CHANNEL_KEY))
    told += [httpx.post(
        f"{address}/v1/chat/completions", json={"model": "m", "messages": []},
        headers={"Authorization": f"Bearer {CLIENT_KEY}"},
    ).text]  # fmt: skip
    running = {path: path.read_bytes() for path in files(serve)}

    assert serve.stop() == 0

    kept = {path: path.read_bytes() for path in files(serve)}
    assert any(path.name.endswith("-wal") for path in running)
    for secret in (CHANNEL_KEY, CLIENT_KEY):
        assert not [text for text in told if secret in text]
        assert secret not in serve.output
        for found in (running, kept):
            assert not [path for path, data in found.items() if secret.encode() in data]


def files(serve: Serve) -> list[Path]:
    return [path for path in serve.data_dir.rglob("*") if path.is_file()]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_slot_is_free_when_the_answer_ends(
    serve: Serve, upstream: Upstream, is_stream: bool
) -> None:
    """A client of one request at a time is never refused, whichever process it meets."""
    address = serve.wait_ready()
    upstream.script("a", answer(200, chat()))
    configure(serve, upstream, concurrency=1)
    wait_for(lambda: statuses(address) == {200}, 5 * IN_USE_S)
    if is_stream:
        upstream.script("a", stream([chunk("x"), chunk(finish="stop"), b"data: [DONE]\n\n"]))
    body = {"model": "m", "messages": [], "stream": is_stream}
    headers = {"Authorization": f"Bearer {CLIENT_KEY}"}

    seen = Counter(
        httpx.post(f"{address}/v1/chat/completions", json=body, headers=headers).status_code
        for _ in range(60)
    )

    assert seen == {200: 60}
