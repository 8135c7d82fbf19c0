"""GPUNode: what the node agent (later the exporter too) knows of a node."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from .gpu_health import GpuHealth
from .meta import Kind, Resource, StatusModel
from .names import API_VERSION, GPU_RESOURCE

CORDONED = "cordoned"
"""GPUNodeStatus.message of a node that its administrator has closed to new work."""

UNKNOWN_MODEL = "unknown"
"""Gpu.model where it is not known: no GPU Feature Discovery runs there (yet). Its memory is 0 then."""


class Gpu(StatusModel):
    uuid: str
    """Empty where it is not known: Kubernetes knows only how many GPUs a node has."""
    index: int
    """Its number on the node."""
    model: str
    """As its driver names it; `unknown` where it is not known."""
    memory_bytes: int
    """Of the device; 0 where it is not known."""
    compute_capability: str | None = None
    """What its CUDA cores can do (9.0). Absent: not known."""
    resource: str = GPU_RESOURCE
    """What the node's device plug-in calls it."""
    part: bool = False
    """A slice of a GPU, or one that pods share: two of them may be one physical GPU."""
    simulated: bool = False
    """Offered by `stoker up --virtual-gpus`: a slot, not a device."""
    power_limit_watts: int = 0
    """The limit that is enforced; 0: not known."""
    blamed: bool = False
    """It held back a gang lately: on one machine others are leased first."""
    unavailable: str = ""
    """Why it can't be leased ("in use by foreign process 4242 (python)", "lost", "sick: XID 79 …"); empty: it can."""


def capability_number(text: str | None) -> int:
    """A compute capability as a number that compares: 86 for 8.6; 0 where it is not known."""
    major, _, minor = (text or "").partition(".")
    known = len(major) in (1, 2) and major.isdecimal() and (not minor or (len(minor) == 1 and minor.isdecimal()))
    return int(major) * 10 + int(minor or "0") if known else 0


def capability_text(number: int) -> str:
    """The other way round: 86 is 8.6."""
    return f"{number // 10}.{number % 10}"


class Taint(StatusModel):
    """Source: Kubernetes core/v1 Taint."""

    key: str
    """What kind of pods it keeps away."""
    value: str = ""
    """More of that."""
    effect: str
    """NoSchedule, PreferNoSchedule or NoExecute."""


class GPUNodeStatus(StatusModel):
    ready: bool = False
    """Whether anything may be placed there now: the kubelet reports, and the node is not cordoned."""
    message: str = ""
    """Why it is not ready."""
    lost_since: datetime | None = None
    """Since when its kubelet has not reported (Ready is False or Unknown)."""
    taints: tuple[Taint, ...] = ()
    """Which pods are kept away; those that tolerate it are not."""
    extended: Mapping[str, int] = {}
    """Other countable resources that workers may share (`rdma/hca`, …)."""
    cpu_milli: int = 0
    """What workers may share, in thousandths of a core."""
    memory_bytes: int = 0
    """What workers may share."""
    gpus: tuple[Gpu, ...] = ()
    """Its GPUs, by index."""
    sick: tuple[GpuHealth, ...] = ()
    """The GPUs with something wrong that counts: `gpu_health`."""
    blamed: tuple[GpuHealth, ...] = ()
    """The GPUs that held back gangs lately; they take new work all the same."""


class GPUNode(Resource):
    api_version: str = API_VERSION
    kind: str = "GPUNode"
    status: GPUNodeStatus = GPUNodeStatus()
    """What is known of it now."""


NODES = Kind(GPUNode, API_VERSION, "GPUNode", "nodes", namespaced=False)
