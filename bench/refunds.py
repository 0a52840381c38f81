"""How soon what a flood of failing requests reserved is given back.

    python bench/refunds.py [--seconds 10] [--clients 64] [--workers 2]

Every request reserves and is refused by its only channel. With DATABASE_URL and REDIS_URL: on
these, with a worker and a beat of its own; without: the embedded relay on SQLite. Needs wrk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kill_rounds import Rounds
from run import HERE, ROOT

# Of load.lua.
KEY = "sk-relay-bench-0123456789abcdef"
CONFIG = {
    "version": 1,
    "options": {"TrustQuota": "0", "RetryTimes": 0},
    "groups": [{"name": "default"}],
    "channels": [
        {"name": "fails", "type": "simulated", "models": ["fails"], "groups": ["default"],
         "settings": {"behaviour": "status-400"}}
    ],
    "users": [{"name": "refunds", "balance_usd": 1_000_000}],
    "tokens": [{"name": "refunds", "user": "refunds", "key": KEY}],
    "prices": [{"model": "fails", "input": 1, "output": 4}],
}  # fmt: skip


def main() -> int:
    """Print the rate of failures and how long after the last one the last refund was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(Path(folder))
        rounds.config.write_text(json.dumps(CONFIG))
        rounds.manage("migrate", "-v0")
        applied = rounds.manage("apply_config", str(rounds.config))
        assert applied.returncode == 0, applied.stdout + applied.stderr
        try:
            rounds.start("relay", "--workers", str(options.workers))
            for name in ("worker", "beat") if rounds.is_external else ():
                rounds.start(name)
            load = [
                "wrk", "-t1", f"-c{options.clients}", f"-d{options.seconds}",
                "-s", str(HERE / "load.lua"), f"{rounds.url}/v1/chat/completions", "--", "fails",
            ]  # fmt: skip
            subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
            took_s, refunded = wait_for_refunds(rounds.env)
            audit = rounds.manage("audit_ledger")
        finally:
            rounds.stop()
    print(f"{refunded} failing requests, {refunded / options.seconds:,.0f}/s")
    print(f"the last was refunded {took_s:.1f} s after the last request")
    print(audit.stdout.strip())
    return audit.returncode


def wait_for_refunds(env: dict[str, str]) -> tuple[float, int]:
    """Return the seconds until no session is open, and how many were refunded."""
    os.environ.update(env)
    os.environ["DJANGO_SETTINGS_MODULE"] = "relayproject.settings"
    sys.path.insert(0, str(ROOT))
    began_s = time.monotonic()
    import django

    django.setup()
    from billing_app.core.session import HOLDING
    from billing_app.models import BillingSession

    mine = BillingSession.objects.filter(wallet__user__username="refunds")
    time.sleep(0.5)  # what was under way has reserved by now
    while mine.filter(state__in=HOLDING).exists():
        time.sleep(0.1)
    return time.monotonic() - began_s, mine.filter(state="refunded").count()


if __name__ == "__main__":
    sys.exit(main())
