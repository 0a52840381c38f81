"""Readers of the environment: what passes, what stops the start, and with which line."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from relayproject import checks, env

KEY = "dGVzdHMtb25seS10ZXN0cy1vbmx5LXRlc3RzLW9ubHk="


@pytest.mark.parametrize("blank", [None, "", "  "])
def test_unset_and_blank_mean_the_default(
    monkeypatch: pytest.MonkeyPatch, blank: str | None
) -> None:
    monkeypatch.delenv("X", raising=False)
    if blank is not None:
        monkeypatch.setenv("X", blank)

    assert env.integer("X", 5, low=1, high=9) == 5
    assert env.text("X", "a") == "a"
    assert env.networks("X") == []
    assert not env.is_set("X")


@pytest.mark.parametrize(
    ("raw", "read", "value"),
    [
        ("7", lambda: env.integer("X", 5, low=1, high=9), 7),
        (" 0.5 ", lambda: env.number("X", 1.0, low=0.1, high=2), 0.5),
        ("yes", lambda: env.boolean("X", False), True),
        ("warning", lambda: env.choice("X", "INFO", options=("INFO", "WARNING")), "WARNING"),
        ("a, b,,c", lambda: env.words("X", []), ["a", "b", "c"]),
        ("10.0.0.0/8", lambda: env.networks("X"), [ipaddress.ip_network("10.0.0.0/8")]),
        ("::1", lambda: env.networks("X"), [ipaddress.ip_network("::1/128")]),
        ("https://a.example", lambda: env.origins("X"), ["https://a.example"]),
        ("Asia/Shanghai", lambda: env.time_zone("X", "UTC"), "Asia/Shanghai"),
        ("rediss://:p@h:6380/1", lambda: env.redis_url("X"), "rediss://:p@h:6380/1"),
        (f"{KEY},{KEY}", lambda: env.fernet_keys("X"), [KEY, KEY]),
    ],
)
def test_good_values(
    monkeypatch: pytest.MonkeyPatch, raw: str, read: Callable[[], Any], value: Any
) -> None:
    monkeypatch.setenv("X", raw)

    assert read() == value


@pytest.mark.parametrize(
    ("raw", "read", "want"),
    [
        ("x", lambda: env.integer("X", 5, low=1, high=9), "a whole number from 1 to 9"),
        ("1.5", lambda: env.integer("X", 5, low=1, high=9), "a whole number from 1 to 9"),
        ("10", lambda: env.integer("X", 5, low=1, high=9), "a whole number from 1 to 9"),
        ("nan", lambda: env.number("X", 1, low=0, high=2), "a number from 0 to 2"),
        ("inf", lambda: env.number("X", 1, low=0, high=2), "a number from 0 to 2"),
        ("maybe", lambda: env.boolean("X", False), "true or false"),
        ("LOUD", lambda: env.choice("X", "A", options=("A", "B")), "one of A, B"),
        ("10.0.0.1/8", lambda: env.networks("X"), "IP networks"),
        ("relay.example.com", lambda: env.origins("X"), "https://relay.example.com"),
        ("Mars/Base", lambda: env.time_zone("X", "UTC"), "a time zone"),
        ("../../etc", lambda: env.time_zone("X", "UTC"), "a time zone"),
        ("localhost:6379", lambda: env.redis_url("X"), "redis://"),
        ("http://h/0", lambda: env.redis_url("X"), "redis://"),
        ("redis://h:port/0", lambda: env.redis_url("X"), "redis://"),
        ("redis://h/zero", lambda: env.redis_url("X"), "redis://"),
        ("mysql://h/db", lambda: env.database("X", Path("d")), "postgresql://"),
        ("postgresql://h:x/db", lambda: env.database("X", Path("d")), "postgresql://"),
        ("postgresql://h", lambda: env.database("X", Path("d")), "the name is missing"),
        ("nonsense", lambda: env.database("X", Path("d")), "postgresql://"),
    ],
)
def test_wrong_values_name_variable_value_and_wish(
    monkeypatch: pytest.MonkeyPatch, raw: str, read: Callable[[], Any], want: str
) -> None:
    monkeypatch.setenv("X", raw)

    with pytest.raises(ImproperlyConfigured) as caught:
        read()

    line = str(caught.value)
    assert line.startswith(f"X={raw!r}: want ")
    assert want in line
    assert "\n" not in line


def test_secrets_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "half-a-key")
    with pytest.raises(ImproperlyConfigured) as keys:
        env.fernet_keys("X")
    monkeypatch.setenv("X", "redis://user:hunter2@h:6379/zero")
    with pytest.raises(ImproperlyConfigured) as url:
        env.redis_url("X")

    assert "half-a-key" not in str(keys.value)
    assert "hunter2" not in str(url.value)


def test_database_urls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("X", raising=False)
    assert env.database("X", tmp_path / "r.sqlite3")["NAME"] == str(tmp_path / "r.sqlite3")

    monkeypatch.setenv("X", "postgresql://me:p%40ss@db:5433/relay?sslmode=require")
    found = env.database("X", tmp_path)
    assert found["ENGINE"] == "django.db.backends.postgresql"
    assert (found["USER"], found["PASSWORD"], found["PORT"]) == ("me", "p@ss", 5433)
    assert found["OPTIONS"] == {"sslmode": "require"}


def test_a_misspelled_variable_is_a_warning_with_the_right_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELAY_DRAIN_SECS", "5")
    monkeypatch.setenv("RELAY_DRAIN_S", "5")

    (warning,) = checks.unknown_variables()

    assert "RELAY_DRAIN_SECS" in warning.msg
    assert warning.hint == "Did you mean RELAY_DRAIN_S?"


def test_env_file_adds_and_does_not_override(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("X_FROM_FILE=file\nX_FROM_BOTH=file\n")
    monkeypatch.delenv("RELAY_ENV_FILE", raising=False)
    monkeypatch.setenv("X_FROM_FILE", "")
    monkeypatch.delenv("X_FROM_FILE")  # so that it is removed again afterwards
    monkeypatch.setenv("X_FROM_BOTH", "environment")

    env.load_file(tmp_path / ".env")

    assert env.text("X_FROM_FILE") == "file"
    assert env.text("X_FROM_BOTH") == "environment"
