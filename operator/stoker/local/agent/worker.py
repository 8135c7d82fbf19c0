"""One worker as the agent knows it: which stage of its life it is in, and its supervisor's handle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .spawning import Handle


class Stage(Enum):
    STARTING = auto()  # spawned (or found with its lock held); started.json has not been seen
    RUNNING = auto()  # started.json stands
    DOWN = auto()  # its supervisor has ended; what it left is to be cleared
    BURIED = auto()  # no process is left, its leases are free; its pod's status is to be written


@dataclass(slots=True, eq=False)
class Worker:
    pod_uid: str
    job_uid: str
    grace_s: float
    stage: Stage
    handle: Handle | None = None
    started_at: float | None = None
    """Units: Unix seconds."""
    running_written: bool = False
    stop_sent: bool = False
    kill_at: float | None = None
    """Units: the clock's monotonic seconds; set with the first stop signal."""

    @property
    def alive(self) -> bool:
        return self.stage in (Stage.STARTING, Stage.RUNNING)
