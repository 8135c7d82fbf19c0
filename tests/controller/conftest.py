"""A whole operator on the embedded store, beside a small kubelet that does with pods what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.controller.counters import Counters
from stoker.controller.job_rows import JobRows
from stoker.controller.jobs import PODS_BY_JOB, job_of
from stoker.controller.metrics import OperatorMetrics, Reading, reading
from stoker.life.step import Settings
from stoker.local.store import KINDS, EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, Gpu, GPUNode, GPUNodeStatus
from stoker.spec.pod import NEVER_STARTED, PODS, Pod, PodPhase
from stoker.spec.runtime import RUNTIMES
from stoker.spec.worker import ExitRecord
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import Conflict, NotFound
from stoker.store.seam import Seam
from tests.support.operator_world import OperatorWorld

Script = Callable[[Pod], int | None]
"""What a pod's process does: its exit code, or None to run until it is stopped."""


class Kubelet:
    """Runs pods as a kubelet would: Running, then ended by its script; stopped, they end with 75."""

    def __init__(self, store: EmbeddedStore, pods: WatchCache[Pod]) -> None:
        self.store, self.pods = store, pods
        self.script: Script = lambda _pod: 0
        self.starts = self.stops = True
        self.held_gpus = 0
        self.most_gpus = 0
        self.ran: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod is None or pod.ended:
            return
        if pod.uid not in self._tasks and self.starts:
            self._tasks[pod.uid] = asyncio.create_task(self._run(pod))
        elif pod.uid not in self._tasks and pod.metadata.deletion_timestamp is not None:
            self._tasks[pod.uid] = asyncio.create_task(self._never(pod))

    async def _never(self, pod: Pod) -> None:
        await self._status(pod, {"phase": PodPhase.FAILED, "reason": NEVER_STARTED})

    async def _run(self, pod: Pod) -> None:
        gpus = int(pod.spec.containers[0].resources.limits.get("nvidia.com/gpu", "0"))
        self.held_gpus += gpus
        self.most_gpus = max(self.most_gpus, self.held_gpus)
        self.ran.append(pod.metadata.name)
        await self._status(pod, {"phase": PodPhase.RUNNING, "startTime": datetime.now(UTC).isoformat()})
        code = self.script(pod)
        asked = False
        while code is None:
            await asyncio.sleep(0.005)
            there = self.pods.get(pod.key)
            if self.stops and (there is None or there.metadata.deletion_timestamp is not None):
                code, asked = 75, True
        self.held_gpus -= gpus
        await self.end(pod, code, asked=asked)

    async def end(self, pod: Pod, code: int, *, asked: bool = False) -> None:
        at = datetime.now(UTC).timestamp()
        record = ExitRecord(
            pod_uid=pod.uid,
            started_at=at - 1,
            finished_at=at,
            stop_requested=asked,
            exit_code=code,
            failed_at=at if code else None,
        )
        terminated = {"exitCode": code, "message": record.model_dump_json(by_alias=True)}
        await self._status(
            pod,
            {
                "phase": PodPhase.FAILED if code else PodPhase.SUCCEEDED,
                "containerStatuses": [{"name": "worker", "state": {"terminated": terminated}}],
            },
        )

    async def _status(self, pod: Pod, patch: dict[str, Any]) -> None:
        with suppress(NotFound):
            await self.store.patch_status(PODS, pod.key, patch, manager="agent")

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class World(OperatorWorld):
    """On the embedded store, with a kubelet and one operator's counters and metrics."""

    def __init__(self, store: EmbeddedStore, settings: Settings) -> None:
        clock = SystemClock()
        super().__init__(store, "p", settings, WatchCache(store, PODS, clock=clock, indexes={PODS_BY_JOB: job_of}))
        self.store = store
        self.kubelet = Kubelet(store, self.pods)
        self.pods.subscribe(self.kubelet.watch)
        self.counters = Counters()
        self.options = {"counters": self.counters}
        self.rows = JobRows(self.jobs, self.pods, self.queues, clock)
        self.metrics = OperatorMetrics(self._read, self.counters, self.rows)
        self.leads = True

    def _read(self) -> Reading:
        caches = {"TrainingJob": self.jobs, "Queue": self.queues, "Pod": self.pods}
        return reading(self.operator, caches, leader=self.leads)

    async def node(self, gpus: int, name: str = "n1", cpu_milli: int = 64_000, model: str = "Sim") -> None:
        status = GPUNodeStatus(
            ready=True,
            cpu_milli=cpu_milli,
            memory_bytes=2**40,
            gpus=tuple(Gpu(uuid=f"{name}-{i}", index=i, model=model, memory_bytes=2**34) for i in range(gpus)),
        )
        await self.store.create(NODES, GPUNode(metadata=ObjectMeta(name=name)))
        patch = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        await self.store.patch_status(NODES, Key("", name), patch, manager="agent")

    async def submit(self, name: str, **spec: Any) -> TrainingJob:
        """One that says what its workers get (what happens to others: `test_worker_sizes`)."""
        given = {"trainer": {"command": ["x"]}, "cpu": "1", "memory": "1Gi"}
        job = TrainingJob(metadata=ObjectMeta(name=name, namespace="p"), spec=given | spec)  # type: ignore[arg-type]
        return await self.store.create(JOBS, job)

    async def change(self, name: str, **spec: Any) -> None:
        """Change a job's spec as the api would: read again where the operator wrote in between."""
        while True:
            job = await self.store.get(JOBS, Key("p", name))
            new = job.model_copy(update={"spec": job.spec.model_copy(update=spec)})
            with suppress(Conflict):
                await self.store.update(JOBS, new)
                return


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Its parameter, if any: for how many seconds a job avoids a node."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            EmbeddedStore(tmp_path / "db", SystemClock(), Seam(), kinds=(*KINDS, RUNTIMES))
        )
        world = World(store, Settings(start_timeout_s=30, blame_s=getattr(request, "param", 0)))
        async with world.following():
            world.start()
            try:
                yield world
            finally:
                await world.stop()
                await world.kubelet.close()
