"""A process of its own that takes from the state store: `python -m ... URL LEASE_S COUNT LIMITS`.

Prints how many of COUNT claims, taken at once, were granted; then holds them until killed.
"""

from __future__ import annotations

import asyncio
import json
import sys

from channels_app.core.rates import Meter
from channels_app.core.types import RateLimits
from relay_app.limiter import Hold, Limiter


async def main(url: str, lease_s: str, count: str, limits: str) -> None:
    limiter = Limiter(url, lease_s=float(lease_s), renew_s=float(lease_s) / 3)
    limiter.start()
    claim = (Meter(name="token:1", limits=RateLimits(**json.loads(limits))),)
    tell("ready")
    await asyncio.to_thread(sys.stdin.readline)
    answers = await asyncio.gather(*(limiter.take(claim) for _ in range(int(count))))
    tell(str(sum(isinstance(answer, Hold) for answer in answers)))
    await asyncio.Event().wait()


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
