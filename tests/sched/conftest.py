"""A small world for the scheduler's tests: builders of nodes, queues and jobs, and the state they are fed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.controller.render import owned_by
from stoker.sched.decide import Decisions, decide
from stoker.sched.entries import Lane
from stoker.sched.nodes import _COLUMNS
from stoker.sched.occupancy import node_room, queue_usage
from stoker.sched.queue_state import QueueState
from stoker.sched.request import ANY_GPU, WHOLE_GPUS
from stoker.sched.state import SchedulerState
from stoker.sched.waiters import Waiting
from stoker.spec.job import Blame, Phase, Placed, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Elastic, GpuRequest, JobTopology
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import CORDONED, Gpu, GPUNode, GPUNodeStatus, Taint
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Container, Pod, PodPhase, PodSpec, PodStatus, Resources
from stoker.spec.queue import DecayedUsage, Discipline, Queue, QueueResources, QueueSpec, QueueStatus
from stoker.spec.runtime import Toleration, TrainingRuntime, TrainingRuntimeSpec
from stoker.why.reasons import Reasons

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
    capability: str | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[str] = (),
    extended: Mapping[str, int] | None = None,
    cordoned: bool = False,
    lost: float | None = None,
    shared: bool = False,
    parts: Mapping[str, int] | None = None,
    watts: int | Sequence[int] = 0,
) -> GPUNode:
    """`gpus`: a count, or (model, GiB, why unavailable) each; `parts`: what is offered by other names, how many each;
    `watts`: the power limit of all GPUs, or of the first ones. `cpu` in cores, `memory` in GiB; taints as k=v:effect;
    `lost` in seconds after T0."""
    powers = dict(enumerate([watts] * 64 if isinstance(watts, int) else watts))
    ready = ready and not cordoned and lost is None
    message = CORDONED if cordoned else "agent silent"
    kinds = [(model, gpu_memory, "")] * gpus if isinstance(gpus, int) else list(gpus)
    offered = [(*kind, GPU_RESOURCE) for kind in kinds]
    for resource, count in (parts or {}).items():
        offered += [(model, gpu_memory // 8, "", resource)] * count
    return GPUNode(
        metadata=ObjectMeta(name=name, uid=name, labels=labels or {}),
        status=GPUNodeStatus(
            ready=ready,
            message="" if ready else message,
            lost_since=None if lost is None else at(lost),
            taints=tuple(taint(text) for text in taints),
            extended=extended or {},
            cpu_milli=cpu * 1000,
            memory_bytes=memory * GI,
            gpus=tuple(
                Gpu(
                    uuid=f"{name}-{i}",
                    index=i,
                    model=kind,
                    memory_bytes=size * GI,
                    compute_capability=capability,
                    resource=resource,
                    power_limit_watts=powers.get(i, 0),
                    part=shared or resource != GPU_RESOURCE,
                    unavailable=why,
                )
                for i, (kind, size, why, resource) in enumerate(offered)
            ),
        ),
    )


def taint(text: str) -> Taint:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return Taint(key=key, value=value, effect=effect)


def runtime(
    name: str = "default",
    *,
    selector: Mapping[str, str] | None = None,
    tolerates: Sequence[dict[str, Any]] = (),
    extended: Mapping[str, int] | None = None,
    projects: tuple[str, ...] | None = None,
    default_for: tuple[str, ...] = (),
) -> TrainingRuntime:
    return TrainingRuntime(
        metadata=ObjectMeta(name=name, uid=f"runtime-{name}"),
        spec=TrainingRuntimeSpec(
            node_selector=dict(selector or {}),
            tolerations=tuple(Toleration.model_validate(one) for one in tolerates),
            extended_resources=dict(extended or {}),
            projects=projects,
            default_for=default_for,
        ),
    )


def other(
    name: str, node: str, gpus: int = 0, *, cpu: str = "", memory: str = "", going: bool = False, **more: str
) -> OtherPod:
    """A pod that is not Stoker's; `name` as namespace/name. `more`: extended resources, rdma__hca for rdma/hca."""
    namespace, _, short = name.partition("/")
    asked = {"nvidia.com/gpu": str(gpus) if gpus else "", "cpu": cpu, "memory": memory}
    asked |= {key.replace("__", "/"): count for key, count in more.items()}
    requests = {key: value for key, value in asked.items() if value}
    meta: dict[str, Any] = {"name": short, "namespace": namespace, "uid": f"uid-{name}"}
    return OtherPod.model_validate(
        {
            "metadata": meta | ({"deletionTimestamp": at(0)} if going else {}),
            "spec": {"nodeName": node, "containers": [{"resources": {"requests": requests}}]},
        }
    )


def pod(
    job: TrainingJob,
    worker: int = 0,
    *,
    on: str,
    attempt: int | None = None,
    uid: str | None = None,
    going: bool = False,
    ended: bool = False,
    gpus: int | None = None,
    name: str = "",
) -> Pod:
    """A worker's pod, of the job's current attempt unless given; `gpus`, `name`: other ones than its job's."""
    number = job.status.attempt if attempt is None else attempt
    requests = {
        job.spec.gpu.resource: str(job.spec.gpus_per_worker if gpus is None else gpus),
        "cpu": job.spec.cpu,
        "memory": job.spec.memory,
    }
    return Pod(
        metadata=ObjectMeta(
            name=name or f"{job.metadata.name}-{number}-{worker}",
            namespace=job.metadata.namespace,
            uid=f"uid-{name or job.metadata.name}-{number}-{worker}",
            owner_references=(owned_by(job).model_copy(update={"uid": uid or job.uid}),),
            deletion_timestamp=T0 if going else None,
        ),
        spec=PodSpec(node_name=on, containers=(Container(resources=Resources(limits=requests)),)),
        status=PodStatus(phase=PodPhase.FAILED if ended else PodPhase.RUNNING),
    )


def queue(
    name: str = "default",
    *,
    gpus: int | None = None,
    cpu: str | None = None,
    memory: str | None = None,
    projects: tuple[str, ...] | None = None,
    highest: int | None = None,
    budget: float | None = 0.25,
    discipline: Discipline = Discipline.FIFO,
    parent: str | None = None,
    guarantee: int | None = None,
    weight: int = 1,
    lately: float = 0.0,
    lately_of: Mapping[str, float] | None = None,
    guaranteed: Mapping[str, Any] | None = None,
    types: Mapping[str, int] | None = None,
) -> Queue:
    return Queue(
        metadata=ObjectMeta(name=name, uid=f"queue-{name}"),
        spec=QueueSpec(
            parent=parent,
            limit=QueueResources(gpus=gpus, cpu=cpu, memory=memory, gpu_types=types or {}),
            guarantee=QueueResources(gpus=guarantee, **(guaranteed or {})),
            weight=weight,
            projects=projects,
            highest_priority=highest,
            reservation_budget=budget,
            discipline=discipline,
        ),
        status=QueueStatus(decayed_usage=DecayedUsage(gpus=lately, gpu_types=lately_of or {})),
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
    runtime: str | None = None,
    attempt: int = 0,
    preemptible: bool = True,
    min_capability: str | None = None,
    max_power: int | None = None,
    required: str | None = None,
    preferred: str | None = None,
    elastic: tuple[int, int] | None = None,
    resource: str = GPU_RESOURCE,
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
            elastic=None if elastic is None else Elastic(min=elastic[0], max=elastic[1]),
            gpus_per_worker=gpus,
            gpu=GpuRequest(
                models=models,
                min_memory=min_memory,
                min_compute_capability=min_capability,
                max_power=max_power,
                resource=resource,
            )
            if gpus
            else GpuRequest(),
            topology=JobTopology(required=required, preferred=preferred),
            cpu=cpu,
            memory=memory,
            trainer={"command": ["true"]},  # type: ignore[arg-type]
            suspend=suspend,
            cancel=cancel,
            runtime=runtime,
            preemptible=preemptible,
        ),
        status=TrainingJobStatus(
            attempt=attempt,
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
                TrainingRuntime: self.state.observe_runtime,
                OtherPod: self.state.observe_other,
                Pod: self.state.observe_pod,
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

    def reasons(self, seconds: float = 0) -> Reasons:
        """Of what a decide at that time left waiting."""
        return Reasons(self.state, at(seconds))

    def codes(self, name: str, seconds: float = 0, **options: Any) -> list[str]:
        self.decide(seconds, **options)
        return [str(blocker.code) for blocker in self.reasons(seconds)[key(name)]]


def fingerprint(state: SchedulerState) -> dict[str, Any]:
    """Everything the state holds, as plain values: a lane, queue or runtime as what it is called, and whether it is
    the state's of that name."""

    def called(one: Any) -> Any:
        if isinstance(one, Lane):
            kind = one.request, one.avoid
            return called(one.queue), kind, one.queue.lanes.get(kind) is one
        if isinstance(one, Waiting):
            return one.order, one.needs, called(one.lane)
        if one is None:
            return None
        return one.name, (state.queues if isinstance(one, QueueState) else state.runtimes.states).get(one.name) is one

    table, waiters = state.nodes, state.lanes.waiters
    views: dict[Any, Any] = {**table.columns, **table.extended, **table.eligible}
    return {
        "slots": dict(table.slots),
        "has parts": table.gpus._has_parts,
        "domains": [dict(one) for one in (table._domains._numbers, table._domains._nodes, table._domains._labels)],
        "names": list(table.names),
        "spare": (list(table._spare), list(table._domains._spare)),
        "objects": dict(table.objects),
        "claims": {name: dict(claims) for name, claims in table.claims.items()},
        "others": {name: dict(others) for name, others in table.others.items()},
        "columns": {
            (wanted, name): getattr(owner, name).tolist()
            for wanted, owner, names in [
                (None, table, (*_COLUMNS, "ready")),
                *((wanted, view, view.arrays) for wanted, view in (*views.items(), *table._domains.views.items())),
            ]
            for name in names
        },
        "users": {wanted: view.users for wanted, view in views.items()},
        "holders": (
            dict(state.foreign_pods.where),
            dict(state.foreign_pods.pods),
            {job: set(pods) for job, pods in state.foreign_pods.of_job.items()},
            {pod: (called(one.queue), *one[1:]) for pod, one in state.deleted_jobs.charges.items()},
            {(called(queue), gpu_type): sums for (queue, gpu_type), sums in state.deleted_jobs._sums.items()},
        ),
        "runtimes": {
            name: (known.runtime, known.needs, set(known.users)) for name, known in state.runtimes.states.items()
        },
        "timers": list(state.lanes.timers),
        "entries": {
            entry.key: (
                *(entry.job, entry.request, entry.pending, entry.wakes_at, entry.assumed),
                *(entry.gpu_type, dict(entry.workers_on)),
                *(called(entry.lane), called(entry.runtime), called(entry.queue)),
            )
            for entry in state.entries.values()
        },
        "queues": {
            name: (
                queue.queue,
                [called(above) for above in queue.path],
                [called(below) for below in queue.children],
                (queue.limit, queue.is_limited, queue.guarantee, queue.weight, queue.lately),
                queue.used,
                {name: (one.limit, one.guarantee, one.used) for name, one in queue.typed.items()},
                set(queue.holding),
                set(queue.holding_gpus),
                {key: state.entries[key] is entry for key, entry in queue.pending.items()},
                (list(queue.filed), queue.preempts_from),
                {kind: (list(lane.jobs), lane.place, called(lane)) for kind, lane in queue.lanes.items()},
            )
            for name, queue in state.queues.items()
        },
        "waiters": (
            {
                kind: {name: [called(one) for one in index] for name, index in queues.items()}
                for kind, queues in waiters.for_nodes.items()
            },
            *(
                {name: [called(one) for one in index] for name, index in queues.items()}
                for queues in (waiters.for_limit, waiters.heads)
            ),
            list(waiters.ages),
        ),
        "changes": (
            set(state.changes.freed_nodes),
            set(state.changes.freed_queues),
            set(state.changes.kept_nodes),
            set(state.changes.kept_queues),
            {called(lane) for lane in state.lanes.untried},
            state.changes.shifted,
        ),
        "preemption": (
            *(dict(state.claims.jobs), dict(state.victims), dict(state.claims.unwritten), set(state.claims.voided)),
            {one.key: (one.claim, one.claim_decided, one.stuck) for one in state.entries.values()},
            state.preempt_at,
            *(
                dict(state.claims.keeps),
                dict(state.elastic.placed),
                {kind: set(keys) for kind, keys in state.elastic.below_most.items()},
                state.elastic.grow_at,
            ),
            *(
                set(state.changes.filled_nodes),
                set(state.changes.filled_queues),
                dict(state.claims.moved),
                dict(state.claims.ready),
                (dict(state.claims.given_up._due), list(state.claims.given_up._times)),
                {at: set(keys) for at, keys in state.claims.given_up._at.items()},
            ),
            {
                (name, request): list(orders)
                for name, kinds in state.claims.of.items()
                for request, orders in kinds.items()
            },
            {
                (name, request): dict(there)
                for name, kinds in state.claims.on.items()
                for request, there in kinds.items()
            },
        ),
        "reserving": (state.reserve_after_s, state.next_reserving_at, state.spent_at),
        "plan": [(one.order, called(one.lane), one.spread) for one in state.plan],
        "costs": (dict(state.costs), dict(state.past_costs), state.counted_at),
        "tree": (
            {name: set(named) for name, named in state.tree._naming.items() if named},
            {name: called(queue) for name, queue in state.tree.guaranteed.items()},
            dict(state.tree.typing),
            state.tree.depth,
        ),
        "journal": (state.journal._open, len(state.journal._log)),
    }


def accounting(state: SchedulerState) -> dict[str, Any]:
    """What is counted where, whatever the history: the same for a state rebuilt from scratch."""
    filters = {wanted for wanted in state.nodes.columns if not wanted.type}.union(WHOLE_GPUS)
    filters |= {ANY_GPU._replace(type=gpu_type) for gpu_type in state.nodes.gpus.types_for(ANY_GPU)}
    return {
        "nodes": {name: node_room(state, name) for name in state.nodes.slots},
        "free": {
            (name, wanted): int(state.nodes.free_for(wanted)[slot])
            for name, slot in state.nodes.slots.items()
            for wanted in filters
        },
        "rest": {
            (name, wanted): int(state.nodes.rest_for(wanted)[slot])
            for name, slot in state.nodes.slots.items()
            for wanted in filters
        },
        "extended": {
            (name, wanted): (int(view.rest[slot]), int(view.free[slot]))
            for name, slot in state.nodes.slots.items()
            for wanted, view in state.nodes.extended.items()
        },
        "open": {
            (name, wanted): bool(view.open[slot])
            for name, slot in state.nodes.slots.items()
            for wanted, view in state.nodes.eligible.items()
        },
        "queues": {name: queue_usage(state, name) for name in state.queues},
        "types": {
            one.name: one.used for queue in state.queues.values() for one in queue.typed.values() if any(one.used)
        },
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
        runtime=runtime,
        other=other,
        pod=pod,
        fingerprint=fingerprint,
        accounting=accounting,
    )
