"""One process's SchedulerState, fed from its watch caches: the operator decides on it, the api reads it.

Owns when the state changes. Changes wait, the newest per object, until the state is used, so a process that seldom
uses it pays little for them; and the state never changes while a thread works on it. `stoker up` has one feed for
operator and api; on a cluster each of the two processes has its own. Never writes to a store.
Called by `controller.scheduling` and `stoker_api.scheduler_view`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from stoker.sched.state import SchedulerState
from stoker.spec.gpu_types import SHIPPED, GpuTypes
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key, Resource
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime
from stoker.store.cache import Change, WatchCache

T = TypeVar("T", bound=Resource)
R = TypeVar("R")

_PIECE = 200
_SMALL_PIECE = 25
"""About a millisecond."""


class SchedulerFeed:
    """Follows the caches from `start` to `stop`. All methods are called on the event loop."""

    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        nodes: WatchCache[GPUNode],
        *,
        others: WatchCache[OtherPod] | None = None,
        runtimes: WatchCache[TrainingRuntime] | None = None,
        pods: WatchCache[Pod] | None = None,
        topology: Sequence[str] | None = None,
        gpu_types: GpuTypes = SHIPPED,
    ) -> None:
        """`others`, `runtimes`: on a cluster, where nodes are shared. `pods`: ours, which outlive a deleted job; absent
        where nothing is placed. `topology`, `gpu_types`: as of a SchedulerState."""
        self._jobs, self._queues, self._nodes = jobs, queues, nodes
        self._others, self._runtimes, self._pods = others, runtimes, pods
        self._lock = asyncio.Lock()
        self._rules: list[_Changes[Any]] = []
        self._changes: list[_Changes[Any]] = []
        self._new_state = partial(SchedulerState, topology, gpu_types)
        self.state = self._new_state()

    def start(
        self,
        changed: Callable[[], None] = lambda: None,
        job_observed: Callable[[TrainingJob], None] = lambda job: None,
        job_forgotten: Callable[[Key], None] = lambda key: None,
    ) -> None:
        """Follow the caches with an empty state, whatever an earlier one had assumed.

        `changed`: something waits to be taken in. `job_observed`, `job_forgotten`: the state has taken that in.
        """
        self.stop()
        state = self.state = self._new_state()

        def observe_job(job: TrainingJob) -> None:
            state.observe_job(job)
            job_observed(job)

        def forget_job(key: Key) -> None:
            state.forget_job(key)
            job_forgotten(key)

        def follow(
            cache: WatchCache[T] | None, observe: Callable[[T], None], forget: Callable[[Key], None]
        ) -> list[_Changes[T]]:
            return [] if cache is None else [_Changes(cache, observe, forget, changed)]

        # In the order in which they are taken in: with nodes, runtimes and queues known, a job is filed once; and what
        # pods a job has that is deleted is known as it goes.
        self._rules = [
            *follow(self._nodes, state.observe_node, lambda key: state.forget_node(key.name)),
            *follow(self._runtimes, state.observe_runtime, lambda key: state.forget_runtime(key.name)),
            *follow(self._queues, state.observe_queue, lambda key: state.forget_queue(key.name)),
        ]
        self._changes = [
            *self._rules,
            *follow(self._pods, state.observe_pod, state.forget_pod),
            *follow(self._jobs, observe_job, forget_job),
            *follow(self._others, state.observe_other, state.forget_other),
        ]

    async def synced(self) -> None:
        for cache in (self._jobs, self._queues, self._nodes, self._others, self._runtimes, self._pods):
            if cache is not None:
                await cache.synced()

    def stop(self) -> None:
        for changes in self._changes:
            changes.unsubscribe()

    @asynccontextmanager
    async def current(self) -> AsyncIterator[SchedulerState]:
        """The state with every change in it, while no thread works on it. Not to be kept, no await inside.

        Cost: waits for what a thread does, a pass of the scheduler at most.
        """
        async with self._lock:
            await self._take_in_all()
            yield self.state

    def rules(self) -> SchedulerState:
        """The state for reading nodes' sizes, queues' limits and runtimes' rules only, which no thread changes.

        Waits for nothing: what changed while a thread works comes with the next call after it.
        """
        if not self._lock.locked():
            for changes in self._rules:
                changes.take_in(len(changes))
        return self.state

    async def on_thread(self, work: Callable[[SchedulerState], R], *, take_in: bool = True) -> R:
        """Work on the state off the event loop. `take_in`: with every change in it; else as the last use left it."""
        async with self._lock:
            if take_in:
                await self._take_in_all()
            working = asyncio.ensure_future(asyncio.to_thread(work, self.state))
            try:
                await asyncio.wait({working})
            finally:
                if not working.done():  # cancelled: the thread goes on, and the state is its own until it ends
                    await asyncio.wait({working})
            return working.result()

    async def catch_up(self) -> None:
        """Take in what has changed, a millisecond at a time and no more than half of the time: 100,000 jobs take
        seconds, and what others do on the event loop takes many turns of it."""
        for changes in self._changes:
            behind = len(changes)
            while behind > 0:
                async with self._lock:
                    begun_s = time.perf_counter()
                    changes.take_in(_SMALL_PIECE)
                behind -= _SMALL_PIECE
                await asyncio.sleep(time.perf_counter() - begun_s)

    async def _take_in_all(self) -> None:
        """What has changed by now, in pieces, so that the event loop goes on. The lock must be held."""
        for changes in self._changes:
            behind = len(changes)
            while behind > _PIECE:
                changes.take_in(_PIECE)
                behind -= _PIECE
                await asyncio.sleep(0)
            changes.take_in(behind)


class _Changes(Generic[T]):
    """What has changed in one cache and is not in the state yet."""

    def __init__(
        self,
        cache: WatchCache[T],
        observe: Callable[[T], None],
        forget: Callable[[Key], None],
        changed: Callable[[], None],
    ) -> None:
        self._observe, self._forget, self._changed = observe, forget, changed
        self._newest: OrderedDict[Key, T | None] = OrderedDict()
        self.unsubscribe = cache.subscribe(self._on_change)

    def __len__(self) -> int:
        return len(self._newest)

    def take_in(self, most: int) -> None:
        for _ in range(min(most, len(self._newest))):
            key, new = self._newest.popitem(last=False)
            if new is None:
                self._forget(key)
            else:
                self._observe(new)

    def _on_change(self, change: Change[T]) -> None:
        self._newest[change.key] = change.new
        self._changed()
