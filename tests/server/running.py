"""A real `manage.py serve` in a process of its own, with what the tests ask about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent.parent
READY_S = 60.0


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    """Return the environment of a fresh embedded installation."""
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "DATA_DIR": str(data_dir), "RELAY_ENV_FILE": "", **more}


def manage(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one management command to its end."""
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Serve:
    """One `manage.py serve`; stdout and stderr go to files beside its data."""

    def __init__(self, data_dir: Path, *arguments: str, **more: str) -> None:
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir
        self.stdout = data_dir.parent / f"{data_dir.name}.out"
        self.stderr = data_dir.parent / f"{data_dir.name}.err"
        with self.stdout.open("w") as out, self.stderr.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "serve", "--port", "0", *arguments],
                env=environment(data_dir, **more),
                stdout=out,
                stderr=err,
            )

    @property
    def output(self) -> str:
        """What it printed so far, stdout first."""
        return self.stdout.read_text() + self.stderr.read_text()

    def wait_ready(self) -> str:
        """Return its address once the ready line is out."""
        wait_for(
            lambda: "relay ready on " in self.stdout.read_text() or self.process.poll() is not None,
            READY_S,
        )
        assert self.process.poll() is None, self.output
        return self.stdout.read_text().split("relay ready on ")[1].split()[0]

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = 20.0) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(within_s)

    def end(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.wait()

    def children(self) -> dict[str, list[int]]:
        """Return the pids of its children by what they are."""
        found: dict[str, list[int]] = {"valkey": [], "celery": [], "relay": []}
        for pid, command in processes_of(self.process.pid):
            for kind, mark in (
                ("celery", "celery"),
                ("relay", "relayproject.server"),
                ("valkey", "-server"),
            ):
                if mark in command:
                    found[kind].append(pid)
                    break
        return found


def processes_of(parent: int) -> list[tuple[int, str]]:
    """Return pid and command line of each process whose parent is `parent`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            ppid = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):  # ended meanwhile
            continue
        if ppid == parent:
            found.append((int(folder.name), command))
    return found


def is_running(pid: int) -> bool:
    """Return whether `pid` exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def answers(address: str) -> bool:
    """Return whether the relay at `address` serves its liveness path."""
    try:
        return httpx.get(f"{address}/healthz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def wait_for(happened: Callable[[], object], seconds: float) -> None:
    """Return when `happened` is true; fail after `seconds`."""
    give_up_s = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < give_up_s, f"did not happen within {seconds} s"
        time.sleep(0.02)
