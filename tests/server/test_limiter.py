"""What a process holds: shared with others through the store, alone without it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog
from structlog.testing import LogCapture

from channels_app.core.rates import Limit, Meter, Refused
from channels_app.core.types import RateLimits
from channels_app.stores import slots_key
from relay_app import limiter as limiter_module
from relay_app.limiter import Hold, Limiter
from relayproject import valkey
from relayproject.children import Supervisor
from tests.server.running import ROOT, wait_for


@contextlib.contextmanager
def captured() -> Iterator[list[MutableMapping[str, Any]]]:
    """Give the log lines of the limiter. Its own logger may be configured for good already."""
    capture, own = LogCapture(), limiter_module.log
    limiter_module.log = structlog.wrap_logger(None, processors=[capture])
    try:
        yield capture.entries
    finally:
        limiter_module.log = own


ALONE = "rate limits count per process"
SHARED = "rate limits are shared again"


def meter(name: str = "token:1", *, cost: int = 0, **limits: int) -> Meter:
    return Meter(name=name, limits=RateLimits(**limits), cost=cost)


async def hold(limiter: Limiter, *meters: Meter) -> Hold:
    answer = await limiter.take(meters)
    assert isinstance(answer, Hold), answer
    return answer


async def refused(limiter: Limiter, *meters: Meter) -> Refused:
    answer = await limiter.take(meters)
    assert isinstance(answer, Refused)
    return answer


async def until(happened: Callable[[], Awaitable[object]], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not await happened():  # noqa: ASYNC110  # the store sends no events
            await asyncio.sleep(0.01)


@pytest.fixture
async def limiter(state_store: str) -> AsyncIterator[Limiter]:
    limiter = Limiter(state_store)
    limiter.start()
    yield limiter
    await limiter.close()


@pytest.fixture
async def other(state_store: str) -> AsyncIterator[Limiter]:
    """A second process, as far as the store can tell."""
    other = Limiter(state_store)
    other.start()
    yield other
    await other.close()


class TakingProcess:
    """A process of its own; `go` makes it take, `granted` is what it got."""

    def __init__(self, url: str, *, lease_s: float, count: int, **limits: int) -> None:
        arguments = [url, str(lease_s), str(count), json.dumps(limits)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.limiter_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def granted(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def start_process(state_store: str) -> Iterator[Callable[..., TakingProcess]]:
    started: list[TakingProcess] = []

    def start(**arguments: Any) -> TakingProcess:
        started.append(TakingProcess(state_store, **arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize("limits", [{"rpm": 50}, {"concurrency": 50}])
def test_two_processes_together_get_exactly_the_limit(
    start_process: Callable[..., TakingProcess], limits: dict[str, int]
) -> None:
    processes = [start_process(lease_s=45, count=200, **limits) for _ in range(2)]
    for process in processes:
        process.wait_ready()
    for process in processes:
        process.go()

    assert sum(process.granted() for process in processes) == 50


async def test_slots_of_a_killed_process_become_free(
    start_process: Callable[..., TakingProcess], limiter: Limiter
) -> None:
    process = start_process(lease_s=0.6, count=3, concurrency=3)
    process.wait_ready()
    process.go()
    assert process.granted() == 3
    limited = meter(concurrency=3)
    await asyncio.sleep(0.9)  # past the lease, which is renewed while the process lives
    assert (await refused(limiter, limited)).limit == Limit.CONCURRENCY

    process.kill()

    async def is_free() -> bool:
        return isinstance(await limiter.take((limited,)), Hold)

    await until(is_free, 1.0)


async def test_never_more_holders_than_slots(limiter: Limiter, other: Limiter) -> None:
    dice = random.Random(7)
    holders = most = 0

    async def request(mine: Limiter) -> bool:
        nonlocal holders, most
        answer = await mine.take((meter(concurrency=8), meter("channel:1", concurrency=9)))
        if isinstance(answer, Refused):
            return False
        holders += 1
        most = max(most, holders)
        await asyncio.sleep(dice.random() * 0.01)
        holders -= 1
        answer.end()
        return True

    async def client(number: int) -> int:
        return sum([await request((limiter, other)[number % 2]) for _ in range(20)])

    answered = await asyncio.gather(*(client(number) for number in range(40)))

    assert most == 8
    assert sum(answered) > 8
    await until(lambda: has_slots(limiter, 8))


async def has_slots(limiter: Limiter, number: int) -> bool:
    """Return whether so many slots of token:1 are free, leaving them so."""
    answer = await limiter.take((meter(concurrency=number),))
    if isinstance(answer, Refused):
        return False
    answer.end()
    return answer.rooms[0].slots == number - 1


async def test_used_tokens_are_corrected_for_all_processes(
    limiter: Limiter, other: Limiter
) -> None:
    limited = meter(rpm=9, tpm=1000, cost=600)
    first = await hold(limiter, limited)
    assert (await refused(other, limited)).limit == Limit.TPM

    first.end(tokens_used=100)

    async def passes() -> bool:
        return isinstance(await other.take((limited,)), Hold)

    await until(passes)
    assert (await refused(limiter, limited)).rooms[0].tokens == 300


async def test_an_undone_claim_gives_the_request_back(limiter: Limiter) -> None:
    limited = meter(rpm=1, tpm=10, concurrency=1, cost=10)
    (await hold(limiter, limited)).undo()

    await hold(limiter, limited)


async def test_a_hold_ends_once(limiter: Limiter) -> None:
    limited = meter(tpm=1000, cost=500)
    ending = await hold(limiter, limited)
    for _ in range(3):
        ending.end(tokens_used=0)
    ending.undo()
    ending.end(tokens_used=900)

    assert (await hold(limiter, limited)).rooms[0].tokens == 500


async def test_a_cancelled_request_frees_its_slot(limiter: Limiter) -> None:
    limited = meter(concurrency=1)
    has_begun = asyncio.Event()

    async def request() -> None:
        holding = await hold(limiter, limited)
        try:
            has_begun.set()
            await asyncio.Event().wait()
        finally:
            holding.end()

    task = asyncio.create_task(request())
    await has_begun.wait()
    await refused(limiter, limited)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    await hold(limiter, limited)


@pytest.mark.parametrize("steps", range(6))
async def test_a_request_that_leaves_while_it_asks_takes_nothing(
    limiter: Limiter, steps: int
) -> None:
    limited = meter(rpm=5, concurrency=1)
    task = asyncio.create_task(limiter.take((limited,)))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    async def is_free() -> bool:
        answer = await limiter.take((limited,))
        return isinstance(answer, Hold) and answer.rooms[0].requests == 4

    await until(is_free)


async def test_closing_sends_what_waits(state_store: str, other: Limiter) -> None:
    limited = meter(concurrency=20)
    closing = Limiter(state_store)
    closing.start()
    for holding in [await hold(closing, limited) for _ in range(20)]:
        holding.end()

    await closing.close()

    assert (await hold(other, limited)).rooms[0].slots == 19
    late = await hold(closing, limited)  # counted alone
    late.end()


async def test_without_a_store_the_same_rules_hold_per_process() -> None:
    with captured() as lines:
        limiter = Limiter("")
        limiter.start()
    limited = meter(rpm=2, concurrency=1)
    holding = await hold(limiter, limited)
    assert (await refused(limiter, limited)).limit == Limit.CONCURRENCY
    holding.end()
    await hold(limiter, limited)

    assert (await refused(limiter, limited)).limit == Limit.RPM
    assert [line["event"] for line in lines] == [ALONE]
    await limiter.close()


class OwnStore:
    """A store of the test's own that it may kill, stop and start again."""

    def __init__(self, folder: Path) -> None:
        self._supervisor = Supervisor()
        running = valkey.start(self._supervisor, data_dir=folder)
        self.url, self._child = running.url, running.child

    def send(self, number: signal.Signals) -> None:
        assert self._child.pid is not None
        os.kill(self._child.pid, number)

    def kill(self) -> None:
        self._child.kill()
        wait_for(lambda: not self._child.is_alive, 5)

    def start(self) -> None:
        self._child.start()

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def end(self) -> None:
        self._supervisor.stop_all()


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[OwnStore]:
    store = OwnStore(tmp_path)
    yield store
    store.end()


@pytest.fixture
async def eager(own_store: OwnStore) -> AsyncIterator[Limiter]:
    """A limiter at that store that looks for it often."""
    limiter = Limiter(own_store.url, renew_s=0.1, retry_s=0.05)
    limiter.start()
    yield limiter
    await limiter.close()


async def is_back(limiter: Limiter) -> None:
    async def is_shared() -> bool:
        return limiter.is_shared

    await until(is_shared, 10)


async def test_claims_go_on_while_the_store_is_gone_and_are_shared_after_it(
    own_store: OwnStore, eager: Limiter
) -> None:
    limited = meter(rpm=100, concurrency=2)
    with captured() as lines:
        kept = await hold(eager, limited)
        ended_meanwhile = await hold(eager, limited)
        own_store.kill()

        answers = await asyncio.gather(*(eager.take((limited,)) for _ in range(50)))
        alone = [answer for answer in answers if isinstance(answer, Hold)]
        assert len(alone) == 2  # this process alone, from zero
        ended_meanwhile.end()
        alone[0].end()
        await hold(eager, limited)

        own_store.start()
        await is_back(eager)

        assert (await hold(eager, limited)).is_shared
        assert (await refused(eager, limited)).limit == Limit.CONCURRENCY
        alone[1].end()  # where it was taken: it frees nothing in the store
        await refused(eager, limited)
        kept.end()
        await hold(eager, limited)
    assert [line["event"] for line in lines] == [ALONE, SHARED]


async def test_a_store_that_hangs_delays_nobody_for_long(
    own_store: OwnStore, eager: Limiter
) -> None:
    limited = meter(rpm=1000)
    await hold(eager, limited)
    own_store.send(signal.SIGSTOP)
    try:
        begun_s = time.monotonic()
        first = await hold(eager, limited)
        after_s = time.monotonic()
        for _ in range(100):
            await hold(eager, limited)
        done_s = time.monotonic()
    finally:
        own_store.send(signal.SIGCONT)

    assert not first.is_shared
    assert after_s - begun_s < 1.0  # 0.25 s on a machine with nothing else to do
    assert done_s - after_s < 0.2
    await is_back(eager)


async def test_an_unknown_fate_leaves_no_slot_taken(own_store: OwnStore, eager: Limiter) -> None:
    """What a hanging store was told it does later; its slots are freed once it answers."""
    limited = meter(concurrency=4)
    held = await hold(eager, limited)
    own_store.send(signal.SIGSTOP)
    held.end()
    for answer in await asyncio.gather(*(eager.take((limited,)) for _ in range(3))):
        assert isinstance(answer, Hold)
        answer.end()
    own_store.send(signal.SIGCONT)
    await is_back(eager)

    await until(lambda: has_slots(eager, 4))


async def test_a_store_that_lost_everything_learns_who_holds(
    own_store: OwnStore, eager: Limiter
) -> None:
    limited = meter(concurrency=1)
    await hold(eager, limited)

    own_store.flush()

    with redis.Redis.from_url(own_store.url) as client:
        await asyncio.to_thread(wait_for, lambda: client.exists(slots_key("token:1")), 5)
    await refused(eager, limited)


async def test_a_store_that_refuses_writes_is_as_good_as_gone(
    own_store: OwnStore, eager: Limiter
) -> None:
    with redis.Redis.from_url(own_store.url) as client, captured() as lines:
        client.config_set("maxmemory", "1")
        limited = meter(rpm=1)
        assert not (await hold(eager, limited)).is_shared
        await refused(eager, limited)
        await asyncio.sleep(0.2)  # several looks at it
        assert [line["event"] for line in lines] == [ALONE]

        client.config_set("maxmemory", "0")
        await is_back(eager)
        assert (await hold(eager, limited)).is_shared
