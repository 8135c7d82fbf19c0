"""Builders of the objects that the scheduler's tests feed: nodes, queues, jobs, pods. Times are seconds after T0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from stoker.controller.render import owned_by
from stoker.spec.job import Blame, Phase, Placed, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Elastic, GpuRequest, JobTopology
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import CORDONED, Gpu, GPUNode, GPUNodeStatus, Taint
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Container, Pod, PodPhase, PodSpec, PodStatus, Resources
from stoker.spec.queue import DecayedUsage, Discipline, Queue, QueueResources, QueueSpec, QueueStatus
from stoker.spec.runtime import Toleration, TrainingRuntime, TrainingRuntimeSpec

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
