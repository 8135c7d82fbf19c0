"""Records Events about jobs, in the background: the work never waits for them.

A recorder that can't write (the store is away, the queue is full) drops the event and counts it: events are a courtesy,
the truth is in the job's status.
"""

from __future__ import annotations

import asyncio

from stoker.life.step import Note
from stoker.spec.event import EVENTS, Event, EventType, Subject, event_about
from stoker.spec.job import JOBS, TrainingJob
from stoker.store.clock import Clock
from stoker.store.port import Store, StoreError

_LIMIT = 10_000
_AT_ONCE = 8
"""So few that no start stands behind them where the API server is busy."""


class Recorder:
    """Writes events in the order they were recorded."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: asyncio.Queue[Event] = asyncio.Queue(_LIMIT)
        self.dropped = 0

    def record(self, job: TrainingJob, note: Note) -> None:
        """Record one event about a job."""
        self.record_about(_subject(job), note)

    def record_about(self, subject: Subject, note: Note) -> None:
        """Record one event. Its name is made from what it says, so saying it twice is one event."""
        now = self._clock.now()
        event = event_about(
            subject,
            note.reason,
            note.message,
            at=now,
            mark=f"{now.timestamp() * 1e6:.0f}",
            component="stoker-operator",
            kind=EventType.WARNING if note.warning else EventType.NORMAL,
        )
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            events = [await self._waiting.get()]
            while len(events) < _AT_ONCE and not self._waiting.empty():
                events.append(self._waiting.get_nowait())
            done = await asyncio.gather(
                *(self._store.create(EVENTS, event) for event in events), return_exceptions=True
            )
            for outcome in done:
                if isinstance(outcome, StoreError):
                    self.dropped += 1
                elif isinstance(outcome, BaseException):
                    raise outcome


def _subject(job: TrainingJob) -> Subject:
    return Subject(
        kind=job.kind or JOBS.kind, api_version=job.api_version or JOBS.api_version, key=job.key, uid=job.uid
    )
