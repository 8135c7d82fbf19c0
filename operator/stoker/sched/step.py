"""The words of the lifecycle: what a step may ask of the operator, and the operator's times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.spec.job import TrainingJobStatus
from stoker.spec.pod import Pod


@dataclass(frozen=True)
class Settings:
    """The operator's times. Units: seconds."""

    start_timeout_s: float = 300.0
    """A gang that is not fully running by then is withdrawn as a whole."""
    blame_s: float = 300.0
    """How long a job avoids a node that lost, refused or did not start one of its workers; 0: never."""


@dataclass(frozen=True)
class Note:
    """Something to tell people about (an Event)."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Step:
    """What to do next.

    Invariant: with `status` set, the pod fields are empty.
    """

    status: TrainingJobStatus | None = None
    note: Note | None = None
    create: tuple[int, ...] = ()
    """Workers whose pods of the current attempt are missing."""
    stop: tuple[Pod, ...] = ()
    """Pods to delete with the job's grace; their processes save and end."""
    release: tuple[Pod, ...] = ()
    """Ended pods whose outcome is in the status: take our finalizer off."""
    discard: tuple[Pod, ...] = ()
    """Ended, released pods of former attempts: delete."""
    wake_at: datetime | None = None
    """Ask again then, even if nothing changes."""
