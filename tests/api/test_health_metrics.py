"""What the api reports of itself: caches, disks, and jobs that could run and are not started."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.local.store import EmbeddedStore
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, Gpu, GPUNode, GPUNodeStatus
from stoker.spec.queue import QUEUES, Queue
from stoker.store.cache import WatchCache
from stoker.store.clock import ManualClock
from stoker.worker_sizes import WorkerSizes
from stoker_api.health_metrics import EVERY_S, MOST, StartableJobs, used_ratio
from stoker_api.scheduler_view import SchedulerView


class Bed:
    """A store, the caches, and no one who schedules."""

    def __init__(self, store: EmbeddedStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.jobs = WatchCache(store, JOBS, clock=clock)
        self.queues = WatchCache(store, QUEUES, clock=clock)
        self.nodes = WatchCache(store, NODES, clock=clock)
        feed = SchedulerFeed(self.jobs, self.queues, self.nodes)
        feed.start()
        self.scheduler = SchedulerView(feed, WorkerSizes(self.queues, self.nodes, None))
        self.startable = StartableJobs(self.scheduler, self.queues, clock)

    async def node(self, gpus: int) -> None:
        status = GPUNodeStatus(
            ready=True,
            cpu_milli=10_000_000,
            memory_bytes=2**50,
            gpus=tuple(Gpu(uuid=str(i), index=i, model="Sim", memory_bytes=2**34) for i in range(gpus)),
        )
        await self.store.create(NODES, GPUNode(metadata=ObjectMeta(name="n")))
        patch = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        written = await self.store.patch_status(NODES, Key("", "n"), patch, manager="agent")
        await self.nodes.at_least(written.metadata.resource_version)

    async def job(self, name: str, **spec: Any) -> TrainingJob:
        body = {"trainer": {"command": ["x"]}, "gpusPerWorker": 1, "cpu": "1", "memory": "1Gi", **spec}
        job = TrainingJob.model_validate({"metadata": {"name": name, "namespace": "p"}, "spec": body})
        made = await self.store.create(JOBS, job)
        await self.jobs.at_least(made.metadata.resource_version)
        return made

    async def status(self, job: TrainingJob, **patch: Any) -> None:
        written = await self.store.patch_status(JOBS, job.key, patch, manager="operator")
        await self.jobs.at_least(written.metadata.resource_version)

    async def look(self, after_s: float = 0.0) -> dict[str, float]:
        self.clock.advance(after_s)
        await self.startable.look()
        return self.startable.seconds()


@pytest.fixture
async def bed(tmp_path: Path) -> Any:
    clock = ManualClock()
    async with EmbeddedStore(tmp_path / "db", clock) as store:
        bed = Bed(store, clock)
        tasks = [asyncio.create_task(cache.run()) for cache in (bed.jobs, bed.queues, bed.nodes)]
        for cache in (bed.jobs, bed.queues, bed.nodes):
            await cache.synced()
        for name in ("fast", "slow"):
            made = await store.create(QUEUES, Queue(metadata=ObjectMeta(name=name)))
            await bed.queues.at_least(made.metadata.resource_version)
        yield bed
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_could_run_and_is_not_started_grows_old_in_its_queue(bed: Bed) -> None:
    assert bed.startable.seconds() == {}, "not known before the first look"
    await bed.node(gpus=2)
    assert await bed.look() == {"fast": 0, "slow": 0}
    first = await bed.job("first", queue="slow")
    assert await bed.look() == {"fast": 0, "slow": 0}
    await bed.job("second", queue="slow")
    await bed.job("third", queue="fast")
    assert await bed.look(30) == {"fast": 0, "slow": 30}, "two GPUs, one for each queue: second has to wait"
    assert await bed.look(30) == {"fast": 30, "slow": 60}
    await bed.status(first, phase="Starting", placement=[{"worker": 0, "node": "n"}], attempt=1)
    assert await bed.look(30) == {"fast": 60, "slow": 0}, "the other GPU is the third job's"
    await bed.status(first, phase="Succeeded", placement=[])
    assert await bed.look(30) == {"fast": 90, "slow": 0}
    assert await bed.look(30) == {"fast": 120, "slow": 30}


async def test_looking_starts_nothing_and_changes_no_answer(bed: Bed) -> None:
    await bed.node(gpus=1)
    one = await bed.job("one", queue="fast")
    two = await bed.job("two", queue="fast")
    for _ in range(3):
        await bed.look(30)
        assert (
            await bed.scheduler.explain(one.key, bed.clock.now())
        ).summary == "can start now, on n; its turn is next"
        assert (await bed.scheduler.explain(two.key, bed.clock.now())).blockers
        used = (await bed.scheduler.queue_usage(["fast"]))["fast"]
        assert (used.gpus, used.pending) == (0, 2)
        assert (await bed.scheduler.node_usage(["n"]))["n"].gpus == 0


async def test_a_job_that_comes_again_under_its_name_is_another(bed: Bed) -> None:
    await bed.node(gpus=1)
    job = await bed.job("one", queue="fast")
    await bed.look()
    assert (await bed.look(100))["fast"] == 100
    await bed.store.delete(JOBS, job.key)
    await bed.job("one", queue="fast")
    assert (await bed.look(10))["fast"] == 0


async def test_a_backlog_is_taken_in_pieces_and_few_starts_are_tried(bed: Bed) -> None:
    await bed.node(gpus=500)
    for number in range(450):
        await bed.job(f"j{number}", queue="fast")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await bed.scheduler.catch_up()
    beside.cancel()
    assert turns >= 2, "others had their turn in between"
    assert len(await bed.scheduler.startable(bed.clock.now(), MOST)) == MOST
    assert (await bed.scheduler.queue_usage(["fast"]))["fast"].pending == 450


async def test_what_changes_while_a_backlog_is_taken_in_is_not_lost(bed: Bed) -> None:
    await bed.node(gpus=500)
    made = [await bed.job(f"j{number}", queue="fast") for number in range(300)]
    gone, started = made[299], made[298]
    taking = asyncio.create_task(bed.scheduler.catch_up())
    await asyncio.sleep(0)  # the first piece is in, these two are not
    async with bed.scheduler._feed._lock:
        await bed.store.delete(JOBS, gone.key)
        await bed.status(started, phase="Running", placement=[{"worker": 0, "node": "n"}], attempt=1)
        await bed.jobs.wait_for(lambda cache: cache.get(gone.key) is None)
        assert not taking.done()
    await taking
    usage = (await bed.scheduler.queue_usage(["fast"]))["fast"]
    assert (usage.pending, usage.running, usage.gpus) == (298, 1, 1)
    with pytest.raises(KeyError):
        await bed.scheduler.explain(gone.key, bed.clock.now())


async def test_it_looks_on_its_own_and_goes_on_after_a_failure(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    await bed.node(gpus=1)
    await bed.job("one", queue="fast")
    running = asyncio.create_task(bed.startable.run())
    try:
        await bed.clock.wait_for_sleepers(1)
        monkeypatch.setattr(bed.scheduler, "startable", lambda *_: 1 / 0)
        bed.clock.advance(EVERY_S)
        await asyncio.sleep(0)
        await bed.clock.wait_for_sleepers(1)
        monkeypatch.undo()
        bed.clock.advance(EVERY_S)
        await asyncio.sleep(0)
        await bed.clock.wait_for_sleepers(1)
        assert bed.startable.seconds()["fast"] == 2 * EVERY_S
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_page_has_disks_watches_and_queues(served: Any) -> None:
    """In both modes."""
    pattern = re.compile(
        r'^stoker_(api_watch_stale_seconds\{kind="TrainingJob"\}|queue_startable_seconds\{.*\}) ', re.M
    )
    async with asyncio.timeout(20):
        while len(set(pattern.findall(served.services.metrics.text().decode()))) < 2:
            await asyncio.sleep(0.01)
    text = served.services.metrics.text().decode()
    stale = re.search(r'^stoker_api_watch_stale_seconds\{kind="Queue"\} (\S+)$', text, re.M)
    assert stale is not None and 0 <= float(stale[1]) < 60


def test_a_disk_is_as_full_as_df_says(tmp_path: Path) -> None:
    ratio = used_ratio(tmp_path)
    df = subprocess.run(["df", "--output=pcent", tmp_path], capture_output=True, text=True, check=True)
    assert abs(100 * ratio - float(df.stdout.split()[-1].rstrip("%"))) <= 1.5
    with pytest.raises(OSError):
        used_ratio(tmp_path / "none")
