"""Why a job is where it is, as data: stable codes, numbers, and sentences for people."""

from __future__ import annotations

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
    NEVER_FITS = "NeverFits"
    NO_CAPACITY = "NoCapacity"
    GUARANTEE_LENT = "GuaranteeLent"
    NODES_BLAMED = "NodesBlamed"
    BEHIND_RESERVATION = "BehindReservation"
    RESERVATION_SPENT = "ReservationSpent"
    PREEMPTING = "Preempting"
    PREEMPTED = "Preempted"
    BACKING_OFF = "BackingOff"
    SUSPENDED = "Suspended"
    # on the way
    PLACED = "Placed"
    WORKERS_STARTING = "WorkersStarting"
    IMAGE_PULLING = "ImagePulling"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    NAME_TAKEN = "NameTaken"
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


MOST_JOBS = 20
"""A blocker names at most."""


class Blocker(StatusModel):
    """One thing that keeps a job from starting, with its numbers."""

    code: Code
    message: str
    resource: str | None = None
    """gpus, cpu (cores), memory (bytes)."""
    requested: float | None = None
    available: float | None = None
    short: float | None = None
    """requested - available: the job starts once this much more is free, all else equal."""
    where: str | None = None
    """A queue's or node's name."""
    jobs: tuple[str, ...] = ()
    """Who holds it, or is stopped for it: project/name, at most 20."""


class Explanation(StatusModel):
    """The whole answer of `stoker why`."""

    phase: str
    summary: str
    blockers: tuple[Blocker, ...] = ()
    position: int | None = None
    """1 = next in its queue."""
    hints: tuple[str, ...] = ()
    """What would start it, each a sentence that holds if done."""
