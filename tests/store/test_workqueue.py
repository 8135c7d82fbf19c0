"""The keyed work queue."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.store.clock import ManualClock
from stoker.store.workqueue import QueueShutDown, WorkQueue
from tests.support.examples import examples


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def queue(clock):
    return WorkQueue(clock, base_s=1, cap_s=10, jitter=0)


async def test_a_key_waits_once(queue):
    for key in "abab":
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == ["a", "b"]


async def test_a_key_added_at_work_runs_once_more_after_done(queue):
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_get_waits_and_each_key_wakes_one(queue):
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    assert await asyncio.wait_for(asyncio.gather(*getters[:2]), 5) == ["a", "b"]
    assert not getters[2].done()
    queue.add("c")
    assert await asyncio.wait_for(getters[2], 5) == "c"


async def test_a_cancelled_getter_loses_no_key(queue):
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "a"
    assert first.cancelled() or (await asyncio.gather(first, return_exceptions=True))


async def test_delayed_keys_come_when_due_and_the_earliest_counts(queue, clock):
    queue.add_after("late", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 2)
    queue.add_after("a", 7)
    assert queue.delayed == 2
    await clock.wait_for_sleepers(1)
    clock.advance(2)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.done("a")
    await clock.wait_for_sleepers(1)
    clock.advance(7.9)
    await asyncio.sleep(0)
    assert len(queue) == 0
    await clock.wait_for_sleepers(1)
    clock.advance(0.1)
    assert await asyncio.wait_for(queue.get(), 5) == "late"
    assert queue.delayed == 0
    queue.shutdown()


async def test_an_earlier_key_overtakes_the_sleeping_timer(queue, clock):
    queue.add_after("late", 50)
    await clock.wait_for_sleepers(1)
    queue.add_after("early", 1)
    await asyncio.sleep(0)
    await clock.wait_for_sleepers(1)
    clock.advance(1)
    assert await asyncio.wait_for(queue.get(), 5) == "early"
    queue.shutdown()


async def test_what_is_due_no_more_is_not_kept(queue, clock):
    queue.add_after("kept", 50)
    for number in range(1000):
        queue.add_after(number, 100)
        queue.drop_due(number)
    queue.drop_due("never there")
    assert queue.delayed == 1
    assert sum(len(kept) for kept in vars(queue).values() if isinstance(kept, (list, dict))) < 50
    await clock.wait_for_sleepers(1)
    clock.advance(50)
    assert await asyncio.wait_for(queue.get(), 5) == "kept"
    assert len(queue) == 0
    queue.shutdown()


async def test_a_delay_of_nothing_is_now(queue):
    queue.add_after("a", 0)
    assert len(queue) == 1 and queue.delayed == 0


async def test_backoff_doubles_to_the_cap_and_forget_resets_it(queue):
    assert [queue.add_backoff("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert queue.add_backoff("b") == 1
    queue.forget("a")
    assert queue.add_backoff("a") == 1
    queue.shutdown()


async def test_backoff_is_jittered_within_bounds(clock):
    queue = WorkQueue(clock, base_s=1, cap_s=1, jitter=0.2, rng=random.Random(1))
    delays = [queue.add_backoff("a") for _ in range(200)]
    assert 0.8 <= min(delays) < 0.85 and 1.15 < max(delays) <= 1.2
    queue.shutdown()


async def test_shutdown_hands_out_what_waits_then_ends(queue):
    queue.add("a")
    queue.add_after("never", 5)
    queue.shutdown()
    queue.add("b")
    assert await queue.get() == "a"
    with pytest.raises(QueueShutDown):
        await queue.get()
    assert queue.delayed == 0


async def test_shutdown_wakes_every_getter(queue):
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.shutdown()
    results = await asyncio.wait_for(asyncio.gather(*getters, return_exceptions=True), 5)
    assert all(isinstance(result, QueueShutDown) for result in results)


@examples(60)
@given(adds=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=60), workers=st.integers(1, 4))
def test_never_twice_at_once_and_the_last_add_is_always_seen(adds, workers):
    """Workers write down the newest add they saw of each key; whatever the timing, at the end it is the last one."""

    async def check():
        queue, at_work = WorkQueue(ManualClock()), set()
        added, seen = {}, {}

        async def work(number):
            while True:
                try:
                    key = await queue.get()
                except QueueShutDown:
                    return
                assert key not in at_work
                at_work.add(key)
                seen[key] = added[key]
                for _ in range(number):
                    await asyncio.sleep(0)
                at_work.discard(key)
                queue.done(key)

        tasks = [asyncio.create_task(work(number)) for number in range(workers)]
        for number, (key, pause) in enumerate(adds):
            added[key] = number
            queue.add(key)
            for _ in range(pause):
                await asyncio.sleep(0)
        while len(queue) or at_work:
            await asyncio.sleep(0)
        queue.shutdown()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert seen == added

    asyncio.run(check())


async def test_work_that_goes_on_comes_before_new_work_which_gets_every_fourth_turn(queue):
    for number in range(6):
        queue.add(f"new{number}", behind=True)
    for number in range(7):
        queue.add(f"on{number}")
    handed = [await queue.get() for _ in range(len(queue))]
    assert handed[:9] == ["on0", "on1", "on2", "new0", "on3", "on4", "on5", "new1", "on6"]
    assert handed[9:] == [f"new{number}" for number in range(2, 6)]


async def test_a_key_that_waits_behind_comes_forward_once_it_is_added_as_what_goes_on(queue):
    for key in "abc":
        queue.add(key, behind=True)
    queue.add("c")
    queue.add("c", behind=True)
    assert len(queue) == 3
    assert [await queue.get() for _ in "abc"] == ["c", "a", "b"]
    queue.add("a", behind=True)
    queue.add("b", behind=True)
    queue.add("b")
    queue.done("a")
    queue.done("b")
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == ["b", "a"]
