"""What the SDK's streams yield: changes of a job, and pieces of a worker's log."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.spec.event import Event
from stoker.spec.job import TrainingJob
from stoker.spec.rest import JobEnd


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
