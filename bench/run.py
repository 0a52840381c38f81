"""`make bench`: what the relay adds and how far it is from nginx, as ratios of one run.

The relay and nginx as a plain proxy take turns in front of the same mock upstream; proxies
share one core, mock and load the other. Rounds interleave, medians are told, a round with
any failed request is invalid. Needs nginx and wrk.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SECONDS = int(os.environ.get("BENCH_SECONDS", "5"))
EVENTS = 502  # what bench/sse_mock.py sends in one answer: 500, the end and [DONE]

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a" * 400},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30},
    }
)  # fmt: skip


@dataclass(frozen=True)
class Ports:
    """Where everything listens."""

    mock: int
    sse: int
    proxy: int
    relay: int


@dataclass(frozen=True)
class Load:
    """One kind of load: its name, the path below which each target has it."""

    name: str
    clients: int
    kind: str  # plain or sse


LOADS = (
    Load("16 clients", 16, "plain"),
    Load("1 client", 1, "plain"),
    Load("32 streams", 32, "sse"),
)


def main() -> int:
    """Run all rounds and print the report."""
    missing = [tool for tool in ("nginx", "wrk", "taskset") if not shutil.which(tool)]
    if missing:
        print(f"bench: {', '.join(missing)} not found; on Debian: apt-get install nginx-light wrk")
        return 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        ports = Ports(*free_ports(4))
        start_all(stack, folder, ports)
        results = run_rounds(ports)
    report(results)
    return 0


def start_all(stack: ExitStack, folder: Path, ports: Ports) -> None:
    """Start mocks and proxies, wait until they answer."""
    for name, core in (("mock", 1), ("proxy", 0)):
        text = (HERE / f"{name}.conf").read_text().replace("@DIR@", str(folder))
        text = text.replace("@ANSWER@", ANSWER)
        for port in ("mock", "sse", "proxy"):
            text = text.replace(f"@{port.upper()}@", str(getattr(ports, port)))
        (folder / f"{name}.conf").write_text(text)
        stack.enter_context(running(core, "nginx", "-c", str(folder / f"{name}.conf")))
    stack.enter_context(running(1, sys.executable, str(HERE / "sse_mock.py"), str(ports.sse)))
    start_relay(stack, folder, ports)
    for port in (ports.mock, ports.sse, ports.proxy, ports.relay):
        wait_for(port)


def start_relay(stack: ExitStack, folder: Path, ports: Ports) -> None:
    """Start the relay on a database of its own, with one channel for each mock."""
    env = {**os.environ, "DATA_DIR": str(folder / "data"), "LOG_LEVEL": "ERROR"}
    config = {
        "version": 1,
        "groups": [{"name": "default"}],
        "channels": [
            {"name": kind, "type": "openai", "keys": ["sk-mock-0123456789abcdef"],
             "base_url": f"http://127.0.0.1:{port}/{kind}/v1", "models": [kind],
             "groups": ["default"]}
            for kind, port in (("plain", ports.mock), ("sse", ports.sse))
        ],
        "users": [{"name": "bench", "balance_usd": 1_000_000}],
        "prices": [{"model": "*", "input": 1, "output": 4}],
        "tokens": [{"name": "bench", "user": "bench", "unlimited": True,
                    "key": "sk-relay-bench-0123456789abcdef"}],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    manage = [sys.executable, str(ROOT / "manage.py")]
    for command in (["migrate", "-v0"], ["apply_config", str(folder / "config.json")]):
        subprocess.run([*manage, *command], env=env, check=True, stdout=subprocess.DEVNULL)
    serve = [*manage, "serve", "--port", str(ports.relay)]
    stack.enter_context(running(0, *serve, env=env))


@contextmanager
def running(core: int, *command: str, env: dict[str, str] | None = None) -> Iterator[None]:
    """Run `command` on one core; end it afterwards."""
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command], env=env, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def run_rounds(ports: Ports) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Return the results of each (load, target), a row for each valid round."""
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(1, ROUNDS + 1):
        for load in LOADS:
            direct = ports.mock if load.kind == "plain" else ports.sse
            for target, port in (
                ("direct", direct),
                ("nginx", ports.proxy),
                ("relay", ports.relay),
            ):
                path = "/v1/chat/completions" if target == "relay" else f"/{load.kind}/x"
                row = measure(load, f"http://127.0.0.1:{port}{path}")
                note = f"{row['rate']:.0f}/s p50 {row['p50_ms']:.2f} ms p99 {row['p99_ms']:.2f} ms"
                if row["errors"]:
                    note = f"INVALID: {row['errors']:.0f} failed requests"
                else:
                    results.setdefault((load.name, target), []).append(row)
                print(f"round {number}/{ROUNDS}  {load.name:11} {target:7} {note}", flush=True)
    return results


def measure(load: Load, url: str) -> dict[str, float]:
    """Return rate (answers a second), latencies in ms and failed requests of one round."""
    threads_clients = ["-t1", f"-c{load.clients}", f"-d{SECONDS}"]
    command = ["taskset", "-c", "1", "wrk", *threads_clients, "-s", str(HERE / "load.lua"), url]
    extra = ["stream"] if load.kind == "sse" else []
    done = subprocess.run(
        [*command, "--", load.kind, *extra], capture_output=True, text=True, check=True
    )
    line = next(x for x in done.stdout.splitlines() if x.startswith("RESULT "))
    raw = json.loads(line.removeprefix("RESULT "))
    return {
        "rate": raw["requests"] / raw["us"] * 1e6,
        "p50_ms": raw["p50"] / 1000,
        "p99_ms": raw["p99"] / 1000,
        "errors": raw["errors"] + (raw["requests"] == 0),
    }


def report(results: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    """Print what was measured on, then medians and ratios."""

    def median(load: str, target: str, figure: str) -> float:
        rows = results.get((load, target), [])
        return statistics.median(row[figure] for row in rows) if rows else float("nan")

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    print(f"\ncommit {commit or '?'} · {cpu_model()} · Python {sys.version.split()[0]}"
          f" ({platform.python_compiler()}) · {ROUNDS} rounds of {SECONDS} s, medians")  # fmt: skip
    store = "DATABASE_URL" if os.environ.get("DATABASE_URL") else "SQLite"
    print(f"one core for the proxies, one for mock and load; logs go to {store}")
    relay, nginx = (median("16 clients", t, "rate") for t in ("relay", "nginx"))
    print(f"\n16 clients: relay {relay:,.0f}/s, nginx {nginx:,.0f}/s, ratio {relay / nginx:.4f}")
    direct = median("1 client", "direct", "p50_ms")
    for target in ("relay", "nginx"):
        added = median("1 client", target, "p50_ms") - direct
        print(f"1 client: {target} adds {added:.2f} ms (p50)")
    relay, nginx = (median("32 streams", t, "rate") * EVENTS for t in ("relay", "nginx"))
    print(f"32 streams: relay {relay:,.0f} events/s, nginx {nginx:,.0f}, ratio {relay / nginx:.3f},"
          f" {1e6 / relay:.0f} µs a relayed event at full load")  # fmt: skip


def cpu_model() -> str:
    """Return the processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown CPU"
    return next((x.split(": ")[1] for x in lines if x.startswith("model name")), "unknown CPU")


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_for(port: int, *, seconds: float = 60) -> None:
    """Return once something listens on `port`; raise TimeoutError."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")


if __name__ == "__main__":
    sys.exit(main())
