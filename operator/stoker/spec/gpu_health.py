"""GPUNodeHealth (`gpunodes`): what exporters report of a node's GPUs, and what an administrator says of them.

Named by its node; absent: all are healthy. The status is the api's alone, from the reports of that node's own exporter.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from .markers import Keyed
from .meta import Kind, Resource, SpecModel, StatusModel
from .names import API_VERSION

MOST_GPUS = 64
"""Of one node."""
MAX_TEXT = 256
MOST_BLAMES = 8
"""Of one GPU."""

Uuid = Annotated[str, Field(max_length=128)]
Moment = Annotated[datetime, AfterValidator(lambda at: at if at.tzinfo else at.replace(tzinfo=UTC))]
"""kubectl takes a time without a zone."""


class SickCause(StrEnum):
    """Why a GPU takes no new work."""

    OFF_THE_BUS = "OffTheBus"
    LOST = "Lost"
    UNCONTAINED_ERROR = "UncontainedError"
    CONTAINED_ERROR = "ContainedError"
    HARDWARE_FAULT = "HardwareFault"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    REMAP_FAILED = "RemapFailed"
    RECOVERY_ACTION = "RecoveryAction"
    REMAP_PENDING = "RemapPending"
    THROTTLED = "Throttled"
    STRAGGLER = "Straggler"


class GpuCause(StatusModel):
    """One thing that is wrong with a GPU."""

    code: str
    """OffTheBus, Lost (it can't be read), UncontainedError or ContainedError (of memory), HardwareFault (by other XIDs
    that mean the board), DeviceUnhealthy (its device plug-in says so), RemapFailed, RecoveryAction (what the driver
    asks for), RemapPending, Throttled (by the hardware), Straggler (it held back gangs); or what a newer version
    says."""
    since: Moment
    """When it was first seen, or seen again after it had been cleared."""
    message: str = ""
    """The same for people, for example 'XID 79'."""
    ends: Moment | None = None
    """It is over, and the GPU rests until then, and until it has passed a burn-in where there are any. Absent: it
    lasts."""


class GpuBlame(StatusModel):
    """A gang that the GPU held back: hotter than the others, which waited for it."""

    job_uid: Annotated[str, Field(max_length=64)]
    """Of the job."""
    attempt: int
    """The one that was held back."""
    at: Moment
    """When that was seen."""
    message: str = ""
    """The same for people."""


class Move(StrEnum):
    """What becomes of an attempt whose GPU is sick."""

    NOW = "now"
    """It is asked to save and to end, and goes on elsewhere."""
    CHECKPOINT = "checkpoint"
    """The same, once it has saved since."""
    STAY = "stay"
    """Nothing."""


class GpuHolder(StatusModel):
    """An attempt that has the GPU."""

    job_uid: Annotated[str, Field(max_length=64)]
    """Of the job."""
    attempt: Annotated[int, Field(ge=0, le=2**53)]
    """Its number."""


class GpuHealth(StatusModel):
    """One GPU as its node's exporter reads it."""

    uuid: str
    """NVIDIA's name of the very board."""
    index: int = 0
    """Its number on the node."""
    model: str = ""
    """Empty: it can't be read."""
    memory_bytes: int = 0
    """0: not known."""
    compute_capability: str | None = None
    """As NVIDIA numbers it. Absent: not known."""
    power_limit_watts: int | None = None
    """The limit that is enforced. Absent: not known."""
    uncorrected_errors: int | None = None
    """Of its memory, since its driver was loaded. Absent: not known."""
    causes: Annotated[tuple[GpuCause, ...], Keyed("code")] = ()
    """What is wrong with it; empty: nothing. Those that have been cleared don't count."""
    holders: tuple[GpuHolder, ...] = ()
    """While something is wrong: which attempts have it."""
    blames: Annotated[tuple[GpuBlame, ...], Keyed("jobUid")] = ()
    """Gangs that it held back lately, one entry a job."""


class GPUNodeHealthStatus(StatusModel):
    """What the node's exporter reports. The api's; written when it changes."""

    gpus: Annotated[tuple[GpuHealth, ...], Keyed("uuid")] = ()
    """All GPUs that the exporter reports, and those it no longer does whose causes an administrator is to clear."""


class Cordon(SpecModel):
    """What takes no new work until the entry is removed."""

    gpu: Uuid = ""
    """The GPU's uuid. Empty: the whole node."""
    reason: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    """Why, for people."""
    by: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    """Who said so to the api; burn-in: the operator, by what its test has found."""


class Cleared(SpecModel):
    """A GPU is healthy again: an administrator cleared it, or it has passed a burn-in."""

    gpu: Uuid
    """The GPU's uuid."""
    at: Moment
    """Causes that began until then don't count any more."""
    by: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    """Who said so to the api; burn-in: the operator, by what its test has found."""


class GPUNodeHealthSpec(SpecModel):
    """What an administrator says, and what burn-ins have found."""

    cordons: Annotated[tuple[Cordon, ...], Field(max_length=MOST_GPUS + 1)] = ()
    """GPUs, or the node, that take no new Stoker jobs. Other people's pods are not kept off."""
    cleared: Annotated[tuple[Cleared, ...], Field(max_length=MOST_GPUS)] = ()
    """GPUs that are healthy again."""


class GPUNodeHealth(Resource):
    """The health of one node's GPUs: what its exporter reports, what an administrator has cordoned or cleared. Absent:
    nothing is wrong."""

    api_version: str = API_VERSION
    kind: str = "GPUNodeHealth"
    spec: GPUNodeHealthSpec = GPUNodeHealthSpec()
    status: GPUNodeHealthStatus = GPUNodeHealthStatus()

    @property
    def cordon(self) -> Cordon | None:
        """Of the whole node."""
        return next((one for one in self.spec.cordons if not one.gpu), None)

    def cleared_at(self, uuid: str) -> datetime | None:
        """Until when its causes don't count."""
        return max((one.at for one in self.spec.cleared if one.gpu == uuid), default=None)

    def sick(self) -> Iterator[tuple[GpuHealth, tuple[GpuCause, ...]]]:
        """The GPUs with something wrong that counts, and what it is."""
        for gpu in self.status.gpus:
            cleared_at = self.cleared_at(gpu.uuid)
            causes = tuple(one for one in gpu.causes if cleared_at is None or one.since > cleared_at)
            if causes:
                yield gpu, causes

    def blamed(self) -> Iterator[GpuHealth]:
        """The GPUs that held back gangs, with the blames that an administrator has not cleared."""
        for gpu in self.status.gpus:
            cleared_at = self.cleared_at(gpu.uuid)
            blames = tuple(one for one in gpu.blames if cleared_at is None or one.at > cleared_at)
            if blames:
                yield gpu.model_copy(update={"blames": blames})


HEALTH = Kind(GPUNodeHealth, API_VERSION, "GPUNodeHealth", "gpunodes", namespaced=False)
