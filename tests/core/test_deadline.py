"""A time limit for many waits: as exact as asyncio's own, whatever came before."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_app.deadline import Deadline


async def wait(deadline: Deadline, *, limit_s: float | None, work_s: float) -> bool:
    """Return whether the work was done in time."""
    try:
        with deadline.until(None if limit_s is None else time.monotonic() + limit_s):
            await asyncio.sleep(work_s)
    except TimeoutError:
        return False
    return True


SHORT = st.sampled_from([0.0, 0.005])
WAITS = st.lists(
    st.one_of(
        st.tuples(st.just(None), SHORT, st.just(True)),
        st.tuples(st.sampled_from([0.2, 30.0]), SHORT, st.just(True)),
        st.tuples(st.just(0.01), st.just(5.0), st.just(False)),
        st.tuples(st.just(-1.0), st.just(5.0), st.just(False)),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(WAITS)
def test_each_wait_has_its_own_limit(waits):
    """Limits may come in any order, later and earlier than the last."""

    async def run():
        deadline = Deadline()
        done = [await wait(deadline, limit_s=limit, work_s=work) for limit, work, _ in waits]
        deadline.close()
        assert asyncio.current_task().cancelling() == 0
        return done

    assert asyncio.run(run()) == [expected for _, _, expected in waits]


async def test_a_cancellation_is_no_timeout():
    deadline = Deadline()
    task = asyncio.create_task(wait(deadline, limit_s=30, work_s=30))
    await asyncio.sleep(0)

    task.cancel("from outside")

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_wins_over_the_timeout_of_the_same_moment():
    deadline = Deadline()
    task = asyncio.create_task(wait(deadline, limit_s=30, work_s=30))
    await asyncio.sleep(0)

    deadline.expire()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_expire_ends_the_wait_that_is_under_way():
    deadline = Deadline()
    for limit_s in (None, 30):
        task = asyncio.create_task(wait(deadline, limit_s=limit_s, work_s=30))
        await asyncio.sleep(0)
        deadline.expire()
        deadline.expire()
        assert await task is False


async def test_expire_between_two_waits_ends_none():
    deadline = Deadline()
    assert await wait(deadline, limit_s=1, work_s=0)

    deadline.expire()

    assert await wait(deadline, limit_s=1, work_s=0.01)
    deadline.close()


async def test_a_timer_that_fires_when_nobody_waits_does_nothing():
    deadline = Deadline()
    assert await wait(deadline, limit_s=0.01, work_s=0)
    await asyncio.sleep(0.05)

    assert await wait(deadline, limit_s=30, work_s=0.01)
    deadline.close()


async def test_an_error_of_the_work_passes():
    deadline = Deadline()
    with pytest.raises(KeyError), deadline.until(time.monotonic() + 30):
        raise KeyError
    deadline.close()


async def test_tasks_may_take_turns():
    deadline = Deadline()
    assert await asyncio.create_task(wait(deadline, limit_s=30, work_s=0.01))
    assert not await asyncio.create_task(wait(deadline, limit_s=0.01, work_s=30))
