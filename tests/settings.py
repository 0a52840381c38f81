"""The project's settings with generated state in a temporary folder.

An `.env` file of the developer is not read: tests see the environment they were given.
"""

import atexit
import os
import shutil
import tempfile

os.environ["RELAY_ENV_FILE"] = ""
if "DATA_DIR" not in os.environ:
    os.environ["DATA_DIR"] = tempfile.mkdtemp(prefix="relay-tests-")
    atexit.register(shutil.rmtree, os.environ["DATA_DIR"], ignore_errors=True)
if os.environ.get("REDIS_URL"):
    # Outside the embedded default these are required; the tests' data is thrown away.
    os.environ.setdefault("SECRET_KEY", "tests-only")
    os.environ.setdefault("RELAY_ENCRYPTION_KEYS", "dGVzdHMtb25seS10ZXN0cy1vbmx5LXRlc3RzLW9ubHk=")

from relayproject.settings import *  # noqa: F403 - the environment comes first

# One round instead of a million: passwords in tests protect nothing.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# The upstreams of tests are on 127.0.0.1, also where Valkey or Redis is another process's.
EMBEDDED = True
