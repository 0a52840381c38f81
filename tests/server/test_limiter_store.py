"""The store's scripts give the answers of the model, whoever asks in whatever order."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from channels_app import stores
from channels_app.core.rates import (
    WINDOW_MS,
    Answer,
    End,
    Granted,
    Meter,
    Rates,
    Renew,
    Take,
    ended,
    undone,
)
from channels_app.core.types import RateLimits

LEASE_MS = 45_000
START_MS = 1_700_000_000_250
LIMITS = {
    "token:1": RateLimits(rpm=6, tpm=500, concurrency=3),
    "channel:1": RateLimits(rpm=4),
    "channel:2": RateLimits(tpm=300),
    "key:1": RateLimits(concurrency=2),
}

# Meters are named anew for each example: keys of the last one are then in nobody's way.
examples = itertools.count()


class Worker:
    """What a test says to the store on its own loop, with a clock of the test's."""

    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.client = stores.connect(url)
        self.store = stores.RateStore(self.client, lease_ms=LEASE_MS)

    def run(self, command: stores.Command, now_ms: int) -> Answer | None:
        return self.runner.run(self.store.run([command], now_ms=now_ms))[0]

    def close(self) -> None:
        self.runner.run(self.client.aclose())


@pytest.fixture
def workers(state_store: str) -> Iterator[list[Worker]]:
    with asyncio.Runner() as runner:
        workers = [Worker(state_store, runner) for _ in range(3)]
        yield workers
        for worker in workers:
            worker.close()


@dataclass
class Held:
    """A granted claim, as the test itself remembers it."""

    take: Take
    at_ms: int
    lease_end_ms: int
    tokens: list[int]
    is_counted: bool = True
    is_open: bool = True


class SharedRates(RuleBasedStateMachine):
    """Workers at one store, the model, and a plain list of what was granted."""

    workers: list[Worker] = []

    @initialize()
    def begin(self) -> None:
        self.example = next(examples)
        self.now_ms = START_MS
        self.model = Rates(lease_ms=LEASE_MS)
        self.held: list[Held] = []

    @property
    def open(self) -> list[Held]:
        return [held for held in self.held if held.is_open]

    @rule(pause_ms=st.one_of(st.integers(0, 2_000), st.integers(0, 70_000)))
    def time_passes(self, pause_ms: int) -> None:
        self.now_ms += pause_ms

    @rule(
        worker=st.integers(0, 2),
        names=st.lists(st.sampled_from(sorted(LIMITS)), min_size=1, unique=True),
        cost=st.integers(0, 600),
    )
    def take(self, worker: int, names: list[str], cost: int) -> None:
        meters = tuple(
            Meter(name=f"{self.example}:{name}", limits=LIMITS[name], cost=cost) for name in names
        )
        take = Take(hold_id=f"{self.example}:{len(self.held)}:{worker}", meters=meters)
        answer = self.model.take(take, now_ms=self.now_ms)

        assert self.workers[worker].run(take, self.now_ms) == answer

        if isinstance(answer, Granted):
            self.held.append(
                Held(take, self.now_ms, self.now_ms + LEASE_MS, [m.reserved for m in meters])
            )
            self.check_windows(meters)

    def check_windows(self, meters: tuple[Meter, ...]) -> None:
        for meter in meters:
            requests = tokens = 0
            for held in self.held:
                if not held.is_counted or self.now_ms - held.at_ms >= WINDOW_MS:
                    continue
                for theirs, used in zip(held.take.meters, held.tokens, strict=True):
                    if theirs.name == meter.name:
                        requests += 1
                        tokens += used
            assert requests <= (meter.limits.rpm or requests)
            assert tokens <= (meter.limits.tpm or tokens)

    @precondition(lambda self: self.open)
    @rule(worker=st.integers(0, 2), which=st.integers(0), used=st.none() | st.integers(0, 900))
    def end(self, worker: int, which: int, used: int | None) -> None:
        held = self.open[which % len(self.open)]
        end = ended(held.take, at_ms=held.at_ms, tokens_used=used)
        if used is not None:
            held.tokens = [used for _ in held.tokens]
        self.finish(worker, held, end)

    @precondition(lambda self: self.open)
    @rule(worker=st.integers(0, 2), which=st.integers(0))
    def undo(self, worker: int, which: int) -> None:
        held = self.open[which % len(self.open)]
        held.is_counted = False
        self.finish(worker, held, undone(held.take, at_ms=held.at_ms))

    def finish(self, worker: int, held: Held, end: End) -> None:
        held.is_open = False
        self.model.end(end)
        self.workers[worker].run(end, self.now_ms)

    @precondition(lambda self: self.open)
    @rule(worker=st.integers(0, 2), which=st.integers(0))
    def renew(self, worker: int, which: int) -> None:
        held = self.open[which % len(self.open)]
        if held.lease_end_ms <= self.now_ms:
            return  # a process that slept beyond its lease: its slot may be somebody else's
        held.lease_end_ms = self.now_ms + LEASE_MS
        renew = Renew(
            leases=tuple(
                (held.take.hold_id, meter.name)
                for meter in held.take.meters
                if meter.limits.concurrency
            )
        )
        self.model.renew(renew, now_ms=self.now_ms)
        if renew.leases:
            self.workers[worker].run(renew, self.now_ms)

    @invariant()
    def no_meter_has_more_holders_than_slots(self) -> None:
        holders = Counter(
            meter.name
            for held in self.open
            if held.lease_end_ms > self.now_ms
            for meter in held.take.meters
        )
        for name, count in holders.items():
            assert count <= (LIMITS[name.partition(":")[2]].concurrency or count)

    def teardown(self) -> None:
        """After all ends every slot is free."""
        if not hasattr(self, "held"):
            return
        for held in self.open:
            self.finish(0, held, ended(held.take, at_ms=held.at_ms, tokens_used=None))
        for name, limits in LIMITS.items():
            if limits.concurrency:
                meter = Meter(
                    name=f"{self.example}:{name}",
                    limits=RateLimits(concurrency=limits.concurrency),
                )
                answer = self.workers[0].run(Take(hold_id="last", meters=(meter,)), self.now_ms)
                assert isinstance(answer, Granted)
                assert answer.rooms[0].slots == limits.concurrency - 1


def test_scripts_and_model_agree_and_hold_the_limits(workers: list[Worker]) -> None:
    machine = type("Machine", (SharedRates,), {"workers": workers})

    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(-90_000, 90_000), st.integers(0, 200), st.booleans()), max_size=30
    )
)
def test_scripts_and_model_agree_when_the_clock_jumps(
    workers: list[Worker], steps: list[tuple[int, int, bool]]
) -> None:
    name, model, now_ms = f"jumps:{next(examples)}", Rates(lease_ms=LEASE_MS), START_MS
    for number, (jump_ms, cost, is_undone) in enumerate(steps):
        now_ms += jump_ms
        limits = RateLimits(rpm=3, tpm=400, concurrency=2)
        take = Take(hold_id=str(number), meters=(Meter(name=name, limits=limits, cost=cost),))

        answer = model.take(take, now_ms=now_ms)

        assert workers[0].run(take, now_ms) == answer
        if isinstance(answer, Granted) and is_undone:
            end = undone(take, at_ms=answer.at_ms)
            model.end(end)
            workers[1].run(end, now_ms)


def test_all_keys_vanish_by_themselves(workers: list[Worker]) -> None:
    limits = RateLimits(rpm=1, tpm=1, concurrency=1)
    worker, store = workers[0], workers[0].client
    take = Take(hold_id="1", meters=(Meter(name="token:9", limits=limits),))
    answer = worker.runner.run(worker.store.run([take]))[0]
    assert isinstance(answer, Granted)

    worker.runner.run(
        worker.store.run(
            [
                ended(take, at_ms=answer.at_ms, tokens_used=1),
                Renew(leases=(("1", "token:9"),)),
            ]
        )
    )

    left_ms = [
        worker.runner.run(store.pttl(key))
        for key in (stores.window_key("token:9"), stores.slots_key("token:9"))
    ]
    assert 0 < left_ms[0] <= WINDOW_MS
    assert 0 < left_ms[1] <= LEASE_MS


def test_a_store_that_forgot_the_scripts_learns_them_again(workers: list[Worker]) -> None:
    worker = workers[0]
    meters = (Meter(name="token:9", limits=RateLimits(rpm=3)),)
    worker.run(Take(hold_id="1", meters=meters), START_MS)
    worker.runner.run(worker.client.script_flush())

    answers = worker.runner.run(
        worker.store.run(
            [Take(hold_id=str(number), meters=meters) for number in range(3)], now_ms=START_MS
        )
    )

    assert [isinstance(answer, Granted) for answer in answers] == [True, True, False]
