"""The operator as one thing to run: caches in, reconcile workers, the scheduling loop, the recorder.

Owns no rule and no store: `cli/up.py` (and on a cluster `controller/main.py`) hand it both. A failing job never stops
the others: what its reconcile raised is logged, counted, and tried again with back-off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from stoker.life.preemption import victims_of
from stoker.life.step import Settings
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.gpu_types import SHIPPED, GpuTypes
from stoker.spec.job import PLACED, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import DEFAULT_QUEUE
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.runtime import TrainingRuntime
from stoker.spec.worker_pod import concerned_jobs
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.index import Index
from stoker.store.port import AlreadyExists, Conflict, NotLeader, Store, StoreError
from stoker.store.workqueue import WorkQueue

from .admission import Admission
from .counters import Counters
from .jobs import JobReconciler, job_of
from .queues import QueueKeeper
from .recorder import Recorder
from .renderers import Renderer
from .scheduling import Scheduling

_LONG_S = 60.0
"""A scheduling loop that went on for so long was sound: the next fault is a new one."""

log = logging.getLogger(__name__)


class Operator:
    """Runs until cancelled."""

    def __init__(
        self,
        store: Store,
        *,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        nodes: WatchCache[GPUNode],
        pods: WatchCache[Pod],
        clock: Clock,
        settings: Settings,
        others: WatchCache[OtherPod] | None = None,
        runtimes: WatchCache[TrainingRuntime] | None = None,
        renderer: Renderer | None = None,
        workers: int = 16,
        counters: Counters | None = None,
        topology: Sequence[str] | None = None,
        gpu_types: GpuTypes = SHIPPED,
    ) -> None:
        """`counters`: where what is done is counted; the process', for an operator is one term.

        `workers`: jobs reconciled at once; what a store far away needs, and too many beside an api on one loop.

        `topology`, `gpu_types`: as of a SchedulerState.

        `others`, `runtimes`, `renderer`: on a cluster, where nodes are shared and pods are rendered in full after the
        administrator's runtimes. Absent: one machine, where the node agent does all that.
        """
        self._store = store
        self._workers = workers
        self._jobs = jobs
        self._nodes = nodes
        self._pods = pods
        self._others = others
        self._on_node_now: Index[Pod] = Index(lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ())
        self._stopped_for: Index[TrainingJob] = Index(victims_of)
        self._clock = clock
        self._counters = counters or Counters()
        self._queue: WorkQueue[Key] = WorkQueue(clock)
        self.recorder = Recorder(store, clock)
        self._admission = Admission(jobs, queues, nodes, runtimes)
        self._reconciler = JobReconciler(
            store,
            jobs,
            pods,
            nodes,
            self.recorder,
            clock,
            settings,
            self._admission,
            self._stopped_for.find,
            lambda job: self.scheduling.stopped_unrecorded(job),
            renderer,
            self._counters,
        )
        self.feed = SchedulerFeed(
            jobs,
            queues,
            nodes,
            others=others,
            runtimes=runtimes,
            pods=pods,
            topology=topology,
            gpu_types=gpu_types,
        )
        self.scheduling = Scheduling(store, jobs, self.feed, self.recorder, clock, counters=self._counters)
        self._queue_keeper = QueueKeeper(store, jobs, queues, clock, settings.usage_half_life_s, gpu_types)
        self.reconcile_errors = 0

    @property
    def queue_depth(self) -> int:
        """Jobs that wait to be reconciled."""
        return len(self._queue)

    @property
    def queue_delayed(self) -> int:
        """Jobs to be looked at again later."""
        return self._queue.delayed

    async def run(self) -> None:
        """Operate until cancelled, once. Expects the caches to be running and synced."""
        unsubscribe = [
            self._jobs.subscribe(self._on_job),
            self._pods.subscribe(self._on_pod),
            self._nodes.subscribe(self._on_node),
            *([self._others.subscribe(self._on_other)] if self._others is not None else []),
            *self._admission.subscribe(partial(self._queue.add, behind=True)),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.recorder.run())
                tasks.create_task(self._default_queue())
                tasks.create_task(self._queue_keeper.run())
                tasks.create_task(self._scheduling())
                for _ in range(self._workers):
                    tasks.create_task(self._work())
        finally:
            for stop in unsubscribe:
                stop()
            self.feed.stop()
            self._queue.shutdown()

    def _on_job(self, change: Change[TrainingJob]) -> None:
        """An attempt that is under way, and above all its pods, goes before jobs that wait and before the next to be
        stopped: one preemption after the other gets done, instead of all being begun."""
        self._stopped_for.replace(change.old, change.new)
        job = change.new or change.old
        if job is not None:
            self._queue.add(job.key, behind=job.status.phase not in PLACED)
        if change.new is not None:
            for key in victims_of(change.new):
                self._queue.add(key, behind=True)

    def _on_node(self, change: Change[GPUNode]) -> None:
        """A node that stops reporting, or goes, or comes back, or whose GPUs are sick or blamed, concerns the jobs that
        have workers there."""
        if _concerns_jobs(change.old) == _concerns_jobs(change.new):
            return
        for pod in self._on_node_now.find(change.key.name):
            for key in job_of(pod):
                self._queue.add(key)

    def _on_pod(self, change: Change[Pod]) -> None:
        self._on_node_now.replace(change.old, change.new)
        pod = change.new or change.old
        if pod is not None:
            for key in job_of(pod):
                self._queue.add(key)

    def _on_other(self, change: Change[OtherPod]) -> None:
        """A pod that goes may free the name of a worker's."""
        if change.new is None and change.old is not None:
            for key in concerned_jobs(change.old.metadata):
                self._queue.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            began = self._clock.monotonic()
            try:
                wake_at = await self._reconciler.reconcile(key)
            except (Conflict, NotLeader):
                self._queue.add_backoff(key)
            except Exception:
                self.reconcile_errors += 1
                log.exception("reconcile of %s failed; it will be tried again", key)
                self._queue.add_backoff(key)
            else:
                self._queue.forget(key)
                self._queue.drop_due(key)  # it has read all there is: only its newest answer counts
                if wake_at is not None:
                    self._queue.add_after(key, max(0.0, (wake_at - self._clock.now()).total_seconds()))
            finally:
                self._queue.done(key)
                self._counters.reconcile_seconds.observe(self._clock.monotonic() - began)

    async def _scheduling(self) -> None:
        """Keep the scheduling loop going: after a failure it starts over from the caches."""
        delay_s = 0.1
        while True:
            began = self._clock.monotonic()
            try:
                await self.scheduling.run()
            except Exception:
                if self._clock.monotonic() - began > _LONG_S:
                    delay_s = 0.1
                self.reconcile_errors += 1
                log.exception("a scheduling pass failed; starting over in %.1f s", delay_s)
            await self._clock.sleep(delay_s)
            delay_s = min(delay_s * 2, 10.0)

    async def _default_queue(self) -> None:
        """There is always a queue of this name; who deletes it gets it back with the next operator."""
        delay_s = 1.0
        while True:
            try:
                await self._store.create(QUEUES, Queue(metadata=ObjectMeta(name=DEFAULT_QUEUE)))
                return
            except AlreadyExists:
                return
            except StoreError as error:
                log.warning("can't create queue %s, trying again in %.0f s: %s", DEFAULT_QUEUE, delay_s, error)
            await self._clock.sleep(delay_s)
            delay_s = min(delay_s * 2, 60.0)


def _concerns_jobs(node: GPUNode | None) -> object:
    """What of a node moves or ends attempts there."""
    return None if node is None else (node.status.lost_since, node.status.sick, node.status.blamed)
