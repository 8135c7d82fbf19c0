"""The operator's scheduler and the api's, fed by the same caches of a cluster that others use too: one truth."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

from stoker.controller.recorder import Recorder
from stoker.controller.scheduling import Scheduling
from stoker.local.store import KINDS, EmbeddedStore
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
from stoker_api.scheduler_feed import SchedulerFeed

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
            await store.create(JOBS, TrainingJob(metadata=ObjectMeta(name=name, namespace="p"), spec=spec))  # type: ignore[arg-type]

        fed = {"others": caches.others, "runtimes": caches.runtimes, "pods": caches.pods}
        loop = Scheduling(store, caches.jobs, caches.queues, caches.nodes, Recorder(store, clock), clock, **fed)
        scheduling = asyncio.create_task(loop.run())
        await asyncio.sleep(0)
        assert loop.passes == 0, "it waits for the caches: half of the truth would start the big one"
        tasks = [scheduling, *(asyncio.create_task(cache.run()) for cache in vars(caches).values())]
        try:
            async with asyncio.timeout(10):
                await asyncio.gather(*(cache.synced() for cache in vars(caches).values()))
                feed = SchedulerFeed(caches.jobs, caches.queues, caches.nodes, **fed)
                big = feed.explain(Key("p", "big"), clock.now())
                assert "n1: 2 of 4 GPUs are held by pods outside Stoker (t/thief)" in big.summary
                assert "no runtime 'fast'" in feed.explain(Key("p", "fast"), clock.now()).summary
                assert feed.node_usage("n1").gpus == 2

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
                assert feed.node_usage("n1").gpus == 4
                feed.close()
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
