"""A small world for the scheduler's tests: builders of nodes, queues and jobs, and the state they are fed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.sched.decide import Decisions, decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Blame, GpuRequest, Phase, Placed, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import Gpu, GPUNode, GPUNodeStatus
from stoker.spec.queue import Queue, QueueLimit, QueueSpec

T0 = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
GI = 2**30


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def key(name: str, project: str = "default") -> Key:
    return Key(project, name)


def node(
    name: str,
    gpus: int | Sequence[tuple[str, int, str]] = 8,
    *,
    cpu: int = 64,
    memory: int = 512,
    ready: bool = True,
    model: str = "NVIDIA A100-SXM4-80GB",
    gpu_memory: int = 80,
) -> GPUNode:
    """`gpus`: a count, or (model, GiB, why unavailable) each. `cpu` in cores, `memory` in GiB."""
    kinds = [(model, gpu_memory, "")] * gpus if isinstance(gpus, int) else list(gpus)
    return GPUNode(
        metadata=ObjectMeta(name=name, uid=name),
        status=GPUNodeStatus(
            ready=ready,
            message="" if ready else "agent silent",
            cpu_milli=cpu * 1000,
            memory_bytes=memory * GI,
            gpus=tuple(
                Gpu(uuid=f"{name}-{i}", index=i, model=kind, memory_bytes=size * GI, unavailable=why)
                for i, (kind, size, why) in enumerate(kinds)
            ),
        ),
    )


def queue(
    name: str = "default",
    *,
    gpus: int | None = None,
    cpu: str | None = None,
    memory: str | None = None,
    projects: tuple[str, ...] | None = None,
    highest: int | None = None,
) -> Queue:
    return Queue(
        metadata=ObjectMeta(name=name, uid=f"queue-{name}"),
        spec=QueueSpec(
            limit=QueueLimit(gpus=gpus, cpu=cpu, memory=memory), projects=projects, highest_priority=highest
        ),
    )


def job(
    name: str,
    gpus: int = 1,
    *,
    workers: int = 1,
    queue: str = "default",
    project: str = "default",
    priority: int = 0,
    queued: float = 0,
    cpu: str = "1",
    memory: str = "1Gi",
    models: tuple[str, ...] = (),
    min_memory: str | None = None,
    on: Sequence[str] = (),
    phase: Phase | None = None,
    not_before: float | None = None,
    blamed: Mapping[str, float] | None = None,
    version: int = 1,
    suspend: bool = False,
    cancel: bool = False,
    uid: str | None = None,
) -> TrainingJob:
    """`on` names the node of each worker: then it runs. Times are seconds after T0."""
    return TrainingJob(
        metadata=ObjectMeta(
            name=name, namespace=project, uid=uid or f"uid-{name}", resource_version=str(version), creation_timestamp=T0
        ),
        spec=TrainingJobSpec(
            queue=queue,
            priority=priority,
            workers=workers,
            gpus_per_worker=gpus,
            gpu=GpuRequest(models=models, min_memory=min_memory) if gpus else GpuRequest(),
            cpu=cpu,
            memory=memory,
            trainer={"command": ["true"]},  # type: ignore[arg-type]
            suspend=suspend,
            cancel=cancel,
        ),
        status=TrainingJobStatus(
            phase=phase or (Phase.RUNNING if on else Phase.QUEUED),
            queued_at=at(queued),
            placement=tuple(Placed(worker=i, node=name) for i, name in enumerate(on)),
            not_before=None if not_before is None else at(not_before),
            blamed=tuple(Blame(node=name, until=at(until)) for name, until in (blamed or {}).items()),
        ),
    )


@dataclass
class World:
    """A state that was fed with these objects."""

    state: SchedulerState = field(default_factory=SchedulerState)

    def feed(self, *objects: Any) -> World:
        for item in objects:
            observe = {
                GPUNode: self.state.observe_node,
                Queue: self.state.observe_queue,
                TrainingJob: self.state.observe_job,
            }
            observe[type(item)](item)
        return self

    def decide(self, seconds: float = 0, **options: Any) -> Decisions:
        return decide(self.state, at(seconds), **options)

    def starts(self, seconds: float = 0, **options: Any) -> dict[str, list[str]]:
        """Job -> node of each worker."""
        return {
            start.key.name: [placed.node for placed in start.placement]
            for start in self.decide(seconds, **options).starts
        }

    def codes(self, name: str, seconds: float = 0, **options: Any) -> list[str]:
        return [str(blocker.code) for blocker in self.decide(seconds, **options).reasons[key(name)]]


def fingerprint(state: SchedulerState) -> dict[str, Any]:
    """Everything the state holds, as plain values."""
    table = state.nodes
    columns = ("usable", "total", "free_gpu", "cap_cpu", "free_cpu", "cap_mem", "free_mem", "ready")
    return {
        "slots": dict(table.slots),
        "names": list(table.names),
        "spare": list(table._spare),
        "objects": dict(table.objects),
        "claims": {name: dict(claims) for name, claims in table.claims.items()},
        "columns": {name: getattr(table, name).tolist() for name in columns},
        "filters": {
            wanted: (view.cap.tolist(), view.room.tolist(), view.users) for wanted, view in table.columns.items()
        },
        "timers": list(state.timers),
        "entries": {
            entry.key: (entry.job, entry.pending, entry.wakes_at, entry.assumed, dict(entry.held), id(entry.lane))
            for entry in state.entries.values()
        },
        "queues": {
            name: (
                queue.queue,
                queue.limit,
                queue.used,
                queue.running,
                set(queue.pending),
                {kind: (list(lane.jobs), lane.verdict, id(lane)) for kind, lane in queue.lanes.items()},
            )
            for name, queue in state.queues.items()
        },
        "changes": (set(state.freed_nodes), set(state.freed_queues), set(state.untried), state.shifted),
        "reserving": (state.reserving, state.next_reserving_at),
        "journal": (state.journal._open, len(state.journal._log)),
    }


def accounting(state: SchedulerState) -> dict[str, Any]:
    """What is counted where, whatever the history: the same for a state rebuilt from scratch."""
    return {
        "nodes": {name: state.node_usage(name) for name in state.nodes.slots},
        "free": {
            (name, wanted): int(state.nodes.free_for(wanted)[slot])
            for name, slot in state.nodes.slots.items()
            for wanted in state.nodes.columns
        },
        "queues": {name: state.queue_usage(name) for name in state.queues},
    }


@pytest.fixture(scope="session")
def sched() -> SimpleNamespace:
    """The builders above, as one namespace: test modules can't import each other."""
    return SimpleNamespace(
        World=World,
        T0=T0,
        GI=GI,
        at=at,
        key=key,
        node=node,
        queue=queue,
        job=job,
        fingerprint=fingerprint,
        accounting=accounting,
    )
