"""Queue: who may use how much at a time, and what its jobs use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from .fields import DISTINCT, DnsLabel, Duration, GpuType, Quantity
from .meta import Conditions, Kind, Resource, SpecModel, StatusModel
from .names import API_VERSION, DEFAULT_QUEUE, FINALIZER_IN_USE, RESERVED_TYPES
from .quantity import cpu_milli, memory_bytes
from .worker_size import WorkerDefaults

Amounts = tuple[int | None, int | None, int | None]
"""GPUs, thousandths of a core, bytes. None: not named."""
NOT_NAMED: Amounts = (None, None, None)
NOT_DEFAULT_SAYS = f"'{DEFAULT_QUEUE}' can't be a parent: jobs that name no queue run in it"


class QueueResources(SpecModel):
    """Amounts that jobs of a queue, and of those below it, hold together."""

    gpus: int | None = Field(default=None, ge=0, le=1_000_000)
    """Whole GPUs."""
    cpu: Quantity | None = None
    """Cores."""
    memory: Quantity | None = None
    """Bytes, for example 2Ti."""
    gpu_types: (
        Annotated[Mapping[GpuType, Annotated[int, Field(ge=0, le=1_000_000, strict=True)]], Field(max_length=32)] | None
    ) = None
    """GPUs by type, for example h100: 16. They count in gpus too."""

    @property
    def of_types(self) -> Mapping[str, int]:
        """As gpu_types, without names that no type has: stored before they were refused, they count for nothing."""
        return {name: gpus for name, gpus in (self.gpu_types or {}).items() if name not in RESERVED_TYPES}

    @property
    def amounts(self) -> Amounts:
        """Of all but types."""
        return (
            self.gpus,
            None if self.cpu is None else cpu_milli(self.cpu),
            None if self.memory is None else memory_bytes(self.memory),
        )

    @property
    def by_resource(self) -> dict[str, int]:
        """Those that are named: gpus, cpu, memory, and types by their names."""
        named = zip(("gpus", "cpu", "memory"), self.amounts, strict=True)
        return {resource: amount for resource, amount in named if amount is not None} | dict(self.of_types)


NO_RESOURCES = QueueResources()


def own_gpus(guarantee: int | None, of_types: Iterable[tuple[int, int | None]]) -> int:
    """How many of a queue's GPUs are not borrowed. `guarantee`: of any type; `of_types`: of each type (held,
    guaranteed)."""
    return max(guarantee or 0, sum(min(held, guaranteed or 0) for held, guaranteed in of_types))


VALID_CONDITION = "Valid"


class WithinQueue(StrEnum):
    """Which running jobs of a queue may be stopped for a waiting one of it."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class Discipline(StrEnum):
    """In which order a queue's jobs of one priority run."""

    FIFO = "fifo"
    LAS = "las"


class Preemption(SpecModel):
    """When running jobs of the queue are stopped, after saving, for others; they go on later."""

    within_queue: WithinQueue = WithinQueue.NEVER
    """LowerPriority: a waiting job that can't start has jobs of lower priority stopped, if it can start then."""
    min_runtime: Duration | None = None
    """None of its jobs is stopped for another before its attempt has run so long. Absent: no such time."""


class QueueSpec(SpecModel):
    """Who may use the queue, and how much at a time."""

    parent: DnsLabel | None = None
    """The queue above. What this queue's jobs hold counts in all queues above it; jobs run in queues that have none
    below."""
    limit: QueueResources = QueueResources()
    """The most that may be held. Absent: no limit of that kind."""
    guarantee: QueueResources = QueueResources()
    """While it holds less, its jobs go before those of queues that hold more than theirs. What it does not use is lent.
    The guarantees of the queues below come to no more than this. Absent: none of that kind."""
    weight: int = Field(default=1, ge=1, le=1_000_000, strict=True)
    """Its part beside the other queues of its parent, where guarantees leave open who goes first."""
    projects: Annotated[tuple[DnsLabel, ...], *DISTINCT] | None = Field(default=None, max_length=1024)
    """Who may submit here. Absent: every project."""
    highest_priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """The highest priority a job may ask for here. Absent: any."""
    reservation_budget: Annotated[float, Field(ge=0, le=100, strict=True)] | None = None
    """Nodes are kept for a job that waits long until they stood idle for this share of its own GPU-hours of waiting.
    0: never. Absent: 0.05, or 0.02 with discipline las."""
    preemption: Preemption = Preemption()
    discipline: Discipline = Discipline.FIFO
    """The order of its jobs of one priority. fifo: those that have waited longer go first. las: those that have had the
    fewest GPU-hours so far; running jobs that have had many more are stopped for them, after saving."""
    defaults: WorkerDefaults = WorkerDefaults()
    """What workers of its jobs get that don't say it themselves; goes before what their runtime says."""
    ttl_after_finished: Duration | None = None
    """Its jobs that don't say it themselves are deleted, with their logs, this long after they have ended; those that
    have ended already, too. Absent: as the operator is set up."""

    @property
    def budget(self) -> float:
        """`reservation_budget`, or its default: las stops running jobs for a gang, so fewer nodes need idle for it."""
        if self.reservation_budget is not None:
            return self.reservation_budget
        return 0.02 if self.discipline is Discipline.LAS else 0.05

    @field_validator("parent")
    @classmethod
    def _not_default(cls, parent: str | None) -> str | None:
        if parent == DEFAULT_QUEUE:
            raise ValueError(NOT_DEFAULT_SAYS)
        return parent


class QueueAmount(StatusModel):
    """How much some of a queue's jobs come to."""

    jobs: int = 0
    """How many they are."""
    gpus: int = 0
    """Whole GPUs."""
    cpu: str = "0"
    """Cores."""
    memory: str = "0"
    """Bytes, for example 2Ti."""
    gpu_types: Mapping[str, int] = {}
    """The GPUs by type, where they are placed on one."""

    @property
    def by_resource(self) -> dict[str, int]:
        """As of a limit."""
        return {**self.gpu_types, "gpus": self.gpus, "cpu": cpu_milli(self.cpu), "memory": memory_bytes(self.memory)}


class DecayedUsage(StatusModel):
    """What a queue's jobs held on average of late: the longer ago, the less it counts."""

    gpus: float = 0.0
    """Not whole: 2.5 of 10 GPUs for a quarter of the time."""
    cpu: str = "0"
    """Cores."""
    memory: str = "0"
    """Bytes, for example 2Ti."""
    gpu_types: Mapping[str, float] = {}
    """The GPUs by type, where they were placed on one."""
    at: datetime | None = None
    """Worked out then."""

    @property
    def amounts(self) -> tuple[float, float, float]:
        """GPUs of all types, thousandths of a core, bytes."""
        return self.gpus, cpu_milli(self.cpu), memory_bytes(self.memory)


class QueueStatus(StatusModel):
    """What the queue's jobs use and wait for. The operator's; at most 5 seconds old."""

    used: QueueAmount = QueueAmount()
    """Held by jobs that have a place: starting, running, stopping; with those of the queues below. The limit is on
    this."""
    running: QueueAmount = QueueAmount()
    """The part of it whose workers all run."""
    pending: QueueAmount = QueueAmount()
    """Asked for by queued jobs."""
    decayed_usage: DecayedUsage = DecayedUsage()
    """What it held on average of late, with the queues below; it counts in the order between queues. At most a minute
    old, unless nearly nothing of it has changed."""
    conditions: Conditions = ()
    """Active: it takes new jobs. False while it is being deleted and jobs still use it. Valid: False if its parent
    does not count, because it is missing or in a cycle, or its guarantee, because its parent's is too small."""

    @property
    def problem(self) -> str:
        """What is wrong with its spec, for people; empty: nothing."""
        invalid = (one for one in self.conditions if one.type == VALID_CONDITION and one.status == "False")
        return next((one.message for one in invalid), "")


class Queue(Resource):
    """A queue of training jobs: what its jobs may hold together, and which projects may submit to it."""

    api_version: str = API_VERSION
    kind: str = "Queue"
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()

    def closed_to(self, created_at: datetime | None) -> bool:
        """It is being deleted, and a job made at that time came too late."""
        deleted_at = self.metadata.deletion_timestamp
        return deleted_at is not None and (created_at is None or created_at > deleted_at)


def protected(queue: Queue) -> Queue:
    """The queue with the finalizer that keeps it while jobs use it."""
    return _with_finalizers(queue, (*released(queue).metadata.finalizers, FINALIZER_IN_USE))


def released(queue: Queue) -> Queue:
    """The queue without it."""
    return _with_finalizers(queue, tuple(name for name in queue.metadata.finalizers if name != FINALIZER_IN_USE))


def _with_finalizers(queue: Queue, finalizers: tuple[str, ...]) -> Queue:
    return queue.model_copy(update={"metadata": queue.metadata.model_copy(update={"finalizers": finalizers})})


def deletion_message(users: int) -> str:
    """Why a deleted queue is still there."""
    what = "1 job that has not ended uses it" if users == 1 else f"{users} jobs that have not ended use it"
    return f"{what}: it takes no new jobs, and goes with the last of them"


QUEUES = Kind(Queue, API_VERSION, "Queue", "queues", namespaced=False)
