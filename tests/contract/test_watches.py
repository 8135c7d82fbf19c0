"""Contract: watch, alone and after a list, under concurrent writes."""

from __future__ import annotations

import asyncio
import random

import pytest

from stoker.spec.job import JOBS
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.queue import QUEUES
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import Gone, Invalid, WatchType

ADDED, MODIFIED, DELETED = WatchType.ADDED, WatchType.MODIFIED, WatchType.DELETED


async def test_a_watch_delivers_every_change_in_order(store, project, make, reader):
    since = (await store.list(JOBS, limit=1)).resource_version
    job = await store.create(JOBS, make.job(project, "a", finalizers=[FINALIZER_OUTCOME]))
    raised = await store.update(JOBS, make.with_priority(job, 1))
    patched = await store.patch_status(JOBS, job.key, {"message": "m"}, manager="operator")
    await store.delete(JOBS, job.key)
    marked = await store.get(JOBS, job.key)
    await store.update(JOBS, make.changed(marked, finalizers=()))
    events = await reader.take(store.watch(JOBS, since=since), 5, project)
    assert [event.type for event in events] == [ADDED, MODIFIED, MODIFIED, MODIFIED, DELETED]
    assert [event.object for event in events[:4]] == [job, raised, patched, marked]
    assert events[4].object.uid == job.uid
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(set(versions))
    assert all(event.object.metadata.resource_version == event.resource_version for event in events)


async def test_a_watch_starts_after_the_version_given(store, project, make, reader):
    first = await store.create(JOBS, make.job(project, "a"))
    second = await store.create(JOBS, make.job(project, "b"))
    [event] = await reader.take(store.watch(JOBS, since=first.metadata.resource_version), 1, project)
    assert event.object == second


async def test_a_watch_waits_for_what_comes(store, project, make, reader):
    since = (await store.list(JOBS, limit=1)).resource_version
    waiting = asyncio.create_task(reader.take(store.watch(JOBS, since=since), 2, project))
    await asyncio.sleep(0)
    await store.create(JOBS, make.job(project, "a"))
    await store.create(JOBS, make.job(project, "b"))
    assert [event.object.metadata.name for event in await waiting] == ["a", "b"]


async def test_a_watch_delivers_its_kind_only(store, project, make, reader, unique):
    since = (await store.list(JOBS, limit=1)).resource_version
    await store.create(QUEUES, make.queue(unique("q")))
    job = await store.create(JOBS, make.job(project, "a"))
    [event] = await reader.take(store.watch(JOBS, since=since), 1)
    assert event.object.kind == "TrainingJob" and (event.object == job or event.object.key.namespace != project)


async def test_writes_that_change_nothing_wake_no_watcher(store, project, make, reader, is_cluster):
    job = await store.create(JOBS, make.job(project, "a"))
    if is_cluster:  # saying the default for the first time is a change there
        job = await store.patch_status(JOBS, job.key, {"message": ""}, manager="operator")
    watch = store.watch(JOBS, since=job.metadata.resource_version)
    await store.update(JOBS, job)
    await store.patch_status(JOBS, job.key, {"message": ""}, manager="operator")
    patched = await store.patch_status(JOBS, job.key, {"message": "m"}, manager="operator")
    [event] = await reader.take(watch, 1, project)
    assert event.object == patched


async def test_a_failed_write_is_not_delivered(store, project, make, reader):
    job = await store.create(JOBS, make.job(project, "a"))
    watch = store.watch(JOBS, since=job.metadata.resource_version)
    moved = job.model_copy(update={"spec": job.spec.model_copy(update={"queue": "other"})})
    with pytest.raises(Invalid, match="queue"):
        await store.update(JOBS, moved)
    raised = await store.update(JOBS, make.with_priority(job, 1))
    [event] = await reader.take(watch, 1, project)
    assert event.object == raised


async def test_a_version_before_all_history_is_gone(store):
    with pytest.raises(Gone):
        await anext(store.watch(JOBS, since="-1"))


async def _churn(store, make, project, worker, rng, rounds):
    """Random writes on this worker's own objects."""
    live = {}
    for number in range(rounds):
        choice = rng.random()
        if not live or choice < 0.4:
            job = await store.create(JOBS, make.job(project, f"w{worker}-{number}"))
            live[job.key] = job
        elif choice < 0.7:
            key = rng.choice(sorted(live))
            live[key] = await store.patch_status(JOBS, key, {"message": str(number)}, manager="operator")
        elif choice < 0.9:
            key = rng.choice(sorted(live))
            live[key] = await store.update(JOBS, make.with_priority(live[key], number))
        else:
            key = rng.choice(sorted(live))
            del live[key]
            await store.delete(JOBS, key)
    return live


async def test_two_watches_see_the_same_order(store, project, make, reader):
    since = (await store.list(JOBS, limit=1)).resource_version
    watches = [store.watch(JOBS, since=since), store.watch(JOBS, since=since)]
    readers = [asyncio.create_task(reader.take(watch, 200, project)) for watch in watches]
    workers = [_churn(store, make, project, worker, random.Random(worker), 50) for worker in range(4)]
    await asyncio.gather(*workers)
    late = asyncio.create_task(reader.take(store.watch(JOBS, since=since), 200, project))
    first, second, third = await asyncio.gather(*readers, late)
    assert first == second == third


async def test_list_then_watch_misses_nothing_under_writes(store, project, make, reader):
    """Whenever the list is taken, its objects plus the events since are the final state."""
    workers = [
        asyncio.create_task(_churn(store, make, project, worker, random.Random(100 + worker), 60))
        for worker in range(4)
    ]
    views = []
    while not all(worker.done() for worker in workers):
        state, token = {}, None
        while True:
            page = await store.list(JOBS, namespace=project, limit=3, continue_token=token)
            state.update({obj.key: obj for obj in page.items})
            token = page.continue_token
            await asyncio.sleep(0)
            if token is None:
                break
        if len(views) < 60:
            views.append((state, page.resource_version))
        await asyncio.sleep(0.001)
    final = {}
    for worker in workers:
        final.update(await worker)
    marker = await store.create(JOBS, make.job(project, "marker"))
    final[marker.key] = marker
    assert len(views) > 1
    for state, since in views:
        watch = store.watch(JOBS, since=since)
        while marker.key not in state:
            [event] = await reader.take(watch, 1, project)
            if event.type is DELETED:
                del state[event.object.key]
            else:
                assert (event.type is ADDED) == (event.object.key not in state)
                state[event.object.key] = event.object
        assert state == final


async def test_a_cache_that_follows_is_not_stale(store, project, make, is_cluster):
    """A server says something at least as it opens a watch; a store of this process need not say that nothing came."""
    cache = WatchCache(store, JOBS, clock=SystemClock())
    running = asyncio.create_task(cache.run())
    try:
        async with asyncio.timeout(30):
            await cache.synced()
            job = await store.create(JOBS, make.job(project, "a"))
            await cache.at_least(job.metadata.resource_version)
        assert cache.stale_s < 30 if is_cluster else cache.stale_s == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
