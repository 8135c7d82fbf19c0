"""What jobs have from their Queue, runtime and nodes, and which of them to look at again when one of those changes:
waiting jobs that may not run as they stand or of which it is not known what their workers get, ended ones that are kept
for a time.

Owns the way from a changed Queue, TrainingRuntime or node to the jobs it concerns; the rules are `life.admission`'s.
Never writes. Called by `operator.Operator` (the changes) and `jobs.JobReconciler` (the answers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.life.admission import admission_blockers
from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.quantity import parse_duration
from stoker.spec.queue import Queue
from stoker.spec.reasons import Reason
from stoker.spec.runtime import DEFAULT_RUNTIME, TrainingRuntime
from stoker.spec.worker_size import WorkerResources
from stoker.store.cache import Change, WatchCache
from stoker.store.index import Index
from stoker.worker_sizes import WorkerSizes, size_of

_UNNAMED = ("runtime", "")
_UNSIZED = ("unsized", "")


class Admission:
    """`runtimes` None: one machine, which has none."""

    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        nodes: WatchCache[GPUNode],
        runtimes: WatchCache[TrainingRuntime] | None,
    ) -> None:
        self._jobs, self._queues, self._nodes, self._runtimes = jobs, queues, nodes, runtimes
        self._sizes = WorkerSizes(queues, nodes, runtimes)
        self._waiting: Index[TrainingJob] = Index(_under)

    def blocker(self, job: TrainingJob) -> Reason | None:
        """What bars a waiting job; None for others: what runs goes on, whatever its queue says now."""
        if job.status.phase is not Phase.QUEUED:
            return None
        queue = self._queues.get(Key("", job.spec.queue))
        return next(admission_blockers(job, queue, *self._sizes.runtime_of(job)), None)

    def resources(self, job: TrainingJob) -> WorkerResources | None:
        """What the workers of a waiting job would get that its status lacks; None for others."""
        return self._sizes.of(job) if job.status.phase is Phase.QUEUED and not job.is_sized else None

    def queue_ttl_s(self, job: TrainingJob) -> float | None:
        """How long its queue keeps ended jobs. Units: seconds."""
        ttl = _ttl(self._queues.get(Key("", job.spec.queue)))
        return None if ttl is None else parse_duration(ttl)

    def subscribe(self, again: Callable[[Key], None]) -> list[Callable[[], None]]:
        """Call `again` with every job that a change may let in, keep out or remove. Returns: the ways to unsubscribe.

        Cost: nothing for a change of limits, of pods' form or of whether a node is ready; O(all jobs) for one of a
        queue's ttlAfterFinished, which is too rare for an index of ended jobs; else O(waiting jobs concerned).
        """

        def look(values: Iterable[tuple[str, str]]) -> None:
            for value in values:
                for job in self._waiting.find(value):
                    again(job.key)

        def on_queue(change: Change[Queue]) -> None:
            if _rules_of(change.old) != _rules_of(change.new):
                look([("queue", change.key.name)])
            if _ttl(change.old) != _ttl(change.new):
                for job in self._jobs.values():
                    if job.status.phase in ENDED and job.spec.queue == change.key.name:
                        again(job.key)

        def on_runtime(change: Change[TrainingRuntime]) -> None:
            name = change.key.name
            if _rules_in(change.old) != _rules_in(change.new):
                look([("runtime", name), *([_UNNAMED] if name == DEFAULT_RUNTIME else [])])
            # A changed audience concerns those that it is the default of, too.
            if _rules_in(change.old) != _rules_in(change.new) or _claims(change.old) != _claims(change.new):
                look(("project", project) for project in _claims(change.old) | _claims(change.new))

        def on_node(change: Change[GPUNode]) -> None:
            if change.new is not None and size_of(change.old) != size_of(change.new):
                for job in self._waiting.find(_UNSIZED):
                    if self._sizes.may_wait_for(job, change.new):
                        again(job.key)

        stops = [
            self._sizes.unsubscribe,
            self._jobs.subscribe(lambda change: self._waiting.replace(change.old, change.new)),
            self._nodes.subscribe(on_node),
            self._queues.subscribe(on_queue),
        ]
        return stops if self._runtimes is None else [*stops, self._runtimes.subscribe(on_runtime)]


def _under(job: TrainingJob) -> list[tuple[str, str]]:
    if job.status.phase is not Phase.QUEUED:
        return []
    found = [("queue", job.spec.queue), ("runtime", job.spec.runtime or "")]
    if not job.is_sized:
        found.append(_UNSIZED)
    return found if job.spec.runtime is not None else [*found, ("project", job.metadata.namespace)]


def _rules_of(queue: Queue | None) -> tuple[object, ...]:
    if queue is None:
        return ()
    return (queue.metadata.deletion_timestamp, queue.spec.projects, queue.spec.highest_priority, queue.spec.defaults)


def _ttl(queue: Queue | None) -> str | None:
    return None if queue is None else queue.spec.ttl_after_finished


def _rules_in(runtime: TrainingRuntime | None) -> tuple[object, ...]:
    """Which jobs it takes, on which nodes, with which data, and what their workers get."""
    if runtime is None:
        return ()
    spec = runtime.spec
    return (spec.projects, spec.node_selector, spec.tolerations, tuple(one.name for one in spec.data), spec.defaults)


def _claims(runtime: TrainingRuntime | None) -> frozenset[str]:
    return frozenset() if runtime is None else frozenset(runtime.spec.default_for)
