"""The scheduler's state as the api reads it, fed from the watch caches.

Changes wait, newest per object, until somebody asks: a submit needs nodes, queues and runtimes only, so a thousand
jobs and pods that come and go cost nothing here until `explain` or a usage is wanted. Never starts a job. Called by
`services.py`.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import islice

from stoker.sched.decide import decide
from stoker.sched.explain import explain, never_fits
from stoker.sched.state import SchedulerState
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.others import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.reasons import Blocker, Explanation
from stoker.spec.runtime import TrainingRuntime
from stoker.store.cache import Change, WatchCache

from .ports import QueueUsage, Usage

_PIECE = 200


class SchedulerFeed:
    """Implements `ports.SchedulerView`."""

    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        nodes: WatchCache[GPUNode],
        *,
        others: WatchCache[OtherPod] | None = None,
        runtimes: WatchCache[TrainingRuntime] | None = None,
        pods: WatchCache[Pod] | None = None,
    ) -> None:
        """`others`, `runtimes`, `pods`: on a cluster; the same as the operator's scheduler is fed with."""
        self._state = SchedulerState()
        self._changed_jobs: dict[Key, TrainingJob | None] = {}
        self._changed_pods: dict[Key, Pod | None] = {}
        self._changed_others: dict[Key, OtherPod | None] = {}
        self._unsubscribe = [
            queues.subscribe(self._on_queue),
            nodes.subscribe(self._on_node),
            *([runtimes.subscribe(self._on_runtime)] if runtimes is not None else []),
            jobs.subscribe(self._on_job),
            *([pods.subscribe(self._on_pod)] if pods is not None else []),
            *([others.subscribe(self._on_other)] if others is not None else []),
        ]

    def close(self) -> None:
        for stop in self._unsubscribe:
            stop()

    def never_fits(self, job: TrainingJob) -> list[Blocker]:
        return list(never_fits(self._state, job))

    def explain(self, key: Key, now: datetime) -> Explanation:
        return explain(self._current(), key, now)

    async def catch_up(self) -> None:
        """Take in what has changed, in pieces, so that nobody waits for it: 100,000 jobs take seconds."""
        while len(self._changed_jobs) + len(self._changed_pods) + len(self._changed_others) > _PIECE:
            for key in tuple(islice(self._changed_jobs, _PIECE)):
                self._take_job(key, self._changed_jobs.pop(key))
            for key in tuple(islice(self._changed_pods, _PIECE)):
                self._take_pod(key, self._changed_pods.pop(key))
            for key in tuple(islice(self._changed_others, _PIECE)):
                self._take_other(key, self._changed_others.pop(key))
            await asyncio.sleep(0)

    def startable(self, now: datetime, most: int) -> list[tuple[Key, str, str]]:
        """Up to `most` jobs that could start now: key, uid, queue. They are not started.

        Decides for real and takes the starts back, not within a what-if: the verdicts on all that can't start stay, so
        that the next call costs what has changed.
        """
        state = self._current()
        starts = decide(state, now, most=most).starts
        found = [(start.key, start.uid, state.entries[start.key].queue.name) for start in starts]
        for start in starts:
            state.drop_assumption(start.key)
        return found

    def queue_usage(self, name: str) -> QueueUsage:
        used = self._current().queue_usage(name)
        return QueueUsage(used.gpus, used.cpu_milli, used.memory_bytes, used.running, used.pending)

    def node_usage(self, name: str) -> Usage:
        used = self._current().node_usage(name)
        return Usage(
            used.gpus - used.free_gpus,
            used.cpu_milli - used.free_cpu_milli,
            used.memory_bytes - used.free_memory_bytes,
        )

    def _current(self) -> SchedulerState:
        jobs, self._changed_jobs = self._changed_jobs, {}
        for key, job in jobs.items():
            self._take_job(key, job)
        pods, self._changed_pods = self._changed_pods, {}
        for pod_key, pod in pods.items():
            self._take_pod(pod_key, pod)
        others, self._changed_others = self._changed_others, {}
        for other_key, other in others.items():
            self._take_other(other_key, other)
        return self._state

    def _take_job(self, key: Key, job: TrainingJob | None) -> None:
        if job is None:
            self._state.forget_job(key)
        else:
            self._state.observe_job(job)

    def _take_pod(self, key: Key, pod: Pod | None) -> None:
        if pod is None:
            self._state.forget_pod(key)
        else:
            self._state.observe_pod(pod)

    def _take_other(self, key: Key, other: OtherPod | None) -> None:
        if other is None:
            self._state.forget_other(key)
        else:
            self._state.observe_other(other)

    def _on_queue(self, change: Change[Queue]) -> None:
        if change.new is not None:
            self._state.observe_queue(change.new)
        else:
            self._state.forget_queue(change.key.name)

    def _on_node(self, change: Change[GPUNode]) -> None:
        if change.new is not None:
            self._state.observe_node(change.new)
        else:
            self._state.forget_node(change.key.name)

    def _on_runtime(self, change: Change[TrainingRuntime]) -> None:
        if change.new is not None:
            self._state.observe_runtime(change.new)
        else:
            self._state.forget_runtime(change.key.name)

    def _on_pod(self, change: Change[Pod]) -> None:
        self._changed_pods[change.key] = change.new

    def _on_other(self, change: Change[OtherPod]) -> None:
        self._changed_others[change.key] = change.new

    def _on_job(self, change: Change[TrainingJob]) -> None:
        if change.new is None and change.key not in self._state.entries:
            self._changed_jobs.pop(change.key, None)  # came and went unasked for
        else:
            self._changed_jobs[change.key] = change.new
