"""What holds for the tree as a whole: locks, host names, paths of somebody's machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"

# Put together here, so that this file does not hold what it looks for.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("deb", "debian", "org"),
        ("proxy", "golang", "org"),
    )
]
HOME_PATH = re.compile(r"(?<![\w./-])/(?:home/\w+|root|work|Users/\w+)/\w")

ANY_PIN = re.compile(r"^([\w.-]+)==", re.MULTILINE)
PIN_WITH_HASHES = re.compile(r"^([\w.-]+)==[^\\]*\\\n    --hash=", re.MULTILINE)


def tracked_files() -> list[Path]:
    """Return the files that git tracks or would track."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_tracked_file_names_a_registry_or_a_machine() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.name}: {host}" for host in REGISTRY_HOSTS if host in text]
        found += [f"{path.name}: {match.group()}" for match in HOME_PATH.finditer(text)]

    assert found == []


def test_no_lock_that_names_hosts_is_tracked() -> None:
    assert {path.name for path in tracked_files()}.isdisjoint({"uv.lock", "pylock.toml"})


@pytest.mark.parametrize("name", ["base", "embedded", "dev"])
def test_lock_holds_every_requirement_with_hashes(name: str) -> None:
    lock = (REQUIREMENTS / f"{name}.lock").read_text()
    # One package may have two pins, each for its own Python versions.
    with_hashes = [canonicalize_name(match[1]) for match in PIN_WITH_HASHES.finditer(lock)]

    assert "://" not in lock
    assert _required(f"{name}.in") <= set(with_hashes)
    assert len(with_hashes) == len(ANY_PIN.findall(lock))


def _required(name: str) -> set[str]:
    """Return the packages that an .in file names, with those of the files it includes."""
    packages: set[str] = set()
    for raw in (REQUIREMENTS / name).read_text().splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("-r "):
            packages |= _required(line.removeprefix("-r "))
        elif line and not line.startswith("-"):
            packages.add(canonicalize_name(Requirement(line).name))
    return packages
