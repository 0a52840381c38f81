"""Typed readers of the environment: the only place that looks at it.

Each reader returns a checked value, or its default where the variable is unset or blank, and
raises ImproperlyConfigured with one line that names the variable, what it holds and what is
wanted. Secrets are never repeated in that line.
"""

from __future__ import annotations

import ipaddress
import os
import re
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from dotenv import load_dotenv
from environs import Env, EnvError

T = TypeVar("T")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Names that some reader asked for, so that `checks.py` can tell a typo from a setting.
known_names: set[str] = {
    "RELAY_ENV_FILE",  # read below
    "RELAY_WIRE_DIR",  # read by the tests: recorded provider traffic
}

DATABASE_SCHEMES = ("sqlite", "postgres", "postgresql")
REDIS_SCHEMES = ("redis", "rediss")
_PASSWORD_IN_URL = re.compile(r"//[^/@]*@")

_env = Env()


def load_file(default: Path) -> None:
    """Add the lines of an env file to the environment; what is set already wins.

    RELAY_ENV_FILE names another file; set but blank, it turns reading off.
    """
    path = Path(os.environ.get("RELAY_ENV_FILE", str(default)) or os.devnull)
    if path.is_file():
        load_dotenv(path, override=False)


def is_set(name: str) -> bool:
    """Return whether `name` holds more than blanks."""
    known_names.add(name)
    return bool(os.environ.get(name, "").strip())


def text(name: str, default: str = "") -> str:
    """Return `name` without surrounding blanks."""
    return _read(name, default, parse=lambda raw: raw, want="text")


def integer(name: str, default: int, *, low: int, high: int) -> int:
    """Return `name` as a whole number in [low, high]."""
    return _read(
        name,
        default,
        parse=lambda _: _env.int(name),
        accept=lambda value: low <= value <= high,
        want=f"a whole number from {low} to {high}",
    )


def number(name: str, default: float, *, low: float, high: float) -> float:
    """Return `name` as a float in [low, high]; nan and inf are refused."""
    return _read(
        name,
        default,
        parse=lambda _: _env.float(name),
        accept=lambda value: low <= value <= high,
        want=f"a number from {low:g} to {high:g}",
    )


def boolean(name: str, default: bool) -> bool:
    """Return `name` as true or false (also yes/no, on/off, 1/0)."""
    return _read(name, default, parse=lambda _: _env.bool(name), want="true or false")


def choice(name: str, default: str, *, options: tuple[str, ...]) -> str:
    """Return `name`, spelled as in `options`; case does not matter."""
    spelled = {option.lower(): option for option in options}
    return _read(
        name,
        default,
        parse=lambda raw: spelled[raw.lower()],
        want="one of " + ", ".join(options),
    )


def words(name: str, default: list[str]) -> list[str]:
    """Return the comma-separated words of `name`."""
    return _read(name, default, parse=_split, want="words separated by commas")


def origins(name: str) -> list[str]:
    """Return the comma-separated web origins of `name`, each with its scheme."""
    return _read(
        name,
        [],
        parse=_split,
        accept=lambda found: all(re.match(r"https?://[^/]+$", origin) for origin in found),
        want="origins separated by commas, such as https://relay.example.com",
    )


def networks(name: str) -> list[Network]:
    """Return the comma-separated IP networks (or single addresses) of `name`."""
    return _read(
        name,
        [],
        parse=lambda raw: [ipaddress.ip_network(part) for part in _split(raw)],
        want="IP networks separated by commas, such as 10.0.0.0/8,192.0.2.7",
    )


def time_zone(name: str, default: str) -> str:
    """Return `name` as a time zone that this machine knows."""
    return _read(
        name,
        default,
        parse=lambda raw: zoneinfo.ZoneInfo(raw).key,
        want="a time zone such as UTC or Asia/Shanghai",
    )


def folder(name: str, default: Path, *, base: Path) -> Path:
    """Return `name` as an absolute path; a relative one counts from `base`."""
    return _read(name, default, parse=lambda raw: base / raw, want="a folder").resolve()


def database(name: str, default: Path) -> dict[str, Any]:
    """Return Django's form of a database URL, or of a SQLite file at `default`."""
    url = f"sqlite:///{default}" if not is_set(name) else os.environ[name].strip()
    want = "sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME"
    if urlsplit(url).scheme not in DATABASE_SCHEMES:
        raise _wrong(name, want=want)
    try:
        parsed = _env.dj_db_url(name, url)
    except (EnvError, ValueError):
        raise _wrong(name, want=want) from None
    if not parsed.get("NAME"):
        raise _wrong(name, want=want + " (the name is missing)")
    return dict(parsed)


def redis_url(name: str, default: str = "") -> str:
    """Return `name` as the URL of a Redis or Valkey server."""
    return _read(
        name,
        default,
        parse=_redis_url,
        want="redis://[:PASSWORD@]HOST:PORT/DB, or rediss:// for TLS",
    )


def fernet_keys(name: str) -> list[str]:
    """Return the comma-separated Fernet keys of `name`; the first one encrypts."""
    return _read(name, [], parse=parse_fernet_keys, want=FERNET_WANT, secret=True)


FERNET_WANT = (
    "Fernet keys separated by commas (32 bytes in URL-safe base64 each); make one with: "
    'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
)


def parse_fernet_keys(raw: str) -> list[str]:
    """Return the keys in `raw`; raises ValueError for one that cannot encrypt."""
    keys = _split(raw)
    for key in keys:
        Fernet(key)
    if not keys:
        raise ValueError("no key")
    return keys


def required(name: str, *, why: str) -> ImproperlyConfigured:
    """Return the error for a variable that must be set."""
    return ImproperlyConfigured(f"{name} is not set: {why}")


def _read(
    name: str,
    default: T,
    *,
    parse: Callable[[str], T],
    want: str,
    accept: Callable[[T], bool] = lambda _: True,
    secret: bool = False,
) -> T:
    if not is_set(name):
        return default
    try:
        value = parse(os.environ[name].strip())
        accepted = accept(value)
    except (EnvError, ValueError, LookupError, OSError):
        accepted = False
    if not accepted:
        raise _wrong(name, want=want, secret=secret)
    return value


def _wrong(name: str, *, want: str, secret: bool = False) -> ImproperlyConfigured:
    shown = "(not shown)" if secret else repr(_PASSWORD_IN_URL.sub("//***@", os.environ[name]))
    return ImproperlyConfigured(f"{name}={shown}: want {want}")


def _split(raw: str) -> list[str]:
    return [part.strip() for part in raw.split(",") if part.strip()]


def _redis_url(raw: str) -> str:
    parts = urlsplit(raw)
    if parts.scheme not in REDIS_SCHEMES or not parts.hostname or parts.port == 0:
        raise ValueError(raw)
    if not re.fullmatch(r"(/\d*)?", parts.path):
        raise ValueError(raw)
    return raw
