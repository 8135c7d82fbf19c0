"""The operator's scheduler and the api's, fed by the same caches of a cluster that others use too: one truth."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

from stoker.controller.recorder import Recorder
from stoker.controller.scheduling import Scheduling
from stoker.local.store import KINDS, EmbeddedStore
from stoker.sched.occupancy import queue_usage
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.event import EVENTS
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, Gpu, GPUNode, GPUNodeStatus
from stoker.spec.other_pod import OTHER_PODS, OtherPod
from stoker.spec.pod import PODS
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.runtime import RUNTIMES, TrainingRuntime
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.worker_sizes import WorkerSizes
from stoker_api.scheduler_view import SchedulerView

SCRIPT = {"command": ["x"]}
THIEF = OtherPod.model_validate(
    {
        "metadata": {"name": "thief", "namespace": "t"},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]},
    }
)


async def test_both_schedulers_count_others_and_know_runtimes(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        store = await stack.enter_async_context(EmbeddedStore(tmp_path / "db", clock, kinds=(*KINDS, RUNTIMES)))
        foreign = await stack.enter_async_context(EmbeddedStore(tmp_path / "others", clock, kinds=(OTHER_PODS, EVENTS)))
        caches = SimpleNamespace(
            jobs=WatchCache(store, JOBS, clock=clock),
            queues=WatchCache(store, QUEUES, clock=clock),
            nodes=WatchCache(store, NODES, clock=clock),
            runtimes=WatchCache(store, RUNTIMES, clock=clock),
            pods=WatchCache(store, PODS, clock=clock),
            others=WatchCache(foreign, OTHER_PODS, clock=clock),
        )
        gpus = tuple(Gpu(uuid="", index=i, model="A100", memory_bytes=2**36) for i in range(4))
        status = GPUNodeStatus(ready=True, cpu_milli=64_000, memory_bytes=2**40, gpus=gpus)
        await store.create(NODES, GPUNode(metadata=ObjectMeta(name="n1")))
        patch = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        await store.patch_status(NODES, Key("", "n1"), patch, manager="agent")
        await store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
        await foreign.create(OTHER_PODS, THIEF)
        for name, runtime in (("big", None), ("fast", "fast")):
            spec = {"gpusPerWorker": 4 if name == "big" else 1, "runtime": runtime, "trainer": {"command": ["x"]}}
            spec |= {"cpu": "1", "memory": "1Gi"}
            await store.create(JOBS, TrainingJob(metadata=ObjectMeta(name=name, namespace="p"), spec=spec))  # type: ignore[arg-type]

        fed = {"others": caches.others, "runtimes": caches.runtimes, "pods": caches.pods}
        feed, other = (SchedulerFeed(caches.jobs, caches.queues, caches.nodes, **fed) for _ in range(2))
        loop = Scheduling(store, caches.jobs, feed, Recorder(store, clock), clock)
        scheduling = asyncio.create_task(loop.run())
        await asyncio.sleep(0)
        assert loop.passes == 0, "it waits for the caches: half of the truth would start the big one"
        tasks = [scheduling, *(asyncio.create_task(cache.run()) for cache in vars(caches).values())]
        try:
            async with asyncio.timeout(10):
                await asyncio.gather(*(cache.synced() for cache in vars(caches).values()))
                other.start()
                api = SchedulerView(other, WorkerSizes(caches.queues, caches.nodes, None))
                big = await api.explain(Key("p", "big"), clock.now())
                assert "n1: 2 of 4 GPUs are held by pods outside Stoker (t/thief)" in big.summary
                assert "no runtime 'fast'" in (await api.explain(Key("p", "fast"), clock.now())).summary
                assert (await api.node_usage(["n1"]))["n1"].gpus == 2

                await store.create(RUNTIMES, TrainingRuntime(metadata=ObjectMeta(name="fast")))
                while loop.starts < 1:
                    await asyncio.sleep(0.005)
                assert caches.jobs.get(Key("p", "big")).status.placement == ()
                await store.delete(JOBS, Key("p", "fast"))
                await foreign.delete(OTHER_PODS, THIEF.key)
                while loop.starts < 2:
                    await asyncio.sleep(0.005)
                while not caches.jobs.get(Key("p", "big")).status.placement:
                    await asyncio.sleep(0.005)
                assert (await api.node_usage(["n1"]))["n1"].gpus == 4
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)


async def test_the_state_stands_still_while_a_thread_works_on_it(tmp_path: Path) -> None:
    clock, go_on = SystemClock(), threading.Event()
    async with AsyncExitStack() as stack:
        stack.callback(go_on.set)
        store = await stack.enter_async_context(EmbeddedStore(tmp_path / "db", clock))
        jobs, queues, nodes = (WatchCache(store, kind, clock=clock) for kind in (JOBS, QUEUES, NODES))
        feed = SchedulerFeed(jobs, queues, nodes)
        feed.start()
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(cache.run()) for cache in (jobs, queues, nodes)]
            deciding = asyncio.create_task(feed.on_thread(lambda state: go_on.wait(10)))
            await asyncio.sleep(0)
            job = TrainingJob.model_validate({"metadata": {"name": "a", "namespace": "p"}, "spec": {"trainer": SCRIPT}})
            made = await store.create(JOBS, job)
            await jobs.at_least(made.metadata.resource_version)

            async def pending() -> int:
                async with feed.current() as state:
                    return queue_usage(state, "default").pending

            reading = asyncio.create_task(pending())
            deciding.cancel()
            done, _ = await asyncio.wait({reading, deciding}, timeout=0.05)
            assert not done, "a cancelled thread goes on, so the state is its own"
            assert queue_usage(feed.rules(), "default").pending == 0, "what a submit asks does not wait"
            go_on.set()
            assert await reading == 1
            for task in following:
                task.cancel()
