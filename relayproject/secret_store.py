"""Secrets that the embedded default makes once and keeps in DATA_DIR.

Files are 0600 in a folder of 0700. A file appears complete or not at all, and of two processes
that start at once one wins and both read the winner's value.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def make_folder(path: Path) -> None:
    """Create `path`, readable by its owner only; one that exists keeps its mode."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(
            f"DATA_DIR={str(path)!r}: cannot be created ({error.strerror}); "
            "want a folder that this user may write"
        ) from None


def read_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in `path`, made by `make` when there is none yet."""
    try:
        if not path.exists():
            make_folder(path.parent)
            _create(path, make())
        value = path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(
            f"DATA_DIR: {path} cannot be read or written ({error.strerror}); "
            "want a folder that this user may write"
        ) from None
    if not value:
        raise ImproperlyConfigured(
            f"{path} is empty: restore it from a backup; "
            "deleting it makes a new secret and loses what the old one protected"
        )
    return value


def replace(path: Path, value: str) -> None:
    """Write `value` to `path` in one step, over what was there."""
    make_folder(path.parent)
    temporary = _temporary_with(value, beside=path)
    temporary.replace(path)


def _create(path: Path, value: str) -> None:
    temporary = _temporary_with(value, beside=path)
    try:
        # Unlike a rename, a link fails where the name is taken: the first one wins.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _temporary_with(value: str, *, beside: Path) -> Path:
    # mkstemp makes the file 0600 from the start.
    descriptor, name = tempfile.mkstemp(dir=beside.parent, prefix=f".{beside.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(value + "\n")
        file.flush()
        os.fsync(file.fileno())
    return Path(name)
