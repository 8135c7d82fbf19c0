"""Records Events about jobs, in the background: the work never waits for them.

A recorder that can't write (the store is away, the queue is full) drops the event and counts it: events are a courtesy,
the truth is in the job's status.
"""

from __future__ import annotations

import asyncio
import itertools

from stoker.life.step import Note
from stoker.spec.event import EVENTS, MESSAGE_MAX, Event, EventType, Subject, event_about
from stoker.spec.job import JOBS, TrainingJob
from stoker.store.clock import Clock
from stoker.store.port import Store, StoreError

_LIMIT = 10_000
_AT_ONCE = 8
"""So few that no start stands behind them where the API server is busy."""


class Recorder:
    """Writes events in the order they were recorded. One that still waits for its turn when the next about the same
    object comes is said by that one too, except warnings: a busy API server has fewer to take."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[int, Event] = {}
        self._newest: dict[str, int] = {}
        """Object (uid) → the last of its events, if that waits and is no warning."""
        self._numbers = itertools.count()
        self._came = asyncio.Event()
        self.dropped = 0

    def record(self, job: TrainingJob, note: Note) -> None:
        """Record one event about a job."""
        self.record_about(_subject(job), note)

    def record_about(self, subject: Subject, note: Note) -> None:
        """Record one event. Its name is made from what it says, so saying it twice is one event."""
        message, former = note.message, self._newest.pop(subject.uid, None)
        if former is not None and not note.warning:
            both = f"{self._waiting[former].message}; {message}"
            if len(both) <= MESSAGE_MAX:
                message = both
                del self._waiting[former]
        if len(self._waiting) >= _LIMIT:
            self.dropped += 1
            return
        now = self._clock.now()
        event = event_about(
            subject,
            note.reason,
            message,
            at=now,
            mark=f"{now.timestamp() * 1e6:.0f}",
            component="stoker-operator",
            kind=EventType.WARNING if note.warning else EventType.NORMAL,
        )
        number = next(self._numbers)
        self._waiting[number] = event
        if not note.warning:
            self._newest[subject.uid] = number
        self._came.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._came.wait()
            events = [self._take(number) for number in tuple(itertools.islice(self._waiting, _AT_ONCE))]
            if not self._waiting:
                self._came.clear()
            done = await asyncio.gather(
                *(self._store.create(EVENTS, event) for event in events), return_exceptions=True
            )
            for outcome in done:
                if isinstance(outcome, StoreError):
                    self.dropped += 1
                elif isinstance(outcome, BaseException):
                    raise outcome

    def _take(self, number: int) -> Event:
        event = self._waiting.pop(number)
        if self._newest.get(event.involved_object.uid) == number:
            del self._newest[event.involved_object.uid]
        return event


def _subject(job: TrainingJob) -> Subject:
    return Subject(
        kind=job.kind or JOBS.kind, api_version=job.api_version or JOBS.api_version, key=job.key, uid=job.uid
    )
