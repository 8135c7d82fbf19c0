"""What `/metrics` of operator and api cost with 100,000 jobs that wait. Run: python -m tools.bench.metrics [--jobs N]

Owns nothing but the measurement. A cluster whose 10,000 GPUs are all taken by 2,500 jobs (5,000 pods), 100,000 jobs in
front of it in 20 queues. Prints the scrape of the operator (in its thread) with the longest time in which its event
loop stood still beside it, the cost of a change, and for the api the check of the scheduler: the first look, and one
after a change; and how long the loop stood still while the backlog was taken in.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from stoker.controller.counters import Counters
from stoker.controller.job_rows import JobRows
from stoker.controller.metrics import OperatorMetrics, reading
from stoker.controller.render import owned_by
from stoker.process import keep_loaded
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import JOBS, Phase, Placed, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import Kind, ObjectMeta
from stoker.spec.names import ANNOTATION_SUBMITTER
from stoker.spec.node import NODES, Gpu, GPUNode, GPUNodeStatus
from stoker.spec.pod import PODS, Container, Pod, PodPhase, PodSpec, PodStatus
from stoker.spec.queue import QUEUES, Queue
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.worker_sizes import WorkerSizes
from stoker_api.health_metrics import MOST
from stoker_api.scheduler_view import SchedulerView
from tools.bench.record import record

T0 = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
QUEUES_OF, RUNNING, WORKERS, NODE_COUNT = 20, 2500, 2, 1250
SPECS = [  # few requests, as in real life
    TrainingJobSpec(trainer=Trainer(command=("x",)), workers=workers, gpus_per_worker=gpus)
    for workers, gpus in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (16, 8))
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="that wait")
    count = parser.parse_args().jobs
    print(f"Python {platform.python_version()}, {platform.machine()}; {count} jobs wait, {RUNNING} run")
    asyncio.run(bench(count))


async def bench(count: int) -> None:
    clock = SystemClock()
    jobs, pods, queues, nodes = (_cache(kind) for kind in (JOBS, PODS, QUEUES, NODES))
    rows, feed = JobRows(jobs, pods, queues, clock), SchedulerFeed(jobs, queues, nodes)
    feed.start()
    scheduler = SchedulerView(feed, WorkerSizes(queues, nodes, None))
    for number in range(QUEUES_OF):
        _put(queues, Queue(metadata=ObjectMeta(name=f"q{number}", uid=f"q{number}")))
    for number in range(NODE_COUNT):
        _put(nodes, _node(number))
    for job in _running():
        _put(jobs, job)
        for worker in range(WORKERS):
            _put(pods, _pod(job, worker))
    pending = [_job(number) for number in range(count)]
    began = time.perf_counter()
    for job in pending:
        _put(jobs, job)
    found: dict[str, object] = {"jobs": count, "change_us": (time.perf_counter() - began) / count * 1e6}
    print(f"a change of a job, all subscribers: {found['change_us']:.1f} us")
    keep_loaded()  # as the processes do

    registry = CollectorRegistry()
    caches = {"TrainingJob": jobs, "Pod": pods, "Queue": queues}
    registry.register(OperatorMetrics(lambda: reading(None, caches, leader=True), Counters(), rows))
    page = b""
    for _ in range(3):
        took, still, page = await _beside(asyncio.to_thread(generate_latest, registry))
        print(f"operator's scrape: {took * 1e3:.0f} ms, loop stood still {still * 1e3:.1f} ms, {len(page) >> 10} KiB")
    found |= {"scrape_ms": took * 1e3, "loop_still_ms": still * 1e3, "page_kib": len(page) >> 10}
    print(f"  series: {page.count(b'stoker_')}")

    took, still, _ = await _beside(feed.catch_up(), time.thread_time)
    print(f"api takes in the backlog: {took:.1f} s, loop held for {still * 1e3:.1f} ms of CPU at most")
    found |= {"backlog_s": took, "backlog_loop_cpu_ms": still * 1e3}
    for what in ("first look", "nothing changed"):
        found[f"check_{what.replace(' ', '_')}_ms"] = took = await _timed(scheduler) * 1e3
        print(f"api's check, {what}: {took:.1f} ms")
    ended = next(_running())
    status = ended.status.model_copy(update={"phase": Phase.SUCCEEDED, "placement": ()})
    _put(jobs, ended.model_copy(update={"status": status}))
    found["check_job_ended_ms"] = took = await _timed(scheduler) * 1e3
    record(**found)
    print(f"api's check, a job has ended and none starts the next: {took:.1f} ms")
    print(f"api's check, again: {await _timed(scheduler) * 1e3:.1f} ms")
    assert await scheduler.startable(T0, MOST), "the freed GPUs could be used"


async def _timed(scheduler: SchedulerView) -> float:
    began = time.perf_counter()
    await scheduler.startable(T0, MOST)
    return time.perf_counter() - began


async def _beside(work: Awaitable[Any], clock: Callable[[], float] = time.perf_counter) -> tuple[float, float, Any]:
    """Seconds that it took, the longest in which the loop did not turn (by `clock`), and what came of it."""
    longest, last, running = 0.0, clock(), True

    async def turn() -> None:
        nonlocal longest, last
        while running:
            await asyncio.sleep(0.001)
            now = clock()
            longest, last = max(longest, now - last), now

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0.01)
    longest, last, began = 0.0, clock(), time.perf_counter()
    made = await work
    took = time.perf_counter() - began
    await asyncio.sleep(0.002)
    running = False
    await turning
    return took, longest, made


def _cache(kind: Kind[Any]) -> WatchCache[Any]:
    store: Any = None  # no one runs it: objects are put in as its watch would
    return WatchCache(store, kind, clock=SystemClock())


def _put(cache: WatchCache[Any], obj: Any) -> None:
    cache._apply(cache.get(obj.key), obj)


def _job(number: int) -> TrainingJob:
    spec = SPECS[number % len(SPECS)].model_copy(update={"queue": f"q{number % QUEUES_OF}"})
    return TrainingJob(metadata=_meta(f"wait-{number}"), spec=spec)


def _running() -> Iterator[TrainingJob]:
    spec = TrainingJobSpec(trainer=Trainer(command=("x",)), workers=WORKERS, gpus_per_worker=2)
    for number in range(RUNNING):
        where = [(number * WORKERS + worker) // 4 for worker in range(WORKERS)]
        placement = tuple(Placed(worker=w, node=f"node-{at:05}") for w, at in enumerate(where))
        status = TrainingJobStatus(phase=Phase.RUNNING, attempt=1, placement=placement, started_at=T0)
        of = spec.model_copy(update={"queue": f"q{number % QUEUES_OF}"})
        yield TrainingJob(metadata=_meta(f"run-{number}"), spec=of, status=status)


def _meta(name: str) -> ObjectMeta:
    return ObjectMeta(
        name=name,
        namespace="project",
        uid=f"uid-{name}",
        resource_version="1",
        creation_timestamp=T0,
        annotations={ANNOTATION_SUBMITTER: "someone@example.org"},
    )


def _pod(job: TrainingJob, worker: int) -> Pod:
    name = f"{job.metadata.name}-1-{worker}"
    return Pod(
        metadata=ObjectMeta(name=name, namespace="project", uid=f"uid-{name}", owner_references=(owned_by(job),)),
        spec=PodSpec(node_name=job.status.placement[worker].node, containers=(Container(),)),
        status=PodStatus(phase=PodPhase.RUNNING),
    )


def _node(number: int) -> GPUNode:
    gpus = tuple(Gpu(uuid=f"{number}-{g}", index=g, model="H100", memory_bytes=80 << 30) for g in range(8))
    status = GPUNodeStatus(ready=True, cpu_milli=1 << 30, memory_bytes=1 << 50, gpus=gpus)
    return GPUNode(metadata=ObjectMeta(name=f"node-{number:05}", uid=f"node-{number}"), status=status)


if __name__ == "__main__":
    main()
