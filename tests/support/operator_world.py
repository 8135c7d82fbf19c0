"""An operator over any store, beside its caches: taken away and put back, it knows what the store knows.

Called by tests/controller (embedded store) and tests/kube (a real API server), which add nodes and kubelets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from stoker.controller.operator import Operator
from stoker.life.step import Settings
from stoker.node_health import NodeCaches
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.spec.queue import QUEUES
from stoker.spec.runtime import RUNTIMES
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock


class OperatorWorld:
    """`own`: the store as the operator uses it. `options`: more of the operator's arguments."""

    def __init__(self, own: Any, project: str, settings: Settings, pods: WatchCache[Pod]) -> None:
        self.own, self.project, self.settings, self.pods = own, project, settings, pods
        clock = SystemClock()
        self.jobs = WatchCache(own, JOBS, clock=clock)
        self.queues = WatchCache(own, QUEUES, clock=clock)
        self.known = NodeCaches(own, clock)
        self.nodes = self.known.nodes
        self.runtimes = WatchCache(own, RUNTIMES, clock=clock)
        self.caches: list[WatchCache[Any]] = [self.jobs, self.queues, self.nodes, self.runtimes, pods]
        self.options: dict[str, Any] = {}
        self.operator: Operator
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Put an operator there that knows nothing but the store."""
        self.operator = Operator(
            self.own,
            jobs=self.jobs,
            queues=self.queues,
            nodes=self.nodes,
            pods=self.pods,
            clock=SystemClock(),
            settings=self.settings,
            runtimes=self.runtimes,
            **self.options,
        )
        self._running = asyncio.create_task(self.operator.run())

    async def stop(self) -> None:
        """Take the operator away wherever it is."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
            self._running = None

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """The caches run and are synced; at the end the operator goes first."""
        tasks = [asyncio.create_task(cache.run()) for cache in self.caches]
        try:
            for cache in self.caches:
                await cache.synced()
            yield
        finally:
            await self.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def job(self, name: str) -> TrainingJob:
        job = self.jobs.get(Key(self.project, name))
        assert job is not None
        return job

    async def phase(self, name: str, *phases: str, timeout_s: float = 20.0) -> TrainingJob:
        key = Key(self.project, name)

        def reached() -> bool:
            job = self.jobs.get(key)
            return job is not None and job.status.phase in phases

        await self.until(reached, lambda: f"{name} to be {phases}: {self.jobs.get(key)}", timeout_s)
        return self.job(name)

    async def until(
        self,
        check: Callable[[], object],
        what: str | Callable[[], str],
        timeout_s: float = 20.0,
        every_s: float = 0.005,
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not check():
                    await asyncio.sleep(every_s)
        except TimeoutError:
            raise AssertionError(what if isinstance(what, str) else what()) from None
