"""Feeds the pure scheduler from the caches, runs it off the event loop, and writes what it decides.

One pass at a time: take over what changed, decide, write every start (attempt and placement into status, fenced by
resourceVersion). A changed object wakes the next pass at once; nothing polls. Called by `operator.Operator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from stoker.life.admission import unaccepted
from stoker.life.conditions import scheduled
from stoker.life.step import Note
from stoker.sched.decide import Start, decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import JOBS, Phase, ReservationCost, TrainingJob
from stoker.spec.meta import Key, Resource
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.outcome import Intent
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.reasons import Code
from stoker.spec.runtime import TrainingRuntime
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.port import Store, StoreError
from stoker.why.reasons import Reasons

from .counters import Counters
from .jobs import SIGHT_S
from .recorder import Recorder
from .status_writes import Written, try_write_status
from .waiting_reasons import WaitingJobs

T = TypeVar("T", bound=Resource)

_WRITES_AT_ONCE = 256
_PAGE = 500


class Scheduling:
    """The loop around `sched.decide`."""

    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        nodes: WatchCache[GPUNode],
        recorder: Recorder,
        clock: Clock,
        *,
        others: WatchCache[OtherPod] | None = None,
        runtimes: WatchCache[TrainingRuntime] | None = None,
        pods: WatchCache[Pod] | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`others`, `runtimes`, `pods`: on a cluster, where nodes are shared and pods may outlive their jobs. On one
        machine the node agent's leases see to that."""
        self._store = store
        self._jobs = jobs
        self._queues = queues
        self._nodes = nodes
        self._others = others
        self._runtimes = runtimes
        self._pods = pods
        self._recorder = recorder
        self._clock = clock
        self._counters = counters or Counters()
        self._state = SchedulerState()
        self._waiting = self._new_waiting()
        self._changes: list[Callable[[], None]] = []
        self._woken = asyncio.Event()
        self.passes = 0
        self.starts = 0

    async def run(self) -> None:
        """Schedule until cancelled. Starts from the caches alone: what an earlier run had assumed is forgotten."""
        state = self._state = SchedulerState()
        self._waiting = self._new_waiting()
        self._changes = []
        await self._synced()
        unsubscribe = list(self._subscribe(state))
        try:
            while True:
                wake_at = await self._pass()
                await self._wait(wake_at)
        finally:
            for stop in unsubscribe:
                stop()

    def _new_waiting(self) -> WaitingJobs:
        return WaitingJobs(self._store, self._jobs, self._recorder, self._clock, self._counters)

    async def _synced(self) -> None:
        """Half of the truth would start jobs in room that is held.

        The caches were in order once; here they reach what stands in the store now. A scheduler that ran a moment ago,
        in this process or another, may have placed a job that no watch has shown yet.
        """
        caches = (self._jobs, self._queues, self._nodes, self._others, self._runtimes, self._pods)
        for cache in caches:
            if cache is not None:
                await cache.synced()
        newest, token = 0, None
        while True:
            page = await self._store.list(JOBS, limit=_PAGE, continue_token=token)
            newest = max([newest, *(int(job.metadata.resource_version) for job in page.items)])
            token = page.continue_token
            if token is None:
                break
        await self._jobs.at_least(str(newest), timeout_s=SIGHT_S)

    def _subscribe(self, state: SchedulerState) -> Iterator[Callable[[], None]]:
        """Nodes and runtimes first: jobs are then filed once."""
        yield self._nodes.subscribe(self._feed(state.observe_node, lambda node: state.forget_node(node.metadata.name)))
        if self._runtimes is not None:
            yield self._runtimes.subscribe(
                self._feed(state.observe_runtime, lambda runtime: state.forget_runtime(runtime.metadata.name))
            )
        yield self._queues.subscribe(
            self._feed(state.observe_queue, lambda queue: state.forget_queue(queue.metadata.name))
        )
        yield self._jobs.subscribe(self._feed(self._observe_job, self._forget_job))
        if self._pods is not None:
            yield self._pods.subscribe(self._feed(state.observe_pod, lambda pod: state.forget_pod(pod.key)))
        if self._others is not None:
            yield self._others.subscribe(self._feed(state.observe_other, lambda pod: state.forget_other(pod.key)))

    def _feed(self, observe: Callable[[T], None], forget: Callable[[T], None]) -> Callable[[Change[T]], None]:
        """Changes wait for the next pass: the state must not move while it is being decided on."""

        def take(change: Change[T]) -> None:
            if change.new is not None:
                self._changes.append(lambda obj=change.new: observe(obj))  # type: ignore[misc]
            elif change.old is not None:
                self._changes.append(lambda obj=change.old: forget(obj))  # type: ignore[misc]
            self._woken.set()

        return take

    def _observe_job(self, job: TrainingJob) -> None:
        self._state.observe_job(job)
        self._waiting.observe(job)

    def _forget_job(self, job: TrainingJob) -> None:
        self._state.forget_job(job.key)
        self._waiting.forget(job.key)

    async def _pass(self) -> datetime | None:
        self._woken.clear()
        began = self._clock.monotonic()
        changes, self._changes = self._changes, []
        for apply in changes:
            apply()
        now = self._clock.now()
        decisions = await asyncio.to_thread(decide, self._state, now)
        self.passes += 1
        for begin in range(0, len(decisions.starts), _WRITES_AT_ONCE):
            batch = decisions.starts[begin : begin + _WRITES_AT_ONCE]
            await asyncio.gather(*(self._start(start) for start in batch))
        await asyncio.gather(*(self._write_reservation(*one) for one in decisions.reservations))
        await self._waiting.write(Reasons(self._state, now), now)
        self._counters.pass_seconds.observe(self._clock.monotonic() - began)
        return min((at for at in (decisions.wake_at, self._waiting.next_at()) if at is not None), default=None)

    async def _wait(self, wake_at: datetime | None) -> None:
        if wake_at is None:
            await self._woken.wait()
            return
        delay_s = max(0.0, (wake_at - self._clock.now()).total_seconds())
        timer = asyncio.ensure_future(self._clock.sleep(delay_s))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({timer, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            woken.cancel()

    async def _start(self, start: Start) -> None:
        """The attempt and its placement into status: from here on the job holds its place."""
        job = self._jobs.get(start.key)
        if job is None or job.uid != start.uid or job.metadata.resource_version != start.resource_version:
            self._drop(start)
            return
        nodes = sorted({placed.node for placed in start.placement})
        where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
        new = job.status.model_copy(
            update={
                "phase": Phase.STARTING,
                "reason": Code.PLACED,
                "message": f"placed on {where}",
                "attempt": job.status.attempt + 1,
                "intent": Intent.NONE,
                "placement": start.placement,
                "placed_at": self._clock.now(),
                "reservation": None,
                "queued_at": job.status.queued_at or job.metadata.creation_timestamp,
                "not_before": None,
                "observed_generation": job.metadata.generation,
                "observed_retry_generation": job.spec.retry_generation,
            }
        )
        new = scheduled(unaccepted(new), self._clock.now(), job.metadata.generation)
        try:
            written = await try_write_status(self._store, job, new)
        except StoreError:
            self._drop(start)
            raise
        if written is Written.CHANGED:
            self._drop(start)  # it was cancelled, say; the next pass sees the job as it is
        elif written is Written.REFUSED:
            self._leave(job)
        else:
            self.starts += 1
            self._counters.placed()
            self._recorder.record(job, Note("Placed", f"attempt {new.attempt}: placed on {where}"))

    def _leave(self, job: TrainingJob) -> None:
        """Schedule without this job until it changes: what is refused now would be refused in every pass."""
        self._changes.append(lambda: self._forget_job(job))
        self._woken.set()

    def _drop(self, start: Start) -> None:
        self._changes.append(lambda: self._state.drop_assumption(start.key))
        self._woken.set()

    async def _write_reservation(self, key: Key, cost: ReservationCost) -> None:
        """What keeping nodes for the job has cost, so that it is not forgotten and `stoker why` can say it."""
        job = self._jobs.get(key)
        if job is None or job.status.phase is not Phase.QUEUED:
            return
        new = job.status.model_copy(update={"reservation": cost})
        written = await try_write_status(self._store, job, new)
        if written is Written.DONE:
            self._state.wrote(key, cost)
        elif written is Written.REFUSED:
            self._leave(job)  # where it only changed the next pass tries again
