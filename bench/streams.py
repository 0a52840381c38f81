"""Streams under load on one relay process: gaps, memory, CPU, slow readers, hang-ups.

    python bench/streams.py [--streams 1000] [--seconds 30] [--hang-ups 1000]

The relay is a real `manage.py serve` with SQLite and the embedded Valkey, on one core where
there is `taskset`; mock upstream and clients share the rest. Every event is numbered and holds
the time at which the upstream sent it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run import HERE, ROOT, cpu_model, free_ports, wait_for
from stream_client import Histogram, StreamClient, Tally, open_stream

KEY = "sk-relay-streams-0123456789abcdef"
LIMITED_KEY = "sk-relay-limited-0123456789abcdef"
SLOTS = 100  # requests at once of the second token
RAMP_S = 0.004  # between two starts
GONE_S = 1.0
# Of what waits for a client that reads nothing: 256 KiB, and what any open stream takes.
MAX_READER_KIB = 256 + 60
SLOW_READERS = 64
FLOOD = "b-flood-256"
# Phases of a hang-up: the model and whether content is waited for first.
HANG_UPS = (("b-silent", False), ("b-held", False), ("b-pace-20-100000", True), ("b-stall", True))
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Relay:
    """The process under test, seen from outside."""

    pid: int
    port: int
    mock_port: int
    peak_kib: int = field(default=0, init=False)
    sockets_at_start: int = field(default=0, init=False)
    faults: list[str] = field(default_factory=list, init=False)

    def check(self, is_good: bool, fault: str) -> None:
        """Note what must not be."""
        if not is_good:
            self.faults.append(fault)

    @property
    def cpu_s(self) -> float:
        """The seconds of CPU that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def rss_kib(self) -> int:
        """The memory that it has now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    @property
    def sockets(self) -> int:
        """The sockets that it has open."""
        found = 0
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found += str(link.readlink()).startswith("socket:")
        return found

    async def watch(self) -> None:
        """Note the peak of its memory until cancelled."""
        while True:
            self.peak_kib = max(self.peak_kib, self.rss_kib)
            await asyncio.sleep(0.25)

    @asynccontextmanager
    async def peak_watched(self) -> AsyncIterator[None]:
        """Note the peak of its memory meanwhile."""
        self.peak_kib = 0
        task = asyncio.create_task(self.watch())
        try:
            yield
        finally:
            task.cancel()

    async def upstream(self) -> dict[str, Any]:
        """Return what the mock upstream knows of closed connections."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.mock_port)
        writer.write(b"GET /closed HTTP/1.1\r\n\r\n")
        told = await reader.read()
        writer.close()
        return dict(json.loads(told.partition(b"\r\n\r\n")[2]))


def main() -> int:
    """Run the phases and print the figures."""
    options = read_options()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if min(soft, hard) < 3 * options.streams:
        print(f"streams: {hard} open files are few for {options.streams} streams")
    with ExitStack() as stack:
        relay = start(stack)
        rows = uvloop.run(run_phases(relay, options))
    print(f"\n{cpu_model()} · {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} ·"
          f" Python {sys.version.split()[0]}")  # fmt: skip
    for name, figures in rows:
        print(f"\n{name}")
        for figure, value in figures.items():
            print(f"  {figure:44} {value}")
    for fault in relay.faults:
        print(f"FAULT: {fault}")
    return 1 if relay.faults else 0


def read_options() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000, help="streams at once, 100 ms pace")
    parser.add_argument("--fast", type=int, default=512, help="streams at once, 20 ms pace")
    parser.add_argument("--seconds", type=int, default=30, help="how long each phase goes on")
    parser.add_argument("--hang-ups", type=int, default=1000)
    return parser.parse_args()


def start(stack: ExitStack) -> Relay:
    """Start mock and relay; both end with `stack`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streams-")))
    env = {**os.environ, "DATA_DIR": str(folder / "data"), "LOG_LEVEL": "WARNING"}
    relay_port, mock_port = free_ports(2)
    core = ["taskset", "-c", "0"] if shutil.which("taskset") else []
    other = ["taskset", "-c", "1"] if core and (os.cpu_count() or 1) > 1 else []
    if other:
        os.sched_setaffinity(0, set(range(1, os.cpu_count() or 2)))
    mock = [*other, sys.executable, str(HERE / "paced_mock.py"), str(mock_port)]
    end_with(stack, subprocess.Popen(mock))
    config = {
        "version": 1,
        "groups": [{"name": "default"}],
        "channels": [{"name": "paced", "type": "openai", "keys": ["sk-mock-0123456789abcdef"],
                      "base_url": f"http://127.0.0.1:{mock_port}/v1", "models": ["b-*"],
                      "groups": ["default"]}],
        "options": {"IdleTimeout": 3600, "FirstTokenTimeout": 3600, "FirstByteTimeout": 3600},
        "users": [{"name": "bench", "balance_usd": 1_000_000}],
        "prices": [{"model": "*", "input": 1, "output": 4}],
        "tokens": [{"name": "free", "user": "bench", "unlimited": True, "key": KEY},
                   {"name": "limited", "user": "bench", "unlimited": True, "key": LIMITED_KEY,
                    "concurrency": SLOTS}],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    manage = [*core, sys.executable, str(ROOT / "manage.py")]
    for command in (["migrate", "-v0"], ["apply_config", str(folder / "config.json")]):
        subprocess.run([*manage, *command], env=env, check=True, stdout=subprocess.DEVNULL)
    serve = subprocess.Popen(
        [*manage, "serve", "--port", str(relay_port)], env=env, stdout=subprocess.DEVNULL
    )
    end_with(stack, serve)
    for port in (mock_port, relay_port):
        wait_for(port)
    return Relay(pid=serve.pid, port=relay_port, mock_port=mock_port)


def end_with(stack: ExitStack, process: subprocess.Popen[bytes]) -> None:
    """End `process` with `stack`."""
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)


Row = tuple[str, dict[str, str]]


async def run_phases(relay: Relay, options: argparse.Namespace) -> list[Row]:
    """Return a table of figures for each phase."""
    await paced(relay, 32, gap_ms=5, seconds=2)  # imports and caches are no memory of streams
    for stream in await open_all(relay, LIMITED_KEY, "b-stall", 1, tally=Tally()):
        stream.hang_up()  # the limiter has its connection from now on
    await asyncio.sleep(GONE_S)
    relay.sockets_at_start = relay.sockets - (await relay.upstream())["open"]
    # First, while no memory is free that an earlier phase has left.
    rows = [(f"{SLOW_READERS} readers that stop", await slow(relay, seconds=options.seconds))]
    print("done: readers that stop", flush=True)
    for count, gap_ms in ((options.streams, 100), (options.fast, 20)):
        name = f"{count} streams at a {gap_ms} ms pace"
        rows.append((name, await paced(relay, count, gap_ms=gap_ms, seconds=options.seconds)))
        print(f"done: {name}", flush=True)
    name = f"{options.hang_ups} hang-ups, {SLOTS} at once"
    rows.append((name, await hang_ups(relay, options.hang_ups)))
    return rows


async def paced(relay: Relay, count: int, *, gap_ms: int, seconds: int) -> dict[str, str]:
    """Run `count` streams side by side for so many seconds."""
    tally, before_kib, begin_s = Tally(), relay.rss_kib, time.monotonic()
    async with relay.peak_watched():
        model = f"b-pace-{gap_ms}-{int((seconds + count * RAMP_S) * 1000 / gap_ms)}"
        streams = await open_all(relay, KEY, model, count, tally=tally)
        ramp_s = time.monotonic() - begin_s
        events, cpu_s, steady_s = tally.events, relay.cpu_s, time.monotonic()
        await asyncio.sleep(max(1.0, seconds - 1))  # while all of them run
        events, cpu_s = tally.events - events, relay.cpu_s - cpu_s
        steady_s = time.monotonic() - steady_s
        await asyncio.wait_for(asyncio.gather(*(s.ended for s in streams)), seconds + 120)
    added_kib = relay.peak_kib - before_kib
    wrong = tally.lost + tally.repeated + tally.failed
    relay.check(not wrong, f"{count} streams: events lost or repeated, or ends missing")
    return {
        "events": f"{tally.events:,} ({events / steady_s:,.0f}/s)",
        "started within": f"{ramp_s:.1f} s",
        "lost / repeated / streams without an end": (
            f"{tally.lost} / {tally.repeated} / {tally.failed}"
        ),
        "gap as received, p50 / p99 / max": spread(tally.gaps),
        "gap as sent by the upstream": spread(tally.sent_gaps),
        "from upstream to client": spread(tally.delays),
        "relay CPU": (
            f"{cpu_s / steady_s:.0%} of a core, {1e6 * cpu_s / max(events, 1):.1f} µs an event"
        ),
        "relay memory before / at peak": (
            f"{before_kib / 1024:.0f} / {relay.peak_kib / 1024:.0f} MiB,"
            f" {added_kib / count:.1f} KiB a stream"
        ),
    }


def spread(times: Histogram) -> str:
    """Return the usual quantiles in words."""
    return f"{times.at(0.5):.1f} / {times.at(0.99):.1f} / {times.at(1.0):.1f} ms"


async def open_all(
    relay: Relay, key: str, model: str, count: int, *, tally: Tally
) -> list[StreamClient]:
    """Start streams one after the other; return once each has content."""
    streams = []
    for _ in range(count):
        streams.append(await open_stream(relay.port, key, model, tally=tally))
        await asyncio.sleep(RAMP_S)
    await asyncio.wait_for(asyncio.gather(*(s.begun for s in streams)), 60)
    return streams


async def slow(relay: Relay, *, seconds: int) -> dict[str, str]:
    """Let readers stop in a flood that the upstream would send as fast as it is taken."""
    tally, before_kib = Tally(), relay.rss_kib
    async with relay.peak_watched():
        readers = []
        for _ in range(SLOW_READERS):
            reader = await open_stream(relay.port, KEY, FLOOD, tally=tally, receive_buffer=65_536)
            readers.append(reader)
            await reader.begun
            reader.pause()
        cpu_s = relay.cpu_s
        await asyncio.sleep(seconds)
        cpu_s = relay.cpu_s - cpu_s
        for reader in readers:
            reader.hang_up()
    each_kib = (relay.peak_kib - before_kib) / SLOW_READERS
    relay.check(each_kib <= MAX_READER_KIB, f"{each_kib:.0f} KiB for a reader that stopped")
    return {
        "relay memory before / at peak": (
            f"{before_kib / 1024:.1f} / {relay.peak_kib / 1024:.1f} MiB,"
            f" {each_kib:.0f} KiB a reader"
        ),
        "relay CPU meanwhile": f"{cpu_s / seconds:.1%} of a core",
    }


async def hang_ups(relay: Relay, count: int) -> dict[str, str]:
    """Hang up at all phases, each client as soon as another has its place."""
    places = asyncio.Semaphore(SLOTS - 10)
    hung_up_s: dict[str, float] = {}
    statuses: dict[int, int] = {}
    tally = Tally()

    async def one(number: int) -> None:
        async with places:
            model, waits = HANG_UPS[number % len(HANG_UPS)]
            name = f"n{number}"
            stream = await open_stream(relay.port, LIMITED_KEY, model, tally=tally, name=name)
            if waits:
                await asyncio.wait_for(stream.begun, 30)
            await asyncio.sleep(random.uniform(0, 0.3))
            statuses[stream.status] = statuses.get(stream.status, 0) + 1
            hung_up_s[name] = stream.hang_up()
        await asyncio.sleep(0)

    begin_s = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(count)))
    took_s = time.monotonic() - begin_s
    await asyncio.sleep(GONE_S)
    told = await relay.upstream()
    closed_s, idle = told["closed_s"], told["open"]
    left = relay.sockets - relay.sockets_at_start - idle
    # Some hung up before the relay had asked anybody.
    asked = [name for name in hung_up_s if name in closed_s]
    late_s = [closed_s[name] - hung_up_s[name] for name in asked if closed_s[name]]
    again = await open_all(relay, LIMITED_KEY, "b-stall", SLOTS, tally=Tally())
    free = sum(stream.status == 200 for stream in again)
    relay.check(free == SLOTS, f"{SLOTS - free} slots were not free after the hang-ups")
    is_all_closed = len(late_s) == len(asked) and max(late_s, default=0) < GONE_S
    relay.check(is_all_closed, "upstreams were not let go within a second")
    relay.check(left <= 0, f"{left} sockets left after the hang-ups")
    for stream in again:
        stream.hang_up()
    return {
        "hang-ups": f"{count / took_s:.0f}/s, statuses seen {dict(sorted(statuses.items()))}",
        "upstream asked / closed within 1 s": (
            f"{len(asked)} / {sum(late < GONE_S for late in late_s)}"
        ),
        "closed after at most": f"{max(late_s, default=0) * 1000:.0f} ms",
        "upstream connections / relay sockets left": f"{idle} / {left}",
        "slots free again": f"{free} of {SLOTS}",
    }


if __name__ == "__main__":
    sys.exit(main())
