"""The REST contract's nodes: what is asked and answered of them beside the stored object. All else: `rest`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .gpu_health import MAX_TEXT
from .meta import SpecModel, StatusModel
from .node import GPUNode


class NodeUsage(StatusModel):
    """What running jobs hold of a node. Units: GPUs, thousandths of a core, bytes."""

    gpus: int = 0
    """GPUs."""
    cpu_milli: int = 0
    """Thousandths of a core."""
    memory_bytes: int = 0
    """Bytes."""


class ExporterState(StrEnum):
    """Whether a node's exporter reports how its GPUs are."""

    REPORTS = "Reports"
    SILENT = "Silent"
    MISSING = "Missing"


class BurnInState(StrEnum):
    """Where the test of a sick GPU stands."""

    WAITING = "Waiting"
    TESTING = "Testing"
    FAILED = "Failed"


class NodeBurnIn(StatusModel):
    """The test of one sick GPU."""

    gpu: str
    """The GPU's uuid."""
    index: int = 0
    """Its number on the node."""
    state: BurnInState
    """Waiting, Testing, Failed (the GPU is closed until an administrator opens it)."""
    due_at: datetime | None = None
    """Waiting: from when on it may be tested, once it is free."""
    job: str = ""
    """Testing: the job, as project/name."""
    message: str = ""
    """Failed: what was found."""


class NodeWithUsage(GPUNode):
    usage: NodeUsage = NodeUsage()
    exporter: ExporterState | None = None
    """Of this node: Reports, Silent (it has reported, but not for 3 minutes), Missing (it never has). Absent: it has no
    GPU that is measured."""
    burn_ins: tuple[NodeBurnIn, ...] = ()
    """Of the GPUs that must be tested before they take jobs again, or that have failed their test."""


class NodeList(StatusModel):
    items: tuple[NodeWithUsage, ...]
    """By name."""


class NodeCordon(SpecModel):
    """The body of `POST /v1/nodes/{name}/cordon`."""

    gpu: Annotated[str, Field(max_length=128)] = ""
    """The GPU's uuid, or its number on the node. Empty: the whole node."""
    reason: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    """Why, for people."""


class NodeUncordon(SpecModel):
    """The body of `POST /v1/nodes/{name}/uncordon`."""

    gpu: Annotated[str, Field(max_length=128)] = ""
    """The GPU's uuid, or its number on the node: it is healthy again, whatever was wrong until now. Empty: the node is
    open again; what is wrong with its GPUs stays."""
