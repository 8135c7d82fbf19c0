"""What each worker of a job that does not say it would get now, from the watch caches of one process.

Owns what it is worked out from: the job's queue and runtime as they are now, and all nodes; their smallest share is
kept until nodes come, go or change their size. The operator writes it into a job's status, once, as it is accepted
(`life.admission`); the api says it beforehand. The rule is `sched.worker_size`'s. Called by `controller.admission` and
`stoker_api`.
"""

from __future__ import annotations

from stoker.sched.eligible import NodeFilter, needs_of
from stoker.sched.request import GpuFilter, request_of
from stoker.sched.worker_size import Share, resources_of, smallest_share, would_do
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime, effective_runtime
from stoker.spec.worker_size import WorkerResources
from stoker.store.cache import Change, WatchCache

_MOST_KEPT = 256


class WorkerSizes:
    """`runtimes` None: one machine, which has none. `unsubscribe` ends its following of `nodes`."""

    def __init__(
        self,
        queues: WatchCache[Queue],
        nodes: WatchCache[GPUNode],
        runtimes: WatchCache[TrainingRuntime] | None,
    ) -> None:
        self._queues, self._nodes, self._runtimes = queues, nodes, runtimes
        self._shares: dict[tuple[int, GpuFilter, NodeFilter], Share | None] = {}
        self.unsubscribe = nodes.subscribe(self._on_node)

    def of(self, job: TrainingJob) -> WorkerResources | None:
        """None: it depends on a node that is not there yet. Cost: O(nodes) for the first job of its kind."""
        queue, runtime = self._queues.get(Key("", job.spec.queue)), self.runtime_of(job)
        return resources_of(job, queue, runtime[1], lambda: self._share(job, *runtime))

    def sized(self, job: TrainingJob) -> TrainingJob:
        """The job as it would be accepted now; itself where it says all, or nothing is known."""
        resources = None if job.is_sized else self.of(job)
        if resources is None:
            return job
        return job.model_copy(update={"status": job.status.model_copy(update={"resources": resources})})

    def may_wait_for(self, job: TrainingJob, node: GPUNode) -> bool:
        """The node's share may be what the job waits for."""
        name, runtime = self.runtime_of(job)
        return would_do(node, request_of(job, needs_of(name, runtime)))

    def runtime_of(self, job: TrainingJob) -> tuple[str, TrainingRuntime | None]:
        """That it runs or would run in, and its name."""
        listed = () if self._runtimes is None else self._runtimes.values()
        name = effective_runtime(job.spec.runtime, job.metadata.namespace, listed)
        return name, None if self._runtimes is None else self._runtimes.get(Key("", name))

    def _share(self, job: TrainingJob, name: str, runtime: TrainingRuntime | None) -> Share | None:
        request = request_of(job, needs_of(name, runtime))
        kind = request.gpus, request.filter, request.nodes
        if kind not in self._shares:
            if len(self._shares) >= _MOST_KEPT:
                self._shares.clear()
            self._shares[kind] = smallest_share(self._nodes.values(), request)
        return self._shares[kind]

    def _on_node(self, change: Change[GPUNode]) -> None:
        if size_of(change.old) != size_of(change.new):
            self._shares.clear()


def size_of(node: GPUNode | None) -> tuple[object, ...]:
    """What counts of a node: everything but whether it is ready."""
    if node is None:
        return ()
    status = node.status
    return status.gpus, status.cpu_milli, status.memory_bytes, status.taints, node.metadata.labels
