"""A cluster's v1 Node as the GPUNode that the rest of Stoker knows: a projection, never written back.

Owns which of a Node's fields mean what (GPU Feature Discovery's labels, allocatable, cordon, the kubelet's Ready).
Called by the codec, which hands it bytes or the object inside a list or a watch event.
Source: NVIDIA k8s-device-plugin, docs/gpu-feature-discovery (labels) and docs on time-slicing and MPS (replicas);
Kubernetes "Node Status" (conditions, capacity and allocatable).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from stoker.spec.meta import ObjectMeta, Resource, StatusModel
from stoker.spec.names import GPU_RESOURCE, GPU_RESOURCES, MIG_PREFIX, SHARED_RESOURCE
from stoker.spec.node import CORDONED, UNKNOWN_MODEL, Gpu, GPUNode, GPUNodeStatus, Taint
from stoker.spec.quantity import observed_quantity

LABEL_PRODUCT = "nvidia.com/gpu.product"
LABEL_MEMORY = "nvidia.com/gpu.memory"
LABEL_COUNT = "nvidia.com/gpu.count"
LABEL_REPLICAS = "nvidia.com/gpu.replicas"
LABEL_COMPUTE_MAJOR = "nvidia.com/gpu.compute.major"
LABEL_COMPUTE_MINOR = "nvidia.com/gpu.compute.minor"
LABEL_MIG_STRATEGY = "nvidia.com/mig.strategy"

UNHEALTHY = "unhealthy (device plugin)"
NOT_OFFERED = "not offered by the device plugin"

_MIG_PRODUCT = "-MIG-"  # in the model's name where slices are offered as GPUs
_HUGE = 2**48  # more than any node has
_MOST_GPUS = 1024  # per node; a label that says more is a mistake


class _Condition(StatusModel):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _NodeSpec(StatusModel):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class _NodeStatus(StatusModel):
    conditions: tuple[_Condition, ...] = ()
    capacity: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}


class NodeView(Resource):
    """Source: Kubernetes core/v1 Node; only what the projection reads."""

    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


def gpu_node(view: NodeView) -> GPUNode:
    """The node as Stoker sees it. Annotations are left out: they are large and never read."""
    meta = view.metadata
    ready, message, lost_since = _readiness(view)
    allocatable = view.status.allocatable
    gpus, note = _gpus(meta.labels, view.status)
    return GPUNode(
        metadata=ObjectMeta(
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            generation=meta.generation,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels=meta.labels,
        ),
        status=GPUNodeStatus(
            ready=ready,
            message=message or note,
            lost_since=lost_since,
            taints=view.spec.taints,
            extended=_extended(allocatable),
            cpu_milli=_count(allocatable, "cpu", 1000),
            memory_bytes=_count(allocatable, "memory"),
            gpus=gpus,
        ),
    )


def _readiness(view: NodeView) -> tuple[bool, str, datetime | None]:
    """(ready, why not, since when its kubelet does not report)."""
    found = next((condition for condition in view.status.conditions if condition.type == "Ready"), None)
    if found is None:
        return False, "its kubelet has not reported yet", None
    if found.status != "True":
        problem = ": ".join(part for part in (found.reason, found.message) if part) or f"Ready is {found.status}"
        since = found.last_transition_time or view.metadata.creation_timestamp
        return False, f"{CORDONED}; {problem}" if view.spec.unschedulable else problem, since
    if view.metadata.deletion_timestamp is not None:
        return False, "being removed from the cluster", None
    if view.spec.unschedulable:
        return False, CORDONED, None
    return True, "", None


def _gpus(labels: Mapping[str, str], status: _NodeStatus) -> tuple[tuple[Gpu, ...], str]:
    """Its GPUs, and what is to be said of them."""
    capacity = min(_count(status.capacity, GPU_RESOURCE), _MOST_GPUS)
    usable = min(_count(status.allocatable, GPU_RESOURCE), capacity)
    major, minor = labels.get(LABEL_COMPUTE_MAJOR, ""), labels.get(LABEL_COMPUTE_MINOR, "")
    compute = f"{major}.{minor}" if major and minor else None
    replicas = max(_number(labels, LABEL_REPLICAS), 1)
    total = capacity
    if labels.get(LABEL_MIG_STRATEGY, "none") == "none" and SHARED_RESOURCE not in status.capacity:
        # Under MIG the label counts GPUs that are offered in slices. Without, it shows GPUs that have disappeared: a
        # device plugin that went away takes them from the capacity.
        total = max(capacity, min(_number(labels, LABEL_COUNT) * replicas, _MOST_GPUS))
    model = labels.get(LABEL_PRODUCT) or UNKNOWN_MODEL
    memory = _number(labels, LABEL_MEMORY) * 2**20 // replicas  # no more of a shared GPU is guaranteed
    part = replicas > 1 or _MIG_PRODUCT in model
    found = _alike(_Kind(GPU_RESOURCE, model, memory, compute, part), (usable, capacity, total))
    for name in sorted(set(status.capacity) & set(status.allocatable) - {GPU_RESOURCE}):
        if GPU_RESOURCES.fits(name):
            offered = min(_count(status.capacity, name), _MOST_GPUS - len(found))
            counts = min(_count(status.allocatable, name), offered), offered, offered
            kind = _Kind(name, model, memory, compute)
            if name.startswith(MIG_PREFIX):
                kind = _Kind(name, *_slice(name, labels), compute)
            found += _alike(kind, counts, len(found))
    return found, f"each GPU is shared by {replicas}" if found and replicas > 1 else ""


def _slice(name: str, labels: Mapping[str, str]) -> tuple[str, int]:
    """(model, bytes of each) of a MIG profile; of one that is shared, renamed or not, a share's."""
    profile = name.removesuffix(".shared")
    shares = max(_number(labels, f"{profile}.replicas"), 1)
    model = labels.get(f"{profile}.product") or f"MIG {profile.removeprefix(MIG_PREFIX)}"
    return model, _number(labels, f"{profile}.memory") * 2**20 // shares


class _Kind(NamedTuple):
    resource: str
    model: str
    memory: int
    compute: str | None
    part: bool = True


@lru_cache(maxsize=4096)
def _alike(kind: _Kind, counts: tuple[int, int, int], first: int = 0) -> tuple[Gpu, ...]:
    """GPUs without a uuid are values: nodes of one kind share them, which at 5,000 nodes saves 40,000 objects."""
    usable, capacity, total = counts
    why = [""] * usable + [UNHEALTHY] * (capacity - usable) + [NOT_OFFERED] * (total - capacity)
    return tuple(
        Gpu(
            uuid="",
            index=first + i,
            model=kind.model,
            memory_bytes=kind.memory,
            compute_capability=kind.compute,
            resource=kind.resource,
            part=kind.part,
            unavailable=text,
        )
        for i, text in enumerate(why)
    )


def _extended(allocatable: Mapping[str, str]) -> dict[str, int]:
    """What the runtimes may ask for besides GPUs."""
    return {
        name: _count(allocatable, name)
        for name in sorted(allocatable)
        if ("/" in name or name.startswith("hugepages-")) and not GPU_RESOURCES.fits(name)
    }


def _count(amounts: Mapping[str, str], name: str, unit: int = 1) -> int:
    return min(max(int(observed_quantity(amounts.get(name, "0")) * unit), 0), _HUGE)


def _number(labels: Mapping[str, str], name: str) -> int:
    value = labels.get(name, "")
    return int(value) if value.isdecimal() else 0
