"""The configurations of Kueue's own scalability tests, as queues, nodes and jobs of ours.

baseline: 30 queues in 5 cohorts, 15,000 jobs. large: 1,000 queues in 10, 50,000 jobs. tas: the baseline in gangs of 2,
4 and 8, on 640 nodes in 10 racks. A cohort is a queue that guarantees its children 20 cores each, and they may borrow
what the others leave. Its "balanced" gangs (evenly over racks) are wished for as "preferred": we have no such rule.
Source: kubernetes-sigs/kueue, test/performance/scheduler/configs/*/generator.yaml; shapes and figures only.
Called by `replay` (virtual time) and `cluster` (a real API server).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stoker.spec.job import TrainingJobSpec
from stoker.spec.job_parts import JobTopology, Trainer
from stoker.spec.meta import ObjectMeta
from stoker.spec.node import GPUNode, GPUNodeStatus
from stoker.spec.queue import Preemption, QueueResources, QueueSpec, WithinQueue

BLOCK, RACK = "example.org/block", "example.org/rack"
NOMINAL = 20
"""Cores that are guaranteed to each queue."""
TRAINER = Trainer(command=("true",))
_ANYWHERE = JobTopology()


@dataclass(frozen=True)
class Kind:
    """Some of a queue's jobs: `count` of them, one every `every_s`."""

    count: int
    every_s: float
    workers: int
    cores_milli: int
    """Per worker."""
    run_s: float
    priority: int
    near: JobTopology = _ANYWHERE

    def spec(self, queue: str) -> TrainingJobSpec:
        return TrainingJobSpec(
            queue=queue,
            priority=self.priority,
            workers=self.workers,
            gpus_per_worker=0,
            cpu=f"{self.cores_milli}m",
            memory="1Mi",
            topology=self.near,
            trainer=TRAINER,
        )


@dataclass(frozen=True)
class Shape:
    cohorts: int
    queues_each: int
    kinds: tuple[Kind, ...]
    node_count: int
    cores: int
    """Of a node."""
    bound_s: float
    """In which the work is done where deciding and starting cost nothing."""
    levels: Sequence[str] | None = None

    def part(self, share: float) -> Shape:
        """With so much of each queue's work, which takes as much less."""
        kinds = tuple(replace(kind, count=max(1, round(kind.count * share))) for kind in self.kinds)
        return replace(self, kinds=kinds, bound_s=self.bound_s * share)

    def queues(self) -> dict[str, QueueSpec]:
        """A cohort before its queues."""
        whole = QueueResources(cpu=str(NOMINAL * self.queues_each))
        cohorts = {f"cohort-{c}": QueueSpec(guarantee=whole, limit=whole) for c in range(self.cohorts)}
        leaves = {
            name: QueueSpec(
                parent=parent,
                guarantee=QueueResources(cpu=str(NOMINAL)),
                limit=QueueResources(cpu=str(NOMINAL + 100)),
                preemption=Preemption(within_queue=WithinQueue.LOWER_PRIORITY),
            )
            for parent, name in self._leaves()
        }
        return cohorts | leaves

    def work(self) -> list[tuple[float, str, Kind]]:
        """(when it is submitted, in which queue, what), in that order. Units: seconds."""
        found = [
            (number * kind.every_s, name, kind)
            for _, name in self._leaves()
            for kind in self.kinds
            for number in range(1, kind.count + 1)
        ]
        return sorted(found, key=lambda one: one[0])

    def nodes(self) -> list[GPUNode]:
        return [
            GPUNode(
                metadata=ObjectMeta(name=f"node-{i:05}", labels=self.labels(i)),
                status=GPUNodeStatus(ready=True, cpu_milli=self.cores * 1000, memory_bytes=2**38),
            )
            for i in range(self.node_count)
        ]

    def labels(self, node: int) -> dict[str, str]:
        return {BLOCK: "0", RACK: str(node // 64)} if self.levels else {}

    def _leaves(self) -> Iterator[tuple[str, str]]:
        for cohort in range(self.cohorts):
            for queue in range(self.queues_each):
                yield f"cohort-{cohort}", f"queue-{cohort}-{queue}"


_REQUIRED, _PREFERRED = JobTopology(required=RACK), JobTopology(preferred=RACK)
SHAPES = {
    "baseline": Shape(
        5,
        6,
        (
            Kind(350, 0.1, 1, 1_000, 0.2, 50),
            Kind(100, 0.5, 1, 5_000, 0.5, 100),
            Kind(50, 1.2, 1, 20_000, 1.0, 200),
        ),
        node_count=32,
        cores=128,
        bound_s=73.0,
    ),
    "large": Shape(
        10,
        100,
        (
            Kind(35, 0.06, 1, 1_000, 0.15, 50),
            Kind(11, 0.3, 1, 5_000, 0.35, 100),
            Kind(4, 0.7, 1, 20_000, 0.7, 200),
        ),
        node_count=320,
        cores=128,
        bound_s=4.2,
    ),
    "tas": Shape(
        5,
        6,
        (
            *(Kind(n, 0.1, 2, 500, 0.2, 50, near) for n, near in ((120, _REQUIRED), (230, _PREFERRED))),
            *(Kind(n, 0.5, 4, 1_250, 0.5, 100, near) for n, near in ((34, _REQUIRED), (66, _PREFERRED))),
            *(Kind(n, 1.2, 8, 2_500, 1.0, 200, near) for n, near in ((17, _REQUIRED), (33, _PREFERRED))),
        ),
        node_count=640,
        cores=96,
        bound_s=66.0,  # what the work of a queue takes on the cores that are guaranteed to it
        levels=(BLOCK, RACK),
    ),
}
