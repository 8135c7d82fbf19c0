"""How much of cores and memory a worker gets: what administrators set for jobs that don't say it, and what was found.

Called by `queue` and `runtime` (the settings) and `job` (what was found). The rule is `sched.worker_size`'s.
"""

from __future__ import annotations

from enum import StrEnum

from .fields import Quantity
from .meta import SpecModel, StatusModel

LEAST_CPU, LEAST_MEMORY = "1", "1Gi"
"""Of a worker without GPUs, where nothing else is said."""


class WorkerSize(SpecModel):
    """An amount of each."""

    cpu: Quantity | None = None
    """Cores."""
    memory: Quantity | None = None
    """Bytes, for example 64Gi."""


class WorkerDefaults(SpecModel):
    """What workers get whose jobs don't say it."""

    per_gpu: WorkerSize = WorkerSize()
    """For each GPU of a worker. Absent: its share of a node."""
    without_gpus: WorkerSize = WorkerSize()
    """Of a worker without GPUs. Absent: 1 core and 1Gi."""


class SizeFrom(StrEnum):
    """Who said how much a worker gets."""

    JOB = "Job"
    QUEUE = "Queue"
    RUNTIME = "Runtime"
    GPU_SHARE = "GpuShare"
    DEFAULT = "Default"


class WorkerResources(StatusModel):
    """What each worker gets, worked out once, when the job is accepted: nodes, queues and runtimes that change later
    don't change it."""

    cpu: str
    """Cores."""
    cpu_from: SizeFrom = SizeFrom.JOB
    """Who says so: Job, Queue or Runtime; GpuShare: the smallest share of its GPUs on the nodes; Default: nothing
    else does."""
    memory: str
    """Bytes, for example 56Gi."""
    memory_from: SizeFrom = SizeFrom.JOB
    """As cpuFrom, of the memory."""
    shared_memory: str
    """Size of /dev/shm, part of the memory."""
