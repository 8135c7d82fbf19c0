"""What jobs have had of GPUs: the receipts of exporters, and a job's usage made of them.

The exporter has its own plain writing of the same JSON (`stoker.exporter.receipts`), for it knows no pydantic;
`tests/contract/test_receipts.py` holds both against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from .meta import StatusModel
from .worker import MAX_UNIX_S

MAX_RECEIPTS = 2048
"""In one report."""
MAX_COUNT = 2**53
"""Whole numbers that JSON and every database take."""
THROTTLE_REASONS = ("sw_power_cap", "hw_power_brake", "sw_thermal", "hw_thermal", "sync_boost")
HELD_DOWN = ("hw_thermal", "sw_thermal", "hw_power_brake")
"""Those of them by which clocks are low that should not be: not the power limit, which is how a busy GPU runs."""
_ByName = Annotated[Mapping[Annotated[str, Field(max_length=32)], Annotated[float, Field(ge=0)]], Field(max_length=16)]


class GpuReceipt(StatusModel):
    """What one worker has had of one GPU since the ledger began; of one key the highest seq counts."""

    model_config = ConfigDict(allow_inf_nan=False)

    ledger: str = Field(min_length=1, max_length=64)
    """The exporter's file in which it is counted; a new one begins at zero."""
    node: str = Field(max_length=253)
    """Where the GPU is."""
    uuid: str = Field(min_length=1, max_length=128)
    """The GPU's."""
    job_uid: str = Field(min_length=1, max_length=64)
    """Whose worker had it."""
    attempt: int = Field(ge=0, le=MAX_COUNT)
    """Of the job."""
    worker: int = Field(ge=0, le=MAX_COUNT)
    """Its number, from 0."""
    project: str = Field(max_length=63)
    """The job's."""
    job_name: str = Field(max_length=63)
    """The job's."""
    pod_uid: str = Field(default="", max_length=64)
    """The worker's."""
    model: str = Field(default="", max_length=128)
    """The GPU's, as its driver names it."""
    seq: int = Field(ge=0, le=MAX_COUNT)
    """Counts the receipts of one worker and GPU."""
    begin_at: float = Field(ge=0, le=MAX_UNIX_S)
    """Unix time in seconds."""
    at: float = Field(ge=0, le=MAX_UNIX_S)
    """Unix time in seconds."""
    final: bool = False
    """The last one: the worker has ended."""
    allocated_s: float = Field(ge=0)
    """Seconds that the GPU was the worker's."""
    unobserved_s: float = Field(default=0.0, ge=0)
    """Of these: about which nothing is known."""
    busy_s: float | None = Field(default=None, ge=0)
    """In which a kernel ran. Absent: not known."""
    sm_active_s: float | None = Field(default=None, ge=0)
    """SM activity, summed. Absent: the GPU does not report it."""
    tensor_active_s: float | None = Field(default=None, ge=0)
    """Tensor cores' activity, summed. Absent: the GPU does not report it."""
    dram_active_s: float | None = Field(default=None, ge=0)
    """Memory's activity, summed. Absent: the GPU does not report it."""
    idle_s: _ByName = {}
    """Seconds by class: no_process, no_activity, low_activity."""
    throttled_s: _ByName = {}
    """Seconds by reason: sw_power_cap, hw_power_brake, sw_thermal, hw_thermal, sync_boost."""
    energy_j: float | None = Field(default=None, ge=0)
    """Joules of the GPU. Absent: not known."""
    unobserved_energy_j: float = Field(default=0.0, ge=0)
    """Of these: in time of which nothing else is known, while no other pod held the GPU."""
    method: str = Field(default="exclusive", max_length=32)
    """How the worker's share came about: exclusive, even, sm_share (energy by what each pod did), mig_slices."""
    memory_peak_bytes: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """The most that was in use. Absent: not known."""
    memory_total_bytes: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Of the GPU. Absent: not known."""
    idle_since: float | None = Field(default=None, ge=0, le=MAX_UNIX_S)
    """Since when it is idle, Unix time in seconds. Absent: it is not."""
    simulated: bool = False
    """A slot of `--virtual-gpus`, no device."""


class UsageState(StrEnum):
    RUNNING = "running"
    """An attempt is under way."""
    FINAL = "final"
    """Every GPU of every attempt has its last receipt."""
    INCOMPLETE = "incomplete"
    """The job has ended, and receipts are missing (a node was lost, an exporter did not run)."""


class JobUsage(StatusModel):
    """What the job has had of GPUs, over all its attempts. The api's."""

    state: UsageState = UsageState.RUNNING
    """running, final, or incomplete: the job has ended but receipts are missing."""
    at: datetime | None = None
    """The newest receipt's moment."""
    gpu_seconds: float = 0.0
    """Seconds that GPUs were the job's."""
    busy_seconds: float | None = None
    """In which a kernel ran. Absent: not known."""
    sm_active_seconds: float | None = None
    """SM activity, summed. Absent: the GPUs don't report it (before Hopper)."""
    tensor_active_seconds: float | None = None
    """Tensor cores' activity, summed. Absent: the GPUs don't report it."""
    idle_seconds: Mapping[str, float] = {}
    """By class: no_process, no_activity, low_activity."""
    unobserved_seconds: float = 0.0
    """About which nothing is known; never counted as idle."""
    throttled_seconds: Mapping[str, float] = {}
    """By reason: sw_power_cap, hw_power_brake, sw_thermal, hw_thermal, sync_boost."""
    energy_joules: float | None = None
    """Of the GPUs alone. Absent: not known."""
    unobserved_energy_joules: float | None = None
    """Of these: used while nothing else was known of a GPU that only this job held. Absent: none."""
    memory_peak_bytes: int | None = None
    """The most that one GPU held."""
    memory_total_bytes: int | None = None
    """Of that GPU."""
    idle_since: datetime | None = None
    """Since when all of the running attempt's GPUs have been idle. Absent: they are not."""
    simulated: bool = False
    """The GPUs were slots of `--virtual-gpus`, not devices."""
