"""The jobs with a place that may have more or fewer workers.

Owns this table; which of them grow or shrink is decided in `elastic` and `shrink`. Called by `state` (changes).
"""

from __future__ import annotations

from datetime import datetime

from stoker.spec.meta import Key

from .entries import EARLIEST, Entry
from .journal import Journal
from .request import Request


class ElasticJobs:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.placed: dict[Key, Request] = {}
        """Job → one of its workers."""
        self.below_most: dict[Request, dict[Key, None]] = {}
        """Those of them that may have more: one worker → jobs."""
        self.grow_at: datetime | None = None
        """When time alone may have let one grow."""

    def note(self, entry: Entry) -> None:
        """Something of a job has changed: nothing happens unless it is elastic."""
        if entry.job.spec.elastic is None:
            return
        self.forget(entry.key)
        if not entry.workers_on or entry.pending:
            return
        one = entry.held.one_worker
        self._journal.put(self.placed, entry.key, one)
        if len(entry.placement) < entry.job.spec.most_workers:
            if one not in self.below_most:
                self._journal.put(self.below_most, one, {})
            self._journal.put(self.below_most[one], entry.key, None)
            self._journal.set(self, "grow_at", EARLIEST)  # it may have saved

    def forget(self, key: Key) -> None:
        one = self.placed.get(key)
        if one is None:
            return
        self._journal.drop(self.placed, key)
        if one in self.below_most:
            self._journal.drop(self.below_most[one], key)
            if not self.below_most[one]:
                self._journal.drop(self.below_most, one)
