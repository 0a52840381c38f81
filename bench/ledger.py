"""Reserve and settle pairs a second through the ledger's writer, and transactions for each pair.

    python bench/ledger.py [--pairs 20000] [--at-once 64]

On the database of DATABASE_URL, else on a new SQLite file; its account is made for it. Compares
with one transaction for each operation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


async def pairs_in_batches(token: object, *, pairs: int, at_once: int) -> tuple[float, int]:
    """Return the seconds and the transactions of so many pairs by the writer."""
    from billing_app.ledger_writer import Ledger

    ledger = Ledger()
    ledger.start()
    left = iter(range(pairs))

    async def client() -> None:
        for _ in left:
            session_id = uuid.uuid4()
            await ledger.reserve(session_id, token, 1000, request_id="bench")  # type: ignore[arg-type]
            ledger.settle(session_id, token, 700, request_id="bench")  # type: ignore[arg-type]

    began_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(at_once)))
    await ledger.flush()
    took_s = time.perf_counter() - began_s
    await ledger.close()
    return took_s, ledger.transactions


def pairs_alone(token: object, *, pairs: int) -> float:
    """Return the seconds of so many pairs, a transaction for each operation."""
    from billing_app.core.operations import Reserve, Settle
    from billing_app.ledger import run_batch

    began_s = time.perf_counter()
    for _ in range(pairs):
        who = {"session_id": uuid.uuid4(), "request_id": "bench"}
        who |= {"wallet_id": token.user_id, "token_id": token.id}  # type: ignore[attr-defined]
        run_batch([Reserve(amount_nusd=1000, lease_id=uuid.uuid4(), **who)])  # type: ignore[arg-type]
        run_batch([Settle(amount_nusd=700, **who)])  # type: ignore[arg-type]
    return time.perf_counter() - began_s


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--at-once", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATA_DIR"] = folder
        os.environ.pop("REDIS_URL", None)  # not used; with it secrets are required
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "relayproject.settings")
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection, connections

        from billing_app.audit import audit
        from billing_app.core.types import TokenView
        from billing_app.models import User
        from billing_app.services import token_create

        call_command("migrate", verbosity=0)
        user = User.objects.create(username=f"bench-{uuid.uuid4()}", opening_balance_nusd=10**15)
        row, _ = token_create(user=user, name="bench")
        token = TokenView(
            id=row.pk, name="bench", user_id=user.pk, user_name=user.username, group="default"
        )
        alone = max(1, options.pairs // 50)
        alone_s = pairs_alone(token, pairs=alone)
        work = pairs_in_batches(token, pairs=options.pairs, at_once=options.at_once)
        took_s, transactions = asyncio.run(work)
        differences = audit()
        print(f"{connection.vendor}, Python {platform.python_version()}")
        print(f"  {options.pairs} pairs, {options.at_once} at once")
        print(
            f"  in batches    {options.pairs / took_s:,.0f} pairs/s,"
            f" {transactions / options.pairs:.3f} transactions a pair"
        )
        print(f"  one by one    {alone / alone_s:,.0f} pairs/s")
        print(f"  audit         {'right' if not differences else differences[:3]}")
        connections.close_all()
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
