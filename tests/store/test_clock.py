"""The clocks."""

from __future__ import annotations

import asyncio
from datetime import UTC, timedelta

from stoker.store.clock import ManualClock, SystemClock


async def test_the_system_clock_is_utc_and_never_goes_back():
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.009


async def test_sleepers_wake_in_the_order_of_their_deadlines():
    clock, woken = ManualClock(), []

    async def sleeper(seconds):
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
    await clock.wait_for_sleepers(3)
    clock.advance(0.5)
    await asyncio.sleep(0)
    assert woken == [] and clock.sleepers == 3
    clock.advance(1.5)
    await asyncio.gather(*tasks[1:])
    assert woken == [1, 2] and clock.sleepers == 1
    clock.advance(1)
    await tasks[0]


async def test_both_hands_move_together():
    clock = ManualClock()
    now, monotonic = clock.now(), clock.monotonic()
    clock.advance(90)
    assert clock.now() - now == timedelta(seconds=90) and clock.monotonic() - monotonic == 90


async def test_a_cancelled_sleeper_is_forgotten():
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1))
    await clock.wait_for_sleepers(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.sleepers == 0
    clock.advance(1)
    await asyncio.wait_for(clock.sleep(0), 5)
