"""The scheduler's state as the api reads it, fed from the watch caches.

Changes wait, newest per object, until somebody asks: a submit needs the nodes and queues only, so a thousand jobs that
come and go cost nothing here until `explain` or a usage is wanted. Never decides. Called by `deps.py`.
"""

from __future__ import annotations

from datetime import datetime

from stoker.sched.explain import explain, never_fits
from stoker.sched.state import SchedulerState
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.queue import Queue
from stoker.spec.reasons import Blocker, Explanation
from stoker.store.cache import Change, WatchCache

from .ports import QueueUsage, Usage


class SchedulerFeed:
    """Implements `ports.SchedulerView`."""

    def __init__(self, jobs: WatchCache[TrainingJob], queues: WatchCache[Queue], nodes: WatchCache[GPUNode]) -> None:
        self._state = SchedulerState()
        self._changed_jobs: dict[Key, TrainingJob | None] = {}
        self._unsubscribe = [
            queues.subscribe(self._on_queue),
            nodes.subscribe(self._on_node),
            jobs.subscribe(self._on_job),
        ]

    def close(self) -> None:
        for stop in self._unsubscribe:
            stop()

    def never_fits(self, job: TrainingJob) -> list[Blocker]:
        return list(never_fits(self._state, job))

    def explain(self, key: Key, now: datetime) -> Explanation:
        return explain(self._current(), key, now)

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
        changed, self._changed_jobs = self._changed_jobs, {}
        for key, job in changed.items():
            if job is None:
                self._state.forget_job(key)
            else:
                self._state.observe_job(job)
        return self._state

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

    def _on_job(self, change: Change[TrainingJob]) -> None:
        if change.new is None and change.key not in self._state.entries:
            self._changed_jobs.pop(change.key, None)  # came and went unasked for
        else:
            self._changed_jobs[change.key] = change.new
