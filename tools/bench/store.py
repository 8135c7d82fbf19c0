"""Prints what the store room costs on this machine. Nothing is asserted; the docstrings quote a run of it.

python -m tools.bench.store [folder for the file, default a temporary one]
"""

from __future__ import annotations

import asyncio
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import Page, WatchEvent, WatchType
from stoker.store.seam import Seam
from stoker.store.workqueue import WorkQueue
from tools.bench.record import record

WRITES = 4000


def job(number: int) -> TrainingJob:
    return TrainingJob.model_validate(
        {
            "metadata": {"name": f"job-{number:05}", "namespace": "bench", "labels": {"stoker.dev/queue": "default"}},
            "spec": {"trainer": {"command": ["python", "train.py"]}, "env": {"A": "1"}, "gpusPerWorker": 1},
        }
    )


async def measure(name: str, calls: Iterable[Callable[[], Awaitable[Any]]], callers: int) -> None:
    """Run the calls from so many callers at once and print rate, loop time per call and latency."""
    left, latencies = iter(calls), []

    async def caller() -> None:
        for call in left:
            began = time.perf_counter()
            await call()
            latencies.append(time.perf_counter() - began)

    wall, cpu = time.perf_counter(), time.thread_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    latencies.sort()
    count = len(latencies)
    record(
        what=name,
        callers=callers,
        per_s=count / wall,
        loop_us_each=cpu / count * 1e6,
        p50_ms=latencies[count // 2] * 1e3,
        p99_ms=latencies[count * 99 // 100] * 1e3,
    )
    print(
        f"{name:<38} {callers:>4} callers  {count / wall:>7.0f}/s  loop {cpu / count * 1e6:>6.1f} µs each"
        f"  p50 {latencies[count // 2] * 1e3:6.2f} ms  p99 {latencies[count * 99 // 100] * 1e3:6.2f} ms"
    )


def per_call(name: str, count: int, seconds: float) -> None:
    record(what=name, times=count, us_each=seconds / count * 1e6)
    print(f"{name:<38} {count:>7} times  {seconds / count * 1e6:>7.2f} µs each")


async def bench_store(path: Path) -> None:
    jobs = [job(number) for number in range(WRITES)]
    keys = [Key("bench", f"job-{number:05}") for number in range(WRITES)]

    def patch(store: EmbeddedStore, key: Key, text: str) -> Callable[[], Awaitable[Any]]:
        return lambda: store.patch_status(JOBS, key, {"phase": "Running", "message": text}, manager="operator")

    async with EmbeddedStore(path, SystemClock()) as store:
        cache = WatchCache(store, JOBS, clock=SystemClock(), indexes={"queue": lambda job: (job.spec.queue,)})
        running = asyncio.create_task(cache.run())
        await measure("create", (partial(store.create, JOBS, obj) for obj in jobs), 64)
        await measure("patch_status", (patch(store, key, "a") for key in keys), 64)
        await measure("patch_status, a few callers", (patch(store, key, "b") for key in keys), 8)
        await measure("patch_status, one caller", (patch(store, key, "c") for key in keys[:500]), 1)

        busy = asyncio.create_task(_keep_busy())
        await measure("patch_status, loop 80 % busy", (patch(store, key, "d") for key in keys), 64)
        busy.cancel()

        began = time.perf_counter()
        token, pages = None, 0
        while pages == 0 or token is not None:
            page = await store.list(JOBS, limit=500, continue_token=token)
            token, pages = page.continue_token, pages + 1
        print(f"list of {WRITES} in {pages} pages: {(time.perf_counter() - began) * 1e3:.1f} ms")
        await measure("delete", (partial(store.delete, JOBS, key) for key in keys[: WRITES // 2]), 64)
        running.cancel()
    size = await asyncio.to_thread(lambda: path.stat().st_size)
    began = time.perf_counter()
    async with EmbeddedStore(path, SystemClock()) as store:
        print(f"open with {WRITES // 2} jobs ({size / 2**20:.1f} MiB): {(time.perf_counter() - began) * 1e3:.0f} ms")


async def _keep_busy() -> None:
    while True:
        until = time.perf_counter() + 0.004
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0.001)


async def bench_parts() -> None:
    count = 100_000
    queue: WorkQueue[int] = WorkQueue(SystemClock())
    began = time.perf_counter()
    for number in range(count):
        queue.add(number)
        queue.done(await queue.get())
    per_call("work queue: add, get, done", count, time.perf_counter() - began)

    seam = Seam()
    began = time.perf_counter()
    for _ in range(count):
        with seam.crossing("store.create TrainingJob"):
            pass
    per_call("seam crossing", count, time.perf_counter() - began)

    jobs = [
        obj.model_copy(update={"metadata": obj.metadata.model_copy(update={"uid": str(n), "resource_version": str(n)})})
        for n, obj in enumerate(map(job, range(1, WRITES)), start=1)
    ]
    cache = WatchCache(
        Replay(jobs),  # type: ignore[arg-type] # the two calls a cache makes
        JOBS,
        clock=SystemClock(),
        indexes={"queue": lambda job: (job.spec.queue,)},
    )
    cache.subscribe(lambda change: None)
    cpu = time.thread_time()
    running = asyncio.create_task(cache.run())
    await cache.at_least(jobs[-1].metadata.resource_version)
    per_call("watch cache: one change", len(jobs), time.thread_time() - cpu)
    running.cancel()


class Replay:
    """A store that is empty and whose watch has all these objects added at once."""

    def __init__(self, jobs: list[TrainingJob]) -> None:
        self._jobs = jobs

    async def snapshot(self, *_args: Any, **_how: Any) -> Page[Any]:
        return Page((), "0")

    def watch(self, *_args: Any, **_how: Any) -> AddedAtOnce:
        return AddedAtOnce(self._jobs)


class AddedAtOnce:
    """The watch of `Burst`."""

    def __init__(self, jobs: list[TrainingJob]) -> None:
        self._jobs = iter(jobs)

    def __aiter__(self) -> AddedAtOnce:
        return self

    async def __anext__(self) -> WatchEvent[Any]:
        for obj in self._jobs:
            return WatchEvent(WatchType.ADDED, obj.metadata.resource_version, obj)
        return await asyncio.get_running_loop().create_future()

    def silent_s(self) -> float:
        return 0.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(sys.argv[1] if len(sys.argv) > 1 else folder)
        print(f"Python {platform.python_version()}, {platform.machine()}")
        asyncio.run(bench_store(root / "bench-store.db"))
        asyncio.run(bench_parts())


if __name__ == "__main__":
    main()
