"""Why a job is where it is, as data: stable codes, numbers, and sentences for people."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from .meta import StatusModel


class Code(StrEnum):
    """Stable reason codes; they stand in status, events, metrics and `stoker why`."""

    # waiting
    SUBMITTED = "Submitted"
    QUEUE_MISSING = "QueueMissing"
    PROJECT_NOT_ALLOWED = "ProjectNotAllowed"
    PRIORITY_TOO_HIGH = "PriorityTooHigh"
    QUEUE_LIMIT = "QueueLimit"
    RUNTIME_MISSING = "RuntimeMissing"
    DATA_MISSING = "DataMissing"
    SIZE_UNKNOWN = "SizeUnknown"
    NEVER_FITS = "NeverFits"
    NO_CAPACITY = "NoCapacity"
    GUARANTEE_LENT = "GuaranteeLent"
    MIN_RUNTIME = "MinRuntime"
    NODES_BLAMED = "NodesBlamed"
    BEHIND_RESERVATION = "BehindReservation"
    RESERVATION_SPENT = "ReservationSpent"
    PREEMPTING = "Preempting"
    PREEMPTED = "Preempted"
    RECLAIMED = "Reclaimed"
    RESIZED = "Resized"
    GPU_SICK = "GpuSick"
    BACKING_OFF = "BackingOff"
    SUSPENDED = "Suspended"
    # on the way
    PLACED = "Placed"
    WORKERS_STARTING = "WorkersStarting"
    DATA_FETCHING = "DataFetching"
    IMAGE_PULLING = "ImagePulling"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    NAME_TAKEN = "NameTaken"
    SECRET_MISSING = "SecretMissing"
    POD_UNSCHEDULABLE = "PodUnschedulable"
    POD_REJECTED = "PodRejected"
    WORKERS_RUNNING = "WorkersRunning"
    HELD = "Held"
    STALLED = "Stalled"
    STOPPING = "Stopping"
    # ended
    COMPLETED = "Completed"
    CANCELLED = "Cancelled"
    FAILED = "Failed"
    RETRIES_EXHAUSTED = "RetriesExhausted"


class HintCode(StrEnum):
    """Codes of what `stoker why` suggests or warns of; no job's status has them."""

    WOULD_START = "WouldStart"
    NO_CHECKPOINT = "NoCheckpoint"
    GROWS = "Grows"
    RETRIES = "Retries"
    CAUSE = "Cause"


MOST_JOBS = 20
"""A reason names at most."""


class Change(StrEnum):
    """What can be changed so that a job starts."""

    # a field of the job's spec; the value is what to set it to
    GPUS_PER_WORKER = "gpusPerWorker"
    WORKERS = "workers"
    ELASTIC_MIN = "elastic.min"
    TOPOLOGY = "topology"
    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"
    QUEUE = "queue"
    PREEMPTIBLE = "preemptible"
    SPEC = "spec"
    """Several fields together: the value has each."""
    # a limit of the queue that the reason names; the value is what to set it to
    LIMIT_GPUS = "queue.limit.gpus"
    LIMIT_CPU = "queue.limit.cpu"
    LIMIT_MEMORY = "queue.limit.memory"
    LIMIT_GPU_TYPES = "queue.limit.gpuTypes"
    # the cluster; the value names the pods (project/name) or nodes
    DELETE_PODS = "deletePods"
    UNCORDON = "uncordon"
    RESTORE_NODES = "restoreNodes"
    # nothing but to wait; the value is until when
    WAIT = "wait"


Value = bool | int | str | tuple[str, ...] | dict[str, str]


class Reason(StatusModel):
    """One thing that keeps a job from starting, or would start it, as data. `message` says the same for people."""

    code: Code | HintCode
    """Stable; its fields are what applies of those below."""
    message: str
    """The same, for people."""
    resource: str | None = None
    """gpus, cpu (cores), memory (bytes), gpus.h100 (of that type), or the name of an extended resource."""
    queue: str | None = None
    """Whose limit, guarantee or rule it is."""
    runtime: str | None = None
    """Whose rule it is."""
    nodes: tuple[str, ...] = ()
    """Where: at most 20."""
    short: float | None = None
    """How much of `of` is missing: the job starts once this much more is free, all else equal. GuaranteeLent: how much
    of its guarantee the queue does not hold."""
    of: float | None = None
    """What is asked for. GuaranteeLent: the guarantee."""
    borrowed: dict[str, float] = {}
    """Queue → how much more than its guarantee it holds."""
    jobs: tuple[str, ...] = ()
    """Who holds it, or is stopped for it: project/name, at most 20."""
    until: datetime | None = None
    """When it is over by itself."""
    change: Change | None = None
    """With this change the job would start now (WAIT: then)."""
    value: Value | None = None
    """What to set it to, which pods or nodes are meant, or until when to wait."""


class QueueLevel(StatusModel):
    """A queue as it stands: the job's own or one above it. Resources are named as in a Reason."""

    name: str
    """Of the queue."""
    held: dict[str, float]
    """By its jobs and those of the queues below; room that is kept for jobs that preempt is in it."""
    limit: dict[str, float]
    """The most that its jobs may hold."""
    guarantee: dict[str, float]
    """What counts of it."""
    problem: str = ""
    """Its condition Valid, where that is False: why its parent or guarantee does not count."""
    share: float = 0.0
    """What it holds, and held on average of late, of `share_of` of the whole cluster, divided by its weight: of the
    queues of one parent the one with the least goes first, unless guarantees decide."""
    share_of: str | None = None
    """The resource of which that is largest. None: it holds and has held nothing."""


class Explanation(StatusModel):
    """The whole answer of `stoker why`."""

    phase: str
    """Of the job."""
    summary: str
    """All of it in a sentence or two."""
    blockers: tuple[Reason, ...] = ()
    """What keeps a waiting job from starting: all of it."""
    position: int | None = None
    """1 = next in its queue."""
    hints: tuple[Reason, ...] = ()
    """Of a waiting job: what would start it, each tried out (WouldStart). Of others: what can be done, what to look
    out for."""
    queues: tuple[QueueLevel, ...] = ()
    """The job's queue and those above it, as they stand now; also of a job that runs or has failed."""
