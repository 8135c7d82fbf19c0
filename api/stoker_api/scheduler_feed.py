"""The scheduler's state as the api reads it, fed from the watch caches.

Changes wait, newest per object, until somebody asks: a submit needs nodes, queues and runtimes only, so a thousand
jobs and pods that come and go cost nothing here until `explain` or a usage is wanted. Never starts a job. Called by
`services.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import TypeVar

from stoker.sched.decide import decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.reasons import Blocker, Explanation
from stoker.spec.runtime import TrainingRuntime
from stoker.store.cache import Change, WatchCache
from stoker.why.explain import explain, never_fits

from .ports import QueueUsage, Usage

_PIECE = 200

T = TypeVar("T")


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
        self._behind: deque[Iterator[None]] = deque()
        """Changes on their way into the state, the oldest first; each step of an iterator takes one in."""
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
        self._line_up()
        while self._behind:
            self._take_in(_PIECE)
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
        self._line_up()
        self._take_in(None)
        return self._state

    def _line_up(self) -> None:
        """What has changed goes behind what waits already: the newer is taken in later."""
        state = self._state
        if self._changed_jobs:
            self._behind.append(_changes(self._changed_jobs, state.observe_job, state.forget_job))
            self._changed_jobs = {}
        if self._changed_pods:
            self._behind.append(_changes(self._changed_pods, state.observe_pod, state.forget_pod))
            self._changed_pods = {}
        if self._changed_others:
            self._behind.append(_changes(self._changed_others, state.observe_other, state.forget_other))
            self._changed_others = {}

    def _take_in(self, most: int | None) -> None:
        """The first `most` changes; None: all."""
        left = most
        while self._behind and (left is None or left > 0):
            taken = sum(1 for _ in islice(self._behind[0], left))
            if left is None or taken < left:
                self._behind.popleft()
            if left is not None:
                left -= taken

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
        if change.new is None and change.key not in self._state.entries and not self._behind:
            self._changed_jobs.pop(change.key, None)  # came and went unasked for
        else:
            self._changed_jobs[change.key] = change.new


def _changes(
    changed: dict[Key, T | None], observe: Callable[[T], None], forget: Callable[[Key], None]
) -> Iterator[None]:
    for key, new in changed.items():
        if new is None:
            forget(key)
        else:
            observe(new)
        yield
