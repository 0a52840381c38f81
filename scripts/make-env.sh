#!/bin/sh
# Make .venv from a lock file, or bring it up to date when the lock changed.
# usage: scripts/make-env.sh LOCK      (PYTHON=... chooses the interpreter)
# Uses uv when it is on PATH, else pip. Does nothing while the lock is the one installed.
set -eu

lock=$1
cd "$(dirname "$0")/.."
say() { printf 'env: %s\n' "$*"; }
fail() { printf 'env: %s\n' "$*" >&2; exit 1; }

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
        [ "$candidate" != "${PYTHON:-}" ] || return 1
    done
    return 1
}

# Debian's python3 comes without ensurepip; the pip of the system can stand in for it.
make_venv() {
    rm -rf .venv
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --python "$python" .venv
    elif "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv .venv
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip .venv
    else
        fail "$python has neither ensurepip nor pip: install python3-venv (Debian: apt-get install python3-venv) or uv"
    fi
}

install_lock() {
    if command -v uv >/dev/null 2>&1; then
        say "installing $lock with uv"
        uv pip install --quiet --python .venv/bin/python --require-hashes -r "$lock"
    elif .venv/bin/python -m pip --version >/dev/null 2>&1; then
        say "installing $lock with pip (one to two minutes the first time; uv is faster)"
        .venv/bin/python -m pip install -qq --disable-pip-version-check \
            --no-deps --require-hashes -r "$lock"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        say "installing $lock with the system's pip (one to two minutes the first time)"
        "$python" -m pip --python .venv/bin/python install -qq \
            --disable-pip-version-check --no-deps --require-hashes -r "$lock"
    else
        fail ".venv has no pip and neither has $python: install python3-venv (Debian: apt-get install python3-venv) or uv"
    fi
}

[ -f "$lock" ] || fail "$lock does not exist"
python=$(find_python) || fail "want Python 3.11 or newer${PYTHON:+, and PYTHON=$PYTHON is not}"

stamp=.venv/.installed-$(basename "$lock")
# One line of the lock's checksum; Python does it where sha256sum is missing.
wanted=$("$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$lock")

if ! .venv/bin/python -c '' 2>/dev/null; then
    say "making .venv with $("$python" --version) ($python)"
    make_venv
fi
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    install_lock
    printf '%s\n' "$wanted" >"$stamp"
    say "ready"
fi
