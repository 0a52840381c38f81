"""Kill a loaded relay again and again, take its services away, and hold the ledger to account.

    python bench/kill_rounds.py [--rounds 20] [--outage 90]

With DATABASE_URL and REDIS_URL and the folder of `scripts/services.sh` in SERVICES_DIR: a relay, a
worker and a beat of their own on these, and PostgreSQL stopped for `--outage` seconds at the end.
Without: the embedded relay on SQLite.
Every round kills the relay (every fifth also the worker; every seventh flushes the state store)
while clients ask simulated channels that answer, fail and break off. In the end nothing may be
reserved, no failed request charged, and audit_ledger must be clean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run import ROOT, free_ports, wait_for

# Requests of the first user reserve; those of the second are trusted, and go on while the
# database is away.
KEYS = ("sk-relay-kills-0123456789abcdef", "sk-relay-trusted-0123456789abcd")
CLIENTS = 24
# A lease lasts 60 s and the reaper runs every 30 s.
SETTLED_S = 110
MODELS = {
    "sim-ok": "",
    "sim-slow": "delay-300",
    "sim-stream": "chunks-20-gap-30",
    "sim-fails": "status-400",
    "sim-cut": "cut-3",
}


class Rounds:
    """The relay under test, its clients, and what they were told."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {**os.environ, "DATA_DIR": str(folder / "data"), "LOG_LEVEL": "ERROR"}
        self.is_external = bool(os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL"))
        if self.is_external:
            self.env |= {"SECRET_KEY": "s" * 50, "RELAY_ENCRYPTION_KEYS": "A" * 43 + "="}
        self.config = folder / "config.json"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.told: Counter[str] = Counter()
        self.failed: list[str] = []  # ids of requests that failed
        self.answered: list[str] = []  # ids of whole answers
        self.answered_away: list[str] = []  # those of them that came while the database was away
        self.is_over = False

    def prepare(self) -> None:
        """Make the database and the configuration."""
        document = {
            "version": 1,
            "options": {"TrustQuota": "500", "RetryTimes": 0},
            "groups": [{"name": "default"}],
            "channels": [
                {"name": model, "type": "simulated", "models": [model], "groups": ["default"],
                 "settings": {"behaviour": behaviour} if behaviour else {}}
                for model, behaviour in MODELS.items()
            ],
            "users": [{"name": "reserves", "balance_usd": 400},
                      {"name": "trusted", "balance_usd": 4000}],
            "tokens": [{"name": "reserves", "user": "reserves", "key": KEYS[0]},
                       {"name": "trusted", "user": "trusted", "key": KEYS[1]}],
            "prices": [{"model": "sim-*", "per_call": "0.001"}],
        }  # fmt: skip
        self.config.write_text(json.dumps(document))
        self.manage("migrate", "-v0")
        self.manage("apply_config", str(self.config))

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py; what it says is kept."""
        command = [sys.executable, str(ROOT / "manage.py"), *words]
        return subprocess.run(command, env=self.env, check=False, capture_output=True, text=True)

    def start(self, name: str, *more: str) -> None:
        """Start a process of the installation."""
        celery = [sys.executable, "-m", "celery", "-A", "relayproject"]
        commands = {
            "relay": [sys.executable, str(ROOT / "manage.py"), "serve", "--port", str(self.port)],
            "worker": [*celery, "worker", "--pool=threads", "-c", "2"],
            "beat": [*celery, "beat"],
        }
        self.processes[name] = subprocess.Popen(
            [*commands[name], *more], env=self.env, cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if name == "relay":
            wait_for(self.port)

    def kill(self, name: str) -> None:
        """Kill a process where it stands."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End what still runs."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(40)
            process.kill()

    # -- clients -----------------------------------------------------------------------------

    async def ask_for_ever(self, number: int) -> None:
        """Ask one model after the other, whatever happens, until it is over."""
        dice = random.Random(number)
        headers = {"Authorization": f"Bearer {KEYS[number % 2]}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=20) as client:
            while not self.is_over:
                try:
                    await self.ask(client, dice.choice(list(MODELS)), is_stream=dice.random() < 0.5)
                except httpx.HTTPError:
                    self.told["connection lost"] += 1
                    await asyncio.sleep(0.2)

    async def ask(self, client: httpx.AsyncClient, model: str, *, is_stream: bool) -> None:
        """Ask once and note what was told."""
        document = {"model": model, "stream": is_stream,
                    "messages": [{"role": "user", "content": "hi"}]}  # fmt: skip
        async with client.stream("POST", "/v1/chat/completions", json=document) as response:
            request_id = response.headers["x-request-id"]
            body = await response.aread()
        self.told[f"{response.status_code}"] += 1
        if response.status_code != 200:
            self.failed.append(request_id)
        elif not is_stream or b"[DONE]" in body:
            self.answered.append(request_id)

    async def rounds(self, count: int) -> None:
        """Kill the relay so many times under load."""
        clients = [asyncio.create_task(self.ask_for_ever(n)) for n in range(CLIENTS)]
        for number in range(1, count + 1):
            await self.some_answers(30)
            await asyncio.sleep(random.uniform(0, 2))
            self.kill("relay")
            if number % 7 == 0 and self.is_external:
                await asyncio.to_thread(self.flush)
            if number % 5 == 0 and self.is_external:
                self.kill("worker")
                self.start("worker")
            await asyncio.to_thread(self.start, "relay")
            print(f"round {number}: {dict(self.told)}", flush=True)
        await asyncio.sleep(2)
        self.is_over = True
        await asyncio.gather(*clients)

    async def some_answers(self, count: int) -> None:
        """Wait for so many more answers, at most 20 s."""
        wanted = len(self.answered) + count
        for _ in range(200):
            if len(self.answered) >= wanted:
                return
            await asyncio.sleep(0.1)

    def flush(self) -> None:
        """Delete all that the state store holds, the queue of tasks too."""
        subprocess.run(["redis-cli", "-u", self.env["REDIS_URL"], "flushall"], check=False)

    async def outage(self, seconds: float) -> None:
        """Take PostgreSQL away under load."""
        folder = Path(self.env["SERVICES_DIR"])
        options = " ".join((folder / "pg" / "postmaster.opts").read_text().split()[1:])
        options = options.replace('"', "")
        self.is_over = False
        clients = [asyncio.create_task(self.ask_for_ever(n)) for n in range(CLIENTS)]
        await asyncio.sleep(3)
        await asyncio.to_thread(_pg_ctl, folder, "stop", "-m", "fast")
        before = len(self.answered)
        await asyncio.sleep(seconds)
        self.answered_away = self.answered[before:]
        print(f"while away: {len(self.answered_away)} answers, {dict(self.told)}", flush=True)
        start = ("start", "-l", str(folder / "pg.log"), "-o", options)
        await asyncio.to_thread(_pg_ctl, folder, *start)
        await asyncio.sleep(10)
        self.is_over = True
        await asyncio.gather(*clients)

    # -- the end -----------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Return what is wrong with the books."""
        audit = self.manage("audit_ledger")
        found = [] if audit.returncode == 0 else [audit.stdout + audit.stderr]
        print(audit.stdout.strip())
        ids = self.config.with_name("ids.json")
        named = {"failed": self.failed, "answered": self.answered, "away": self.answered_away}
        ids.write_text(json.dumps(named))
        code = CHECK.format(path=str(ids))
        checked = self.manage("shell", "-v0", "-c", code)
        figures = json.loads(checked.stdout.strip().splitlines()[-1])
        print(figures)
        if figures["open"]:
            found.append(f"{figures['open']} sessions are still open")
        if figures["failed_charged"]:
            found.append(f"{figures['failed_charged']} failed requests were charged")
        if figures["away_free"]:
            found.append(f"{figures['away_free']} answers of the outage were not charged")
        return found


CHECK = """
import json
from collections import Counter
from billing_app.models import BillingSession
ids = json.load(open({path!r}))
states = dict(BillingSession.objects.values_list("request_id", "state"))
failed, answered = ids["failed"], ids["answered"]
print(json.dumps(dict(
    sessions=Counter(states.values()),
    open=sum(state in ("reserved", "refund_due") for state in states.values()),
    failed=len(failed),
    failed_charged=sum(states.get(i) == "settled" for i in failed),
    answered=len(answered),
    answered_free=sum(states.get(i) != "settled" for i in answered),
    away=len(ids["away"]),
    away_free=sum(states.get(i) != "settled" for i in ids["away"]),
)))
"""


def _pg_ctl(folder: Path, *words: str) -> None:
    (program,) = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))[-1:]
    command = [str(program), "-D", str(folder / "pg"), "-w", *words]
    if os.getuid() == 0:
        command = ["runuser", "-u", "postgres", "--", *command]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


def main() -> int:
    """Run the rounds and say what is wrong; 0 if nothing is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--outage", type=float, default=90)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(Path(folder))
        rounds.prepare()
        names = ["relay", "worker", "beat"] if rounds.is_external else ["relay"]
        try:
            for name in names:
                rounds.start(name)
            began_s = time.monotonic()
            asyncio.run(rounds.rounds(options.rounds))
            if rounds.is_external and options.outage:
                asyncio.run(rounds.outage(options.outage))
            print(f"load for {time.monotonic() - began_s:.0f} s; waiting {SETTLED_S} s", flush=True)
            time.sleep(SETTLED_S)
            faults = rounds.faults()
        finally:
            rounds.stop()
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
