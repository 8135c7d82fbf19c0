"""Reports jobs that Stoker can't read to their owners: a condition and an event, once.

Such a job passed the API server's schema but not our model (a recipe's unknown setting, say). It is left aside by every
cache and never half run. The store's adapter finds it (`on_unreadable`); only the leader writes. Called by `main`.
"""

from __future__ import annotations

import logging
from functools import partial

from stoker.life.admission import ACCEPTED_CONDITION
from stoker.life.step import Note
from stoker.spec.event import Subject
from stoker.spec.job import JOBS
from stoker.store.backlog import Backlog
from stoker.store.clock import Clock
from stoker.store.port import Invalid, NotFound, Store, StoreError, Unreadable

from .recorder import Recorder
from .status_writes import MANAGER

log = logging.getLogger(__name__)

_MESSAGE_MAX = 1024
_REMEMBERED = 10_000


class UnreadableJobs:
    """`found` may be called at any time, from anywhere on the loop; `run` writes while this process leads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._unreported: Backlog[str, Unreadable] = Backlog(clock)
        self._reported: dict[str, tuple[str, ...]] = {}
        """The newest `_REMEMBERED`: that one is gone is not heard of."""

    def found(self, job: Unreadable) -> None:
        """A job that can't be read. Our own write makes a new version of it, which says nothing new."""
        if job.kind == JOBS.kind and self._reported.get(job.uid) != job.errors:
            self._unreported.put(job.uid, job)

    @property
    def reported(self) -> int:
        """Jobs reported so far, as far as they are remembered."""
        return len(self._reported)

    async def run(self, recorder: Recorder) -> None:
        """Report until cancelled."""
        await self._unreported.run(partial(self._report, recorder))

    async def _report(self, recorder: Recorder, job: Unreadable) -> bool:
        message = f"Stoker can't read this job: {'; '.join(job.errors)}"[:_MESSAGE_MAX]
        condition = {
            "type": ACCEPTED_CONDITION,
            "status": "False",
            "reason": "Unreadable",
            "message": message,
            "lastTransitionTime": self._clock.now().isoformat().replace("+00:00", "Z"),
        }
        patch = {"message": message, "conditions": [condition]}
        try:
            await self._store.patch_unread(JOBS, job.key, patch, manager=MANAGER, uid=job.uid)
        except NotFound:
            return True
        except Invalid as error:
            log.error("can't report the unreadable job %s until it changes: %s", job.key, error)
            return True
        except StoreError as error:
            log.warning("can't report the unreadable job %s: %s", job.key, error)
            return False
        self._reported[job.uid] = job.errors
        if len(self._reported) > _REMEMBERED:
            del self._reported[next(iter(self._reported))]
        recorder.record_about(
            Subject(kind=JOBS.kind, api_version=JOBS.api_version, key=job.key, uid=job.uid),
            Note("NotAccepted", message, warning=True),
        )
        return True
