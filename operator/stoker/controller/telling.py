"""Which waiting jobs are due to have their reason written into their status.

A job that starts at once costs no such write: a reason is written only once the job has waited SETTLE_S, and looked at
again every REVISIT_S. Pure bookkeeping; `scheduling.py` asks and writes. Cost: O(log n) per job and visit.
"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta

from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import Key

SETTLE_S = 2.0
REVISIT_S = 30.0


class Telling:
    """Waiting jobs by the whole second in which they are due, so that many of them wake the loop once."""

    def __init__(self) -> None:
        self._due_s: dict[Key, int] = {}
        self._heap: list[tuple[int, Key]] = []

    def observe(self, job: TrainingJob, now: datetime) -> None:
        """A job came or changed."""
        if job.status.phase is not Phase.QUEUED or job.spec.suspend or job.spec.cancel:
            self.forget(job.key)
        elif job.key not in self._due_s:
            self._put(job.key, now + timedelta(seconds=SETTLE_S))

    def forget(self, key: Key) -> None:
        self._due_s.pop(key, None)

    def due(self, now: datetime) -> list[Key]:
        """The jobs to look at now; each is due again REVISIT_S later."""
        found = []
        while self._heap and self._heap[0][0] <= now.timestamp():
            due_s, key = heapq.heappop(self._heap)
            if self._due_s.get(key) == due_s:
                found.append(key)
        for key in found:
            self._put(key, now + timedelta(seconds=REVISIT_S))
        return found

    def next_at(self) -> datetime | None:
        """When somebody is due next."""
        while self._heap and self._due_s.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return datetime.fromtimestamp(self._heap[0][0], UTC) if self._heap else None

    def _put(self, key: Key, at: datetime) -> None:
        due_s = int(at.timestamp()) + 1
        self._due_s[key] = due_s
        heapq.heappush(self._heap, (due_s, key))
