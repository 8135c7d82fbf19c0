"""What the SDK's streams yield: changes of a job, and pieces of a worker's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import BaseModel

from stoker.spec.event import Event
from stoker.spec.job import TrainingJob
from stoker.spec.rest import JobEnd

from .errors import unreadable
from .sse import SseFrame

M = TypeVar("M", bound=BaseModel)


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


class Parse(Protocol):
    def __call__(self, model: type[M], body: str, /) -> M: ...


class JobReader:
    """Turns frames of a job's events into updates; frames of a newer server are left aside."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse

    def __call__(self, frame: SseFrame) -> JobUpdate | None:
        match frame.event:
            case "job":
                return JobChanged(self._parse(TrainingJob, frame.data))
            case "event":
                return EventSeen(self._parse(Event, frame.data))
            case "end":
                return JobEnded(self._parse(JobEnd, frame.data))
        return None


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole lines of one worker's log. `offset`: bytes of the attempt's log up to and with this chunk."""

    worker: int
    attempt: int
    offset: int
    text: str


class LogReader:
    """Turns `log` frames into text as it was printed. A frame leaves out its last line's end, if that has one."""

    def __init__(self, worker: int, *, from_start: bool) -> None:
        self._worker = worker
        self._at: tuple[int, int | None] = (0, 0 if from_start else None)

    def __call__(self, frame: SseFrame) -> LogChunk | None:
        if frame.event != "log":
            return None
        number, _, text_offset = (frame.id or "").partition(".")
        if not (number.isdecimal() and text_offset.isdecimal()):
            raise unreadable("the server", f"position {frame.id!r} of a log")
        attempt, offset = int(number), int(text_offset)
        before = self._at[1] if attempt == self._at[0] or not self._at[0] else 0
        self._at = (attempt, offset)
        # A piece of an overlong line, and a last line without an end, fill their bytes exactly.
        whole = before is not None and offset - before == len(frame.data.encode())
        return LogChunk(self._worker, attempt, offset, frame.data if whole else frame.data + "\n")
