"""What the server says beyond the stored objects: usage beside queues and nodes, who one is, what streams carry."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.spec.event import Event
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import StatusModel
from stoker.spec.node import GPUNode
from stoker.spec.queue import Queue


class Usage(StatusModel):
    """What running jobs hold."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0


class QueueUsage(Usage):
    running: int = 0
    pending: int = 0
    held_gpus: int = 0
    """Of `gpus`: those of jobs that have failed and are kept for a look inside."""


class QueueView(Queue):
    usage: QueueUsage = QueueUsage()


class NodeView(GPUNode):
    usage: Usage = Usage()


class Whoami(StatusModel):
    """Whose token this is. Role: admin, user or reader. Projects: ('*',) for all."""

    name: str
    role: str
    projects: tuple[str, ...] = ()


class ServerVersion(StatusModel):
    version: str
    api_version: str = ""
    mode: str = "OneMachine"
    """`OneMachine` (`stoker up`) or `Cluster`."""


class JobEnd(StatusModel):
    phase: Phase
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The job as it is now, live progress included."""

    job: TrainingJob


@dataclass(frozen=True, slots=True)
class EventSeen:
    event: Event


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last word: the job has ended."""

    end: JobEnd


JobUpdate = JobChanged | EventSeen | JobEnded


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole lines of one worker's log. `offset`: bytes of the attempt's log up to and with this chunk."""

    worker: int
    attempt: int
    offset: int
    text: str
