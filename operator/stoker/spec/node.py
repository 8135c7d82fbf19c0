"""GPUNode: what the node agent (later the exporter too) knows of a node."""

from __future__ import annotations

from .meta import Kind, Resource, StatusModel
from .names import API_VERSION


class Gpu(StatusModel):
    uuid: str
    index: int
    model: str
    memory_bytes: int
    compute_capability: str | None = None
    simulated: bool = False
    """Offered by `stoker up --virtual-gpus`: a slot, not a device."""
    unavailable: str = ""
    """Why it can't be leased ("in use by foreign process 4242 (python)", "lost"); empty: it can."""


class GPUNodeStatus(StatusModel):
    ready: bool = False
    message: str = ""
    cpu_milli: int = 0
    """What workers may share, in thousandths of a core."""
    memory_bytes: int = 0
    gpus: tuple[Gpu, ...] = ()


class GPUNode(Resource):
    api_version: str = API_VERSION
    kind: str = "GPUNode"
    status: GPUNodeStatus = GPUNodeStatus()


NODES = Kind(GPUNode, API_VERSION, "GPUNode", "gpunodes", namespaced=False)
