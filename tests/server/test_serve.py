"""`manage.py serve` as an operator meets it: real processes, real signals."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from tests.server.running import (
    ROOT,
    Serve,
    answers,
    environment,
    is_running,
    manage,
    processes_of,
    wait_for,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="asks /proc, and only Linux ends children with their parent"
)

GONE_S = 5.0  # how long after kill -9 of its parent a child may still be seen


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Ends what a test started and left running."""
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, data_dir: Path, *arguments: str, **more: str) -> Serve:
    serve = Serve(data_dir, *arguments, **more)
    stack.callback(serve.end)
    return serve


def test_start_stop_and_start_again(data_dir: Path, started: ExitStack) -> None:
    """A first start makes everything, SIGTERM ends it with 0, a second keeps the state."""
    serve = start(started, data_dir)
    address = serve.wait_ready()
    url = (data_dir / "redis.url").read_text().strip()
    children = serve.children()

    assert answers(address)
    with redis.Redis.from_url(url) as store:
        store.set("kept", "yes")
    assert {kind: len(pids) for kind, pids in children.items()} == {
        "valkey": 1,
        "celery": 1,
        "relay": 0,
    }

    assert serve.stop() == 0
    assert not any(is_running(pid) for pids in children.values() for pid in pids)
    assert not (data_dir / "redis.url").exists()

    secret = (data_dir / "secret_key").read_text()
    again = start(started, data_dir)
    assert answers(again.wait_ready())
    with redis.Redis.from_url((data_dir / "redis.url").read_text().strip()) as store:
        assert store.get("kept") == b"yes"
    assert (data_dir / "secret_key").read_text() == secret
    assert again.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_after_a_stop_the_database_is_one_file(
    data_dir: Path, started: ExitStack, tmp_path: Path, workers: str
) -> None:
    serve = start(started, data_dir, "--workers", workers, "--demo")
    serve.wait_ready()
    assert serve.stop() == 0

    wal = data_dir / "relay.sqlite3-wal"
    assert not wal.exists() or wal.stat().st_size == 0
    copy = tmp_path / "copy.sqlite3"
    shutil.copy(data_dir / "relay.sqlite3", copy)
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = database.execute("SELECT name FROM channels_app_channel ORDER BY name").fetchall()
    assert names == [("demo-backup",), ("demo-primary",)]


def test_the_password_is_printed_once_and_then_the_way_to_a_new_one(
    data_dir: Path, started: ExitStack
) -> None:
    first = start(started, data_dir, "--demo")
    first.wait_ready()
    assert "(not ready yet)" in first.output.splitlines()[0]
    assert "user admin, password " in first.output
    assert first.stop() == 0

    second = start(started, data_dir, "--demo")
    second.wait_ready()
    assert ", password " not in second.output
    assert "manage.py changepassword admin" in second.output
    assert second.stop() == 0
    assert "Warm shutdown" not in second.output


def test_secrets_are_for_the_owner_only(data_dir: Path, started: ExitStack) -> None:
    serve = start(started, data_dir)
    serve.wait_ready()

    for name in ("secret_key", "encryption_keys", "redis.url", "valkey/server.conf"):
        path = data_dir / name
        if path.exists():  # the server's folder has the name of its family
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, name
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    password = (data_dir / "redis.url").read_text().split(":")[2].split("@")[0]
    assert all(password not in command for _, command in processes_of(serve.process.pid))
    assert password not in serve.output


def test_commands_beside_it_find_the_store(data_dir: Path, started: ExitStack) -> None:
    serve = start(started, data_dir)
    serve.wait_ready()

    code = "from relayproject.celery import app; app.send_task('nothing.such'); print('queued')"
    beside = manage("shell", "-v0", "-c", code, env=environment(data_dir))

    assert "queued" in beside.stdout, beside.stderr


def test_beat_keeps_the_schedule(data_dir: Path, started: ExitStack) -> None:
    """Beat runs inside the worker, with the schedule that the admin shows."""
    start(started, data_dir).wait_ready()

    def scheduled() -> set[str]:
        with closing(sqlite3.connect(data_dir / "relay.sqlite3")) as database:
            rows = database.execute(
                "SELECT task FROM django_celery_beat_periodictask WHERE expire_seconds > 0"
            )
            return {task for (task,) in rows}

    wait_for(
        lambda: (
            {"relay_app.tasks.prune_snapshot_changes", "relay_app.tasks.prune_request_logs"}
            <= scheduled()
        ),
        20,
    )


def test_without_a_broker_a_task_fails_soon(data_dir: Path) -> None:
    """A web request that queues a task must not hang while Redis is away."""
    code = (
        "import time; begin_s = time.monotonic()\n"
        "from relayproject.celery import app\n"
        "try: app.send_task('nothing.such')\n"
        "except Exception as error: print(type(error).__name__, time.monotonic() - begin_s)"
    )

    alone = manage("shell", "-v0", "-c", code, env=environment(data_dir))

    name, took_s = alone.stdout.split()
    assert name == "OperationalError"
    assert float(took_s) < 5


@pytest.mark.parametrize("delay_s", [0.1, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.2])
def test_sigterm_while_starting_ends_in_zero(
    data_dir: Path, started: ExitStack, delay_s: float
) -> None:
    """Whatever it is doing: importing, starting Valkey, migrating, opening the relay."""
    serve = start(started, data_dir)
    time.sleep(delay_s)
    children = processes_of(serve.process.pid)

    assert serve.stop() == 0, serve.output
    assert not any(is_running(pid) for pid, _ in children)
    assert "Traceback" not in serve.output


@pytest.mark.parametrize("victim", ["main", "valkey", "celery", "relay"])
def test_kill_9_of_any_one_leaves_nothing_behind(
    data_dir: Path, started: ExitStack, victim: str
) -> None:
    """Without the parent no child lives on; without a child the parent starts it again."""
    serve = start(started, data_dir, "--workers", "2")
    address = serve.wait_ready()
    url = (data_dir / "redis.url").read_text()
    children = serve.children()
    pids = [pid for found in children.values() for pid in found]
    assert len(children["relay"]) == 2

    if victim != "main":
        os.kill(children[victim][0], signal.SIGKILL)
        wait_for(lambda: not is_running(children[victim][0]), 2)
        wait_for(
            lambda: (
                len(serve.children()[victim]) == len(children[victim])
                and serve.children()[victim] != children[victim]
            ),
            10,
        )
        wait_for(lambda: answers(address), 10)
        assert (data_dir / "redis.url").read_text() == url
        with redis.Redis.from_url(url.strip()) as store:
            wait_for(lambda: _pings(store), 10)
        pids += [pid for found in serve.children().values() for pid in found]
    serve.process.kill()

    wait_for(lambda: not any(is_running(pid) for pid in pids), GONE_S)
    port = address.rpartition(":")[2]
    next_one = start(started, data_dir, "--port", port)
    assert next_one.wait_ready() == address
    assert next_one.stop() == 0


def _pings(store: redis.Redis) -> bool:
    try:
        return bool(store.ping())
    except redis.RedisError:
        return False


def test_several_relay_processes_stop_in_order(data_dir: Path, started: ExitStack) -> None:
    serve = start(started, data_dir, "--workers", "2")
    address = serve.wait_ready()
    pids = [pid for found in serve.children().values() for pid in found]

    assert all(answers(address) for _ in range(10))
    assert serve.stop() == 0
    assert not any(is_running(pid) for pid in pids)
    assert not answers(address)


def test_a_second_serve_says_who_runs(data_dir: Path, started: ExitStack) -> None:
    first = start(started, data_dir)
    first.wait_ready()

    second = manage("serve", "--port", "0", env=environment(data_dir))

    assert second.returncode == 1
    assert f"another serve (pid {first.process.pid}) runs on {data_dir}" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_taken_port_is_one_line_and_starts_nothing(data_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        refused = manage("serve", "--port", str(port), env=environment(data_dir))

    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert f"127.0.0.1 port {port}" in refused.stderr
    assert not (data_dir / "valkey").exists()


def test_a_stuck_worker_does_not_hold_the_stop(data_dir: Path, started: ExitStack) -> None:
    serve = start(started, data_dir)
    serve.wait_ready()
    worker = serve.children()["celery"][0]
    os.kill(worker, signal.SIGSTOP)  # as stuck as can be: it takes no signal but SIGKILL

    begin_s = time.monotonic()
    assert serve.stop() == 0
    assert time.monotonic() - begin_s < 12
    assert not is_running(worker)


def half_a_request(address: str) -> socket.socket:
    """Return a connection whose request lacks the second half of its body."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{"
    )
    return connection


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_request_in_flight_is_finished(data_dir: Path, started: ExitStack, workers: str) -> None:
    serve = start(started, data_dir, "--workers", workers)
    address = serve.wait_ready()

    with half_a_request(address) as connection:
        time.sleep(0.3)
        serve.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopping: 1 request in flight, up to 30 s" in serve.output, 5)
        wait_for(lambda: not answers(address), 5)
        connection.sendall(b"}")
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 ")
    assert serve.process.wait(10) == 0


def test_a_drain_has_an_end(data_dir: Path, started: ExitStack) -> None:
    serve = start(started, data_dir, RELAY_DRAIN_S="1")

    with half_a_request(serve.wait_ready()):
        time.sleep(0.3)
        begin_s = time.monotonic()
        assert serve.stop() == 0

    assert time.monotonic() - begin_s < 6


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_drain(
    data_dir: Path, started: ExitStack, workers: str, number: int
) -> None:
    serve = start(started, data_dir, "--workers", workers)
    address = serve.wait_ready()
    pids = [pid for found in serve.children().values() for pid in found]

    with half_a_request(address):
        time.sleep(0.3)
        serve.process.send_signal(number)
        serve.process.send_signal(number)  # an echo, as make sends one
        wait_for(lambda: "(again: end now)" in serve.output, 5)
        time.sleep(1)
        assert serve.process.poll() is None
        begin_s = time.monotonic()
        assert serve.stop(number) == 0

    assert time.monotonic() - begin_s < 5
    assert not any(is_running(pid) for pid in pids)
    assert "Traceback" not in serve.output
    wal = data_dir / "relay.sqlite3-wal"
    assert not wal.exists() or wal.stat().st_size == 0


def test_a_second_signal_ends_the_wait_for_a_stuck_worker(
    data_dir: Path, started: ExitStack
) -> None:
    serve = start(started, data_dir)
    serve.wait_ready()
    os.kill(serve.children()["celery"][0], signal.SIGSTOP)

    serve.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    begin_s = time.monotonic()
    assert serve.stop() == 0
    assert time.monotonic() - begin_s < 5


def test_it_stops_with_its_parent_when_asked_to(data_dir: Path) -> None:
    """`make up` killed hard must not leave a relay behind."""
    command = f"{sys.executable} {ROOT / 'manage.py'} serve --port 0 --with-parent & echo $!; wait"
    shell = subprocess.Popen(
        ["sh", "-c", command], env=environment(data_dir), stdout=subprocess.PIPE, text=True
    )
    assert shell.stdout is not None
    with shell.stdout:
        pid = int(shell.stdout.readline())
        wait_for((data_dir / "redis.url").exists, 30)

        shell.kill()
        shell.wait()

        wait_for(lambda: not is_running(pid), 15)


def test_embedded_beside_a_given_redis_is_refused(data_dir: Path) -> None:
    """--embedded and REDIS_URL contradict each other; neither wins in silence."""
    env = environment(
        data_dir,
        REDIS_URL="redis://127.0.0.1:1/0",
        SECRET_KEY="x",
        RELAY_ENCRYPTION_KEYS="dGVzdHMtb25seS10ZXN0cy1vbmx5LXRlc3RzLW9ubHk=",
    )

    refused = manage("serve", "--embedded", env=env)

    assert refused.returncode == 1
    assert "REDIS_URL is set" in refused.stderr
