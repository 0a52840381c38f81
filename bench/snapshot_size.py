"""How a large configuration behaves: 5,000 channels of 20 models, 50,000 tokens, two relays.

While 32 streams run through both relay processes, one channel is changed and one token made
every second. Told are: the start of a relay, the time until a change is in use on both, and
the longest gap between two pieces of any stream (the upstream sends one every 50 ms). It runs
for over a minute, so that a full rebuild falls into it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run import ROOT, free_ports, wait_for

CHANNELS, MODELS, TOKENS = 5_000, 20, 50_000
STREAMS, GAP_MS, SECONDS = 32, 50, 75
KEY = "sk-relay-size-0123456789abcdef"
MANAGE = [sys.executable, str(ROOT / "manage.py")]


def main() -> int:
    """Run it and print the figures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="size-")))
        env = {**os.environ, "DATA_DIR": str(folder / "data"), "LOG_LEVEL": "WARNING"}
        fill(folder, env)
        ports = free_ports(2)
        for port, extra in zip(ports, ([], ["--no-embedded"]), strict=True):
            begin_s = time.monotonic()
            process = subprocess.Popen([*MANAGE, "serve", "--port", str(port), *extra], env=env)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            wait_for(port)
            print(
                f"relay on port {port} ready after {time.monotonic() - begin_s:.1f} s", flush=True
            )
        asyncio.run(measure(ports, env))
    return 0


def fill(folder: Path, env: dict[str, str]) -> None:
    """Write the configuration."""
    config = {
        "version": 1,
        "groups": [{"name": "default"}],
        "channels": [
            {"name": f"c{n}", "type": "simulated", "groups": ["default"],
             "keys": [f"sk-size-{n:06d}-0123456789"],
             "models": [f"model-{(n * 7 + m) % 3000}" for m in range(MODELS)]}
            for n in range(CHANNELS)
        ] + [{"name": "streams", "type": "simulated", "groups": ["default"],
              "models": ["sim*"]}],
        "users": [{"name": "size", "balance_usd": 1_000_000}],
        "prices": [{"model": "*", "input": 1, "output": 4}],
        "tokens": [{"name": "size", "user": "size", "key": KEY}] + [
            {"name": f"t{n}", "user": "size", "key": f"sk-relay-size-{n:06d}-0123456789"}
            for n in range(TOKENS)
        ],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([*MANAGE, "migrate", "-v0"], env=env, check=True)
    begin_s = time.monotonic()
    command = [*MANAGE, "apply_config", str(folder / "config.json")]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    print(f"configuration applied in {time.monotonic() - begin_s:.1f} s", flush=True)


async def measure(ports: list[int], env: dict[str, str]) -> None:
    """Run streams and changes side by side and print what was seen."""
    gaps: list[float] = []
    delays: list[float] = []
    end_s = time.monotonic() + SECONDS
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        streams = [
            asyncio.create_task(stream(session, ports[n % 2], end_s, gaps)) for n in range(STREAMS)
        ]
        number = 0
        while time.monotonic() < end_s - 5:
            number += 1
            delays.append(await change(session, ports, env, number))
            await asyncio.sleep(1)
        await asyncio.gather(*streams)
    print(f"{number} changes, each in use on both relays after {max(delays):.2f} s at most")
    print(f"longest gap of {STREAMS} streams: {max(gaps) * 1000:.0f} ms (sent every {GAP_MS} ms)")


async def stream(
    session: aiohttp.ClientSession, port: int, end_s: float, gaps: list[float]
) -> None:
    """Read streams until the end, noting the longest gap of each."""
    body = {"model": f"sim-chunks-100-gap-{GAP_MS}", "messages": [], "stream": True}
    while time.monotonic() < end_s:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with session.post(url, json=body) as response:
            last_s = None
            async for _ in response.content.iter_any():
                now_s = time.monotonic()
                if last_s is not None:
                    gaps.append(now_s - last_s)
                last_s = now_s


async def change(
    session: aiohttp.ClientSession, ports: list[int], env: dict[str, str], number: int
) -> float:
    """Give one channel a new model by a command; return the seconds until both serve it."""
    model = f"new-{number}"
    config = {"version": 1, "channels": [{"name": f"c{number}", "models": [model]}]}
    path = Path(env["DATA_DIR"]) / "change.json"
    path.write_text(json.dumps(config))
    await run([*MANAGE, "apply_config", str(path)], env)
    begin_s = time.monotonic()
    waiting = set(ports)
    while waiting:
        for port in list(waiting):
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with session.post(url, json={"model": model, "messages": []}) as response:
                await response.read()
                if response.status == 200:
                    waiting.discard(port)
        await asyncio.sleep(0.02)
    return time.monotonic() - begin_s


async def run(command: list[str], env: dict[str, str]) -> None:
    """Run a command to its end without holding up the streams."""
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        raise RuntimeError(f"{command} failed")


if __name__ == "__main__":
    sys.exit(main())
