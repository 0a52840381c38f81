"""Child processes of `serve`: started, watched, started again, stopped; never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from relayproject import die_with_parent

log = structlog.get_logger(__name__)

WATCH_S = 0.1  # how soon a dead child is noticed
BACKOFF_S = 0.5  # before the first new start; doubled each time ...
BACKOFF_CAP_S = 10.0  # ... up to this
HURRY_S = 2.0  # what is left to a child once the operator wants the end now
WAIT_POLL_S = 0.05
STEADY_S = 30.0  # a child that lived this long starts over at BACKOFF_S


class Child:
    """One child process and how to start it.

    `stop_s` is how long it may take to end after SIGTERM before it is killed; `is_last` makes it
    stop after the others, which need it; what `is_mute` writes to standard output is dropped. It
    runs in a session of its own, so that Ctrl-C reaches only the parent, which stops things in
    order.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        stop_s: float,
        environ: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        folder: Path | None = None,
        is_last: bool = False,
        is_mute: bool = False,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.stop_s = stop_s
        self.environ = environ
        self.pass_fds = tuple(pass_fds)
        self.folder = folder
        self.is_last = is_last
        self.is_mute = is_mute
        self.process: subprocess.Popen[bytes] | None = None
        self.is_wanted = False
        self._kill_at_s = 0.0
        self._started_s = 0.0
        self._failures = 0
        self._restart_at_s: float | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the latest start."""
        return self.process.pid if self.process else None

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process."""
        shim = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        self.process = subprocess.Popen(
            [*shim, *self.command],
            env=self.environ,
            pass_fds=self.pass_fds,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if self.is_mute else None,
            start_new_session=True,
        )
        self.is_wanted = True
        self._started_s = time.monotonic()
        self._restart_at_s = None

    def restart_if_due(self) -> None:
        """Start the process again when it ended by itself and its pause is over."""
        if not self.is_wanted or self.process is None or self.is_alive:
            return
        now_s = time.monotonic()
        if self._restart_at_s is None:
            pause_s = self._pause_s(lived_s=now_s - self._started_s)
            self._restart_at_s = now_s + pause_s
            log.error(
                "child_ended",
                child=self.name,
                exit_code=self.process.returncode,
                restart_s=round(pause_s, 1),
            )
        if now_s >= self._restart_at_s:
            self.start()
            log.warning("child_restarted", child=self.name, pid=self.pid)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, once; `wait_stopped` does the rest."""
        if self.is_wanted and self.process is not None and self.is_alive:
            self.process.terminate()
            self._kill_at_s = time.monotonic() + self.stop_s
        self.is_wanted = False

    def wait_stopped(self) -> None:
        """Return when the process has ended; kill it when its time is over."""
        if self.process is None:
            return
        # In short steps: a second signal may bring the time to kill forward.
        while time.monotonic() < self._kill_at_s:
            try:
                self.process.wait(WAIT_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            return
        if self.is_alive:
            log.warning("child_killed", child=self.name)
            self.kill()
        self.process.wait()

    def hurry(self) -> None:
        """Ask once more, and leave it little time; safe inside a signal handler."""
        if self.process is not None and self.is_alive:
            self.ask_to_stop()
            self.process.terminate()
            self._kill_at_s = min(self._kill_at_s, time.monotonic() + HURRY_S)

    def kill(self) -> None:
        """Kill the process and whatever it started in its session."""
        self.is_wanted = False
        if self.process is not None and self.is_alive:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _pause_s(self, *, lived_s: float) -> float:
        self._failures = 0 if lived_s >= STEADY_S else self._failures + 1
        return min(BACKOFF_CAP_S, BACKOFF_S * 2.0 ** min(max(0, self._failures - 1), 10))


class Supervisor:
    """Keeps children running until told to stop them.

    Children die with the thread that started them, so the watching thread never ends before
    they do: it is a daemon that goes down with the process.
    """

    def __init__(self) -> None:
        self.children: list[Child] = []
        # Reentrant: a signal handler may stop children while the main thread starts one.
        self._lock = threading.RLock()

    def start(self, child: Child) -> None:
        """Start `child` and keep an eye on it from `watch` on."""
        with self._lock:
            self.children.append(child)
            child.start()

    def forget(self, child: Child) -> None:
        """Kill `child` and drop it, for a start that failed."""
        with self._lock:
            child.kill()
            self.children.remove(child)

    def watch(self) -> None:
        """From now on start children again that end by themselves."""
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()

    def stop_all(self) -> None:
        """Stop every child: together, but those that serve the others after them."""
        with self._lock:
            for is_last in (False, True):
                group = [child for child in self.children if child.is_last is is_last]
                for child in group:
                    child.ask_to_stop()
                for child in group:
                    child.wait_stopped()

    def ask_to_stop(self, children: Sequence[Child]) -> None:
        """Ask these children to stop, without waiting for them."""
        with self._lock:
            for child in children:
                child.ask_to_stop()

    def hurry(self) -> None:
        """Have `stop_all` end soon; those that serve the others keep their time."""
        for child in self.children:
            if not child.is_last:
                child.hurry()

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_S)
            with self._lock:
                for child in self.children:
                    try:
                        child.restart_if_due()
                    except OSError as error:  # no memory, no descriptors: the next round
                        log.error("child_start_failed", child=child.name, error=str(error))
