#!/bin/sh
# Compile requirements/*.in into locks: every package with its hashes, no host names, for every
# platform and for Python 3.11 and newer. The order matters: each takes the pins of the one before.
set -eu
cd "$(dirname "$0")/../requirements"
command -v uv >/dev/null 2>&1 || { echo "make lock needs uv on PATH (pip install uv)" >&2; exit 1; }
for name in base embedded dev; do
    echo "compiling requirements/$name.lock"
    uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
        "$name.in" -o "$name.lock"
done
