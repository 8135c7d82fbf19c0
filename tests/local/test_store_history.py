"""The bounded history behind watches, and lists that are left open."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.local.history import History, HistoryWatch
from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.store.clock import ManualClock
from stoker.store.port import Gone, WatchEvent, WatchType


def job(name):
    return TrainingJob.model_validate(
        {"metadata": {"name": name, "namespace": "p"}, "spec": {"trainer": {"command": ["true"]}}}
    )


@pytest.fixture
async def store(tmp_path):
    async with EmbeddedStore(tmp_path / "stoker.db", ManualClock(), history=8) as store:
        yield store


async def test_a_slow_reader_is_cut_off_and_a_quick_one_is_not_hurt(store):
    since = (await store.list(JOBS)).resource_version
    slow, quick = store.watch(JOBS, since=since), store.watch(JOBS, since=since)
    await store.create(JOBS, job("first"))
    assert (await anext(slow)).object.metadata.name == "first"
    await anext(quick)
    for number in range(20):
        await store.create(JOBS, job(f"j{number}"))
        assert (await anext(quick)).object.metadata.name == f"j{number}"
    with pytest.raises(Gone, match="too slow"):
        await anext(slow)
    with pytest.raises(Gone, match="older than the oldest"):
        await anext(store.watch(JOBS, since=since))


async def test_an_abandoned_wait_leaves_nothing_behind():
    """A reader with a time-out (an event stream's keep-alive, say) waits again and again on a quiet kind."""
    history = History(1, 8)
    watch = HistoryWatch(history, "1", 1)
    for _ in range(100):
        waiting = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
    assert not history._waiting
    event = WatchEvent(WatchType.BOOKMARK, "2")
    history.append(2, event)
    assert await anext(watch) is event


async def test_open_lists_are_forgotten_in_time(tmp_path):
    clock = ManualClock()
    async with EmbeddedStore(tmp_path / "stoker.db", clock) as store:
        for number in range(4):
            await store.create(JOBS, job(f"j{number}"))
        first = await store.list(JOBS, limit=2)
        for _ in range(2):  # a token serves more than once
            rest = await store.list(JOBS, limit=2, continue_token=first.continue_token)
            assert [found.metadata.name for found in rest.items] == ["j2", "j3"] and rest.continue_token is None
        clock.advance(301)
        with pytest.raises(Gone):
            await store.list(JOBS, limit=2, continue_token=first.continue_token)
        tokens = [(await store.list(JOBS, limit=2)).continue_token for _ in range(40)]
        with pytest.raises(Gone):
            await store.list(JOBS, continue_token=tokens[0])
        assert len((await store.list(JOBS, continue_token=tokens[-1])).items) == 2


@given(
    gaps=st.lists(st.integers(1, 3), max_size=60),
    capacity=st.integers(1, 10),
    since=st.integers(0, 200),
    floor=st.integers(1, 5),
)
def test_a_watch_reads_exactly_what_came_after(gaps, capacity, since, floor):
    async def check():
        history, versions, version = History(floor, capacity), [], floor
        for gap in gaps:
            version += gap
            versions.append(version)
            history.append(version, WatchEvent(WatchType.BOOKMARK, str(version)))
        watch = HistoryWatch(history, str(since), version)
        expected = [v for v in versions if v > since]
        try:
            got = [int((await anext(watch)).resource_version) for _ in expected]
        except Gone:
            assert since < floor or since > version or len(expected) > capacity
            return
        if not expected:
            with pytest.raises((Gone, TimeoutError)):
                await asyncio.wait_for(anext(watch), 0)
        assert got == expected

    asyncio.run(check())
