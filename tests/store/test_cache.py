"""The watch cache."""

from __future__ import annotations

import asyncio
import random

import pytest

from stoker.spec.job import JOBS
from stoker.spec.meta import Key
from stoker.store.cache import WatchCache
from stoker.store.clock import ManualClock, SystemClock
from stoker.store.port import Gone, Unavailable


@pytest.fixture
def cache(store):
    return WatchCache(
        store,
        JOBS,
        clock=SystemClock(),
        indexes={"queue": lambda job: (job.spec.queue,), "labels": lambda job: job.metadata.labels.items()},
        backoff_s=(0.001, 0.01),
    )


async def test_it_shows_what_was_there_and_what_comes(store, cache, job, running):
    old = [await store.create(JOBS, job(f"old-{number}")) for number in range(8)]
    async with running(cache):
        assert list(cache.values()) == old and len(cache) == 8
        new = await store.create(JOBS, job("new"))
        await cache.at_least(new.metadata.resource_version)
        assert cache.get(new.key) == new and cache.by_uid(new.uid) == new
        changed = await store.patch_status(JOBS, new.key, {"message": "m"}, manager="operator")
        await cache.at_least(changed.metadata.resource_version)
        assert cache.get(new.key) == changed == cache.by_uid(new.uid)
        await store.delete(JOBS, new.key)
        await cache.wait_for(lambda cache: cache.get(new.key) is None)
        assert cache.by_uid(new.uid) is None and list(cache.values()) == old


async def test_synced_only_after_the_first_list(store, cache, running, caplog):
    assert not cache.is_synced and cache.resource_version == ""
    store.refuse(Unavailable("not yet"))
    async with running(cache):
        assert cache.is_synced and store.lists == 2
        assert _logged(caplog, "WARNING")[0].message == "watch of TrainingJob: not yet"


async def test_indexes_follow_the_objects(store, cache, job, running):
    one = await store.create(JOBS, job("one", queue="a", x="1"))
    two = await store.create(JOBS, job("two", queue="a", x="2"))
    async with running(cache):
        assert list(cache.by_index("queue", "a")) == [one, two]
        assert list(cache.by_index("labels", ("x", "1"))) == [one]
        assert list(cache.by_index("queue", "none")) == []
        metadata = one.metadata.model_copy(update={"labels": {"y": "1"}})
        moved = await store.update(JOBS, one.model_copy(update={"metadata": metadata}))
        await store.delete(JOBS, two.key)
        await cache.wait_for(lambda cache: len(cache) == 1)
        assert list(cache.by_index("labels", ("y", "1"))) == [moved] == list(cache.by_index("queue", "a"))
        assert list(cache.by_index("labels", ("x", "1"))) == list(cache.by_index("labels", ("x", "2"))) == []
        with pytest.raises(KeyError):
            cache.by_index("nothing", "a")


async def test_subscribers_hear_of_everything_once(store, cache, job, running):
    first = await store.create(JOBS, job("first"))
    early, late = [], []
    cache.subscribe(early.append)
    async with running(cache):
        unsubscribe = cache.subscribe(late.append)
        assert [(change.old, change.new) for change in early] == [(None, first)]
        assert [(change.old, change.new) for change in late] == [(None, first)]
        changed = await store.patch_status(JOBS, first.key, {"message": "m"}, manager="operator")
        await cache.at_least(changed.metadata.resource_version)
        assert (early[1].old, early[1].new, early[1].key) == (first, changed, first.key) and late[1] == early[1]
        unsubscribe()
        unsubscribe()
        await store.delete(JOBS, first.key)
        await cache.wait_for(lambda cache: not len(cache))
        assert (early[2].old, early[2].new, early[2].key) == (changed, None, first.key) and len(late) == 2


async def test_a_poison_handler_stops_no_other(store, cache, job, running, caplog):
    heard = []

    def poison(change):
        raise ZeroDivisionError(change.key.name)

    cache.subscribe(poison)
    cache.subscribe(heard.append)
    async with running(cache):
        last = await store.create(JOBS, job("b"))
        await cache.at_least(last.metadata.resource_version)
        assert [change.key.name for change in heard] == ["b"]
        (line,) = _logged(caplog, "ERROR")
        assert line.exc_info[0] is ZeroDivisionError and "poison" in line.message


async def test_an_object_an_index_cannot_read_stops_no_other(store, job, running, caplog):
    def values(job):
        if job.metadata.name == "bad":
            raise ZeroDivisionError
        return (job.spec.queue,)

    cache = WatchCache(store, JOBS, clock=SystemClock(), indexes={"queue": values})
    for name in ("a", "bad", "c"):
        await store.create(JOBS, job(name))
    async with running(cache):
        assert [job.metadata.name for job in cache.by_index("queue", "default")] == ["a", "c"]
        assert len(cache) == 3 and len(_logged(caplog, "ERROR")) == 1
        await store.delete(JOBS, Key("p", "bad"))
        await cache.wait_for(lambda cache: len(cache) == 2)


async def test_a_broken_stream_is_taken_up_where_it_ended(store, cache, job, running):
    changes = []
    cache.subscribe(changes.append)
    async with running(cache):
        for number, error in enumerate((Unavailable("down"), None, Unavailable("down"))):
            await store.create(JOBS, job(f"before-{number}"))
            store.cut(error)
            last = await store.create(JOBS, job(f"after-{number}"))
            await cache.at_least(last.metadata.resource_version)
        assert store.lists == 1 and store.watches == 4
        assert len(changes) == len(cache) == 6 and all(change.old is None for change in changes)


async def test_gone_lists_again_and_delivers_the_difference(store, cache, job, running):
    kept, changed, gone, reborn = [await store.create(JOBS, job(name)) for name in ("a", "b", "c", "d")]
    changes = []
    async with running(cache):
        cache.subscribe(changes.append)
        changes.clear()
        store.may_list.clear()  # until all has changed
        store.cut(Gone("too old"))
        new_b = await store.patch_status(JOBS, changed.key, {"message": "m"}, manager="operator")
        await store.delete(JOBS, gone.key)
        await store.delete(JOBS, reborn.key)
        new_d = await store.create(JOBS, job("d"))
        new_e = await store.create(JOBS, job("e"))
        store.may_list.set()
        await cache.at_least(new_e.metadata.resource_version)
        assert {change.key.name: change.new for change in changes} == {"b": new_b, "c": None, "d": new_d, "e": new_e}
        assert [(c.old, c.new) for c in changes if c.key == reborn.key] == [(reborn, None), (None, new_d)]
        assert cache.by_uid(reborn.uid) is None and cache.get(kept.key) is kept
        assert store.lists >= 2


async def test_a_slow_cache_lists_again(store, cache, job, running):
    """More changes than the store keeps, in one go, while the loop belongs to someone else."""
    async with running(cache):
        await asyncio.gather(*(store.create(JOBS, job(f"j{number}")) for number in range(300)))
        await cache.wait_for(lambda cache: len(cache) == 300)
        assert {job.key: job for job in cache.values()} == {job.key: job for job in (await store.list(JOBS)).items}
        assert store.lists > 1


async def test_a_bug_in_the_stream_is_met_with_a_new_list(store, cache, job, running, caplog):
    async with running(cache):
        store.cut(RuntimeError("a bug"))
        last = await store.create(JOBS, job("a"))
        await cache.at_least(last.metadata.resource_version)
        assert _logged(caplog, "ERROR")[-1].exc_info[0] is RuntimeError


async def test_waiting_has_an_end(store, cache, running):
    async with running(cache):
        with pytest.raises(TimeoutError):
            await cache.at_least(str(int(cache.resource_version) + 1), timeout_s=0.01)
        with pytest.raises(TimeoutError):
            await cache.wait_for(lambda cache: len(cache) > 0, timeout_s=0.01)


async def test_the_askers_own_fault_is_the_askers(store, cache, job, running):
    async with running(cache):
        asked = asyncio.create_task(cache.wait_for(lambda cache: cache.get(Key("p", "a")) and 1 / 0))
        await asyncio.sleep(0)
        await store.create(JOBS, job("a"))
        with pytest.raises(ZeroDivisionError):
            await asked


async def test_pages_go_on_where_the_last_ended(store, cache, job, running):
    for namespace, name in (("p", "b"), ("q", "a"), ("p", "a"), ("p", "d"), ("o", "z")):
        await store.create(JOBS, job(name, namespace=namespace))
    async with running(cache):
        assert [tuple(job.key) for job in cache.page(limit=2)] == [("o", "z"), ("p", "a")]
        last = await store.create(JOBS, job("c"))
        await store.delete(JOBS, Key("p", "a"))
        await cache.wait_for(lambda cache: cache.get(last.key) is not None and cache.get(Key("p", "a")) is None)
        rest = cache.page(after=Key("p", "a"), limit=10)
        assert [tuple(job.key) for job in rest] == [("p", "b"), ("p", "c"), ("p", "d"), ("q", "a")]
        assert [job.key.name for job in cache.page(namespace="p", limit=2)] == ["b", "c"]
        assert [job.key.name for job in cache.page(namespace="p", after=Key("p", "c"), limit=2)] == ["d"]
        assert [job.key.name for job in cache.page(limit=9, where=lambda job: job.key.name > "c")] == ["z", "d"]


async def test_under_random_writes_and_cuts_it_ends_like_the_store(store, cache, job, running):
    rng, reported = random.Random(7), {}

    def follow(change):
        assert reported.get(change.key) == change.old
        reported[change.key] = change.new
        if change.new is None:
            del reported[change.key]

    async with running(cache):
        cache.subscribe(follow)
        for number in range(300):
            live = [job.key for job in (await store.list(JOBS)).items]
            if rng.random() < 0.1:
                store.cut(rng.choice((None, Gone("old"), Unavailable("down"), RuntimeError("bug"))))
            if not live or rng.random() < 0.4:
                await store.create(JOBS, job(f"j{rng.randrange(30)}-{number}"))
            elif rng.random() < 0.6:
                await store.patch_status(JOBS, rng.choice(live), {"message": str(number)}, manager="operator")
            else:
                await store.delete(JOBS, rng.choice(live))
        last = await store.create(JOBS, job("last"))
        await cache.at_least(last.metadata.resource_version)
        assert (
            reported == {job.key: job for job in (await store.list(JOBS)).items} == {j.key: j for j in cache.values()}
        )


async def test_it_reports_how_long_the_store_has_been_silent(store, job):
    clock = ManualClock()
    cache = WatchCache(store, JOBS, clock=clock, backoff_s=(5.0, 5.0), rng=random.Random(1))
    clock.advance(7)
    assert cache.stale_s == 7, "nothing has been heard since it was made"
    task = asyncio.create_task(cache.run())
    try:
        await cache.synced()
        assert cache.stale_s == 0
        while store.watches < 1:
            await asyncio.sleep(0)
        clock.advance(1000)
        assert cache.stale_s == 0, "the watch knows of no silence: what does not come did not happen"
        store.silent_s = 40.0
        assert cache.stale_s == 40
        store.may_list.clear()
        store.cut(Gone("too old"))  # a list hangs now: no one says anything any more
        while store.lists < 2:
            await asyncio.sleep(0)
        clock.advance(60)
        assert cache.stale_s == 100
        store.may_list.set()
        while store.watches < 2:
            await asyncio.sleep(0)
        assert cache.stale_s == 0
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _logged(caplog, level):
    return [line for line in caplog.records if line.levelname == level]
