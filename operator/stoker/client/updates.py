"""What the SDK's streams of a job yield: its changes, its events, its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import BaseModel

from stoker.spec.event import Event
from stoker.spec.rest import JobEnd

from .job import Job
from .sse import SseFrame

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The job as it is now, live progress included."""

    job: Job


@dataclass(frozen=True, slots=True)
class EventSeen:
    event: Event


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last word: the job has ended."""

    end: JobEnd


JobUpdate = JobChanged | EventSeen | JobEnded


class Parse(Protocol):
    def __call__(self, model: type[M], body: str, /) -> M: ...


class JobReader:
    """Turns frames of a job's events into updates; frames of a newer server are left aside."""

    def __init__(self, parse: Parse, job: Callable[[str], Job]) -> None:
        self._parse, self._job = parse, job

    def __call__(self, frame: SseFrame) -> JobUpdate | None:
        match frame.event:
            case "job":
                return JobChanged(self._job(frame.data))
            case "event":
                return EventSeen(self._parse(Event, frame.data))
            case "end":
                return JobEnded(self._parse(JobEnd, frame.data))
        return None
