"""Generated secrets: made once, for the owner only, and agreed on by racing processes."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from relayproject import secret_store


def test_made_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secret"

    first = secret_store.read_or_create(path, lambda: "one")
    second = secret_store.read_or_create(path, lambda: "two")

    assert (first, second) == ("one", "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_racing_starts_agree(tmp_path: Path) -> None:
    numbers = count()

    for round_ in range(20):
        path = tmp_path / f"secret-{round_}"
        with ThreadPoolExecutor(8) as pool:
            values = list(
                pool.map(
                    lambda _, path=path: secret_store.read_or_create(
                        path, lambda: str(next(numbers))
                    ),
                    range(8),
                )
            )
        assert len(set(values)) == 1


def test_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "url"

    secret_store.replace(path, "old")
    secret_store.replace(path, "new")

    assert path.read_text() == "new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_file_is_not_a_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()

    with pytest.raises(ImproperlyConfigured, match="is empty"):
        secret_store.read_or_create(tmp_path / "secret", lambda: "one")


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ImproperlyConfigured, match="DATA_DIR") as caught:
        secret_store.read_or_create(tmp_path / "file" / "secret", lambda: "one")

    assert "\n" not in str(caught.value)
