"""Who entered which worker, and for how long: an event on the job and a line in the server's log.

Written beside the session and never in its way: an event that can't be written is left out, the log has the line.
Never holds what was said in a session. Called by `rendezvous.py`.
"""

from __future__ import annotations

import asyncio
import logging

from stoker.spec.event import EVENTS, Event, Subject, event_about
from stoker.spec.job import JOBS
from stoker.spec.quantity import format_duration
from stoker.store.clock import Clock
from stoker.store.port import Store, StoreError

from .first_message import FirstMessage
from .registry import Session
from .relay import SessionEnd

log = logging.getLogger(__name__)

_WRITE_S = 5.0


class SessionAudit:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._writing: set[asyncio.Task[None]] = set()

    def opened(self, session: Session, message: FirstMessage) -> None:
        self._record(session, "SessionOpened", f"{_who(session)} {message.done()} worker {session.worker}")

    def closed(self, session: Session, message: FirstMessage, end: SessionEnd) -> None:
        lasted = format_duration(max(1.0, round(self._clock.monotonic() - session.opened_at)))
        why = f": {end.reason}" if end.reason else ""
        what = f"{_who(session)}'s {message.name} session in worker {session.worker} ended after {lasted}{why}"
        self._record(session, "SessionClosed", what)

    async def written(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _record(self, session: Session, reason: str, message: str) -> None:
        log.info("job %s, session %s: %s: %s", session.job, session.id[:8], reason, message)
        event = event_about(
            Subject(kind=JOBS.kind, api_version=JOBS.api_version, key=session.job, uid=session.job_uid),
            reason,
            message,
            at=self._clock.now(),
            mark=session.id[:12],
            component="stoker-api",
        )
        task = asyncio.create_task(self._write(event))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, event: Event) -> None:
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._store.create(EVENTS, event)
        except (StoreError, TimeoutError) as error:
            log.warning("event %s could not be written: %s", event.metadata.name, error)


def _who(session: Session) -> str:
    """One line, whatever the cluster calls its users."""
    return "".join(c if c.isprintable() else "?" for c in session.who)
