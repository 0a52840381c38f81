"""`manage.py serve`: the relay, and in the embedded default everything that it needs.

Order: lock, port, Valkey, migrations, demo data, Celery worker with beat, relay. Each step says
what it does. SIGTERM or SIGINT ends it with exit code 0 at any moment, after a drain when
requests are in flight; a second one ends the drain. Children die with it, also on kill -9; one
that dies is started again. A stop leaves all of SQLite in its one file.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import select
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from relayproject import celery, die_with_parent, secret_store, server, valkey
from relayproject.children import Child, Supervisor

WORKER_STOP_S = 8.0  # for the task at hand; a stuck one is killed and started again later
RELAY_STOP_EXTRA_S = 5.0  # on top of DRAIN_S, to settle and close
RELAY_START_S = 120.0
SIGNAL_POLL_S = 0.1
# How long a stop waits for relay processes to say what they have in flight.
COUNT_S = 1.0
CHECKPOINT_S = 2.0
LOCK_FILE = "serve.lock"


class Command(BaseCommand):
    """Run the relay and the admin until told to stop."""

    help = "Run the relay and the admin; embedded (while REDIS_URL is unset) with all it needs."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument("--port", type=int, default=8000, help="port; 0: a free one")
        parser.add_argument("--workers", type=int, default=1, help="relay processes")
        parser.add_argument(
            "--embedded",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="also run Valkey, migrations, the Celery worker and beat "
            "(default: while REDIS_URL is unset)",
        )
        parser.add_argument("--demo", action="store_true", help="set up demo data first")
        parser.add_argument(
            "--with-parent",
            action="store_true",
            help="stop when the process that started this one ends (Linux)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Run until a signal ends it; does not return."""
        self._begin_s = time.monotonic()
        self._supervisor = Supervisor()
        self._wish = server.StopWish()
        self._worker: Child | None = None
        self._embedded = _is_embedded(options["embedded"])
        if not 1 <= options["workers"] <= 256:
            raise CommandError("--workers: want 1 to 256")
        for number in server.LEAVE_SIGNALS:
            signal.signal(number, self._leave_now)
        if options["with_parent"]:
            die_with_parent.end_with_parent(os.getppid(), number=signal.SIGTERM)
        lock = _lock_data_dir() if self._embedded else None
        bound = _bind(options["host"], options["port"])
        try:
            self._start_parts(demo=options["demo"], address=_address(bound))
            code = self._relay(bound, workers=options["workers"])
        except valkey.StartError as error:
            raise CommandError(str(error)) from None
        finally:
            self._stop_parts()
        self._say("stopped")
        del lock  # held until here
        _end(code)

    def _start_parts(self, *, demo: bool, address: str) -> None:
        """Start and prepare what the relay needs, in order."""
        self._say(f"relay {settings.VERSION} starts on {address} (not ready yet)")
        if self._embedded:
            self._start_valkey()
            call_command("migrate", verbosity=0, interactive=False)
            self._say("database migrated")
        elif not settings.REDIS_URL:
            self._say("no state store: REDIS_URL is unset and no `serve` runs on this DATA_DIR")
        if demo:
            from relayproject import demo as demo_data

            self._say("demo data:")
            self.stdout.write(str(demo_data.set_up(address=address, say=self._print)))
        if self._embedded:
            self._start_worker()

    def _start_valkey(self) -> None:
        running = valkey.start(self._supervisor, data_dir=settings.DATA_DIR)
        # Settings were read before the server had an address.
        settings.REDIS_URL = running.url
        if not os.environ.get("CELERY_BROKER_URL"):
            settings.CELERY_BROKER_URL = running.url
            celery.use_broker(running.url)
        secret_store.replace(settings.REDIS_URL_FILE, running.url)
        self._say(f"{running.label} started (pid {running.child.pid})")

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "celery", "--quiet", "-A", "relayproject", "worker"]
        command += ["--pool=threads", "--concurrency=2", "--loglevel=WARNING"]
        # One worker alone has nobody to gossip with.
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        worker = Child(
            "celery",
            command,
            stop_s=WORKER_STOP_S,
            environ={**os.environ, celery.BEAT_VARIABLE: "true"},
            folder=settings.BASE_DIR,
            is_mute=True,  # only Celery's own word on shutdown; logs are on standard error
        )
        self._worker = worker
        self._supervisor.start(worker)
        self._say(f"celery worker and beat started (pid {worker.pid})")

    def _relay(self, bound: socket.socket, *, workers: int) -> int:
        """Serve until a signal; return the exit code."""
        ready = partial(self._say_ready, _address(bound))
        try:
            bound.listen(server.BACKLOG)
        except OSError as error:  # taken between bind and here
            raise CommandError(f"port of {_address(bound)}: {error.strerror}") from None
        if workers > 1:
            return self._relay_children(bound, workers=workers, ready=ready)
        self._supervisor.watch()
        return server.run(
            bound,
            on_ready=ready,
            on_stop=self._ask_worker_to_stop,
            on_drain=self._say_stopping,
            on_hurry=self._supervisor.hurry,
            wish=self._wish,
        )

    def _relay_children(
        self, bound: socket.socket, *, workers: int, ready: Callable[[], None]
    ) -> int:
        """Run several relay processes on the same socket until a signal."""
        read_fd, write_fd = os.pipe()
        signals_seen: list[int] = []
        for number in server.LEAVE_SIGNALS:
            signal.signal(number, lambda seen, _: self._note_signal(seen, signals_seen))
        relays = [
            Child(
                f"relay-{index}",
                [sys.executable, "-m", "relayproject.server", str(bound.fileno()), str(write_fd)],
                stop_s=settings.DRAIN_S + RELAY_STOP_EXTRA_S,
                pass_fds=(bound.fileno(), write_fd),
                folder=settings.BASE_DIR,
            )
            for index in range(1, workers + 1)
        ]
        for relay in relays:
            self._supervisor.start(relay)
        _wait_ready(relays, read_fd=read_fd, signals_seen=signals_seen)
        if not signals_seen:
            ready()
            self._supervisor.watch()
        while not signals_seen:
            time.sleep(SIGNAL_POLL_S)
        bound.close()  # or the kernel would go on queueing connections that nobody takes
        self._ask_worker_to_stop()
        self._supervisor.ask_to_stop(relays)
        self._say_stopping(_in_flight(read_fd, relays=len(relays)))
        return 0

    def _note_signal(self, number: int, signals_seen: list[int]) -> None:
        signals_seen.append(number)
        self._hurry_if_repeated()

    def _hurry_if_repeated(self, *_: object) -> None:
        """Handle a signal while stopping."""
        if self._wish.is_repeated():
            self._supervisor.hurry()

    def _ask_worker_to_stop(self) -> None:
        """Let the worker finish its task while the relay drains."""
        if self._worker is not None:
            self._worker.ask_to_stop()

    def _stop_parts(self) -> None:
        for number in server.LEAVE_SIGNALS:
            signal.signal(number, self._hurry_if_repeated)
        self._supervisor.stop_all()
        if note := _checkpoint():
            self._say(note)
        if self._embedded:
            settings.REDIS_URL_FILE.unlink(missing_ok=True)

    def _leave_now(self, *_: object) -> None:
        """Handle a signal before the relay answers: nothing to drain, only children to stop.

        Ends the process from inside the handler: an exception raised here could land in code
        that swallows it.
        """
        self._wish.is_repeated()  # the first, for what `_stop_parts` makes of a second
        self._stop_parts()
        os._exit(0)

    def _print(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def _say(self, what: str) -> None:
        self._print(f"{time.monotonic() - self._begin_s:6.1f} s  {what}")

    def _say_stopping(self, in_flight: int) -> None:
        what = f"{in_flight or 'no'} request{'' if in_flight == 1 else 's'} in flight"
        limit = f", up to {settings.DRAIN_S} s" if in_flight else ""
        self._say(f"stopping: {what}{limit} (again: end now)")

    def _say_ready(self, address: str) -> None:
        took_s = time.monotonic() - self._begin_s
        self._print(f"relay ready on {address} · admin {address}/admin/ · {took_s:.1f} s")


def _is_embedded(asked: bool | None) -> bool:
    if asked and not settings.EMBEDDED:
        raise CommandError("--embedded brings its own Valkey, but REDIS_URL is set: unset one")
    return bool(settings.EMBEDDED) if asked is None else asked


def _lock_data_dir() -> IO[str]:
    """Return the locked file that keeps a second `serve` off the same data."""
    path = settings.DATA_DIR / LOCK_FILE
    secret_store.make_folder(settings.DATA_DIR)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        raise CommandError(
            f"another serve (pid {holder}) runs on {settings.DATA_DIR}: stop it first, "
            "or give this one a DATA_DIR of its own"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _bind(host: str, port: int) -> socket.socket:
    try:
        return server.bind(host, port)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such port"
        raise CommandError(
            f"cannot listen on {host} port {port} ({reason}): "
            "stop what runs there, or choose with --host and --port"
        ) from None


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _wait_ready(relays: list[Child], *, read_fd: int, signals_seen: list[int]) -> None:
    """Return when each relay process answers or a signal came; raises CommandError."""
    give_up_s = time.monotonic() + RELAY_START_S
    answering = 0
    while answering < len(relays) and not signals_seen:
        if any(not relay.is_alive for relay in relays):
            raise CommandError("a relay process ended before it was ready; its log says why")
        if time.monotonic() > give_up_s:
            raise CommandError(f"relay processes not ready after {RELAY_START_S:.0f} s")
        if select.select([read_fd], [], [], SIGNAL_POLL_S)[0]:
            answering += os.read(read_fd, 4096).count(b"ready\n")


def _in_flight(read_fd: int, *, relays: int) -> int:
    """Return how many requests the stopping relay processes have said to have in flight."""
    give_up_s = time.monotonic() + COUNT_S
    told = b""
    # Older lines may come first, of processes that were started again.
    while told.count(b"stopping") < relays and time.monotonic() < give_up_s:
        if select.select([read_fd], [], [], SIGNAL_POLL_S)[0]:
            told += os.read(read_fd, 4096)
    lines = [line.split() for line in told.decode().splitlines()]
    return sum(int(line[1]) for line in lines if line[0] == "stopping")


def _checkpoint() -> str | None:
    """Bring what SQLite keeps beside its file into it; return what to say if that failed.

    Then a copy of the file alone is a whole backup. To be called once the children have ended.
    """
    database = settings.DATABASES["default"]
    path = Path(database["NAME"])
    if database["ENGINE"] != "django.db.backends.sqlite3" or not path.exists():
        return None
    try:
        # Not Django's connection: the thread that a signal interrupted may be using it.
        with closing(sqlite3.connect(path, timeout=CHECKPOINT_S)) as connection:
            is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error as error:
        return f"database not checkpointed: {error}"
    return "database in use elsewhere: its -wal file belongs to it" if is_busy else None


def _end(code: int) -> NoReturn:
    """End the process at once.

    A plain return waits for threads, and one that hangs in a database call would hold the stop.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
