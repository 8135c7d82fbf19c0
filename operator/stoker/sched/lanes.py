"""Where the pending jobs stand: in the lane of those that are the same to the scheduler, before a timer, or in a claim.

Owns this filing, and which lanes are to be tried. Called by `state` (changes), `decide` and `preempt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from stoker.spec.meta import Key

from .changes import Changes
from .claim_table import ClaimTable
from .entries import EARLIEST, BlockedBy, Entry, Lane
from .journal import Journal
from .sorted_list import SortedList
from .waiters import Waiters

_NOWHERE: frozenset[str] = frozenset()
"""One for all lanes: a new one takes 216 bytes."""


class Lanes:
    def __init__(self, journal: Journal, entries: Mapping[Key, Entry], claims: ClaimTable, changes: Changes) -> None:
        self._journal, self._entries, self._claims, self._changes = journal, entries, claims, changes
        self.timers: SortedList[tuple[datetime, Key]] = SortedList()
        self.untried: dict[Lane, None] = {}
        """Those to be tried."""
        self.waiters = Waiters(journal)
        """All other lanes."""

    def set_blocked_by(self, lane: Lane, blocked_by: BlockedBy | None) -> None:
        self.waiters.drop(lane)
        if blocked_by is None:
            self._journal.put(self.untried, lane, None)
        else:
            self._journal.drop(self.untried, lane)
            self.waiters.put(lane, blocked_by, self._entries[lane.jobs.first()[2]].since)

    def file_due(self, now: datetime) -> None:
        """Move jobs whose back-off or blame has ended by `now` to the lanes where they belong."""
        while self.timers and self.timers.first()[0] <= now:
            entry = self._entries[self.timers.first()[1]]
            self.drop(entry)
            self.put(entry, now)

    def put(self, entry: Entry, now: datetime | None = None) -> None:
        """File a pending job. Without `now`, what depends on the time is left to the next decide."""
        self._journal.put(entry.queue.pending, entry.key, entry)
        self.enter(entry, now)

    def drop(self, entry: Entry) -> None:
        self._journal.drop(entry.queue.pending, entry.key)
        self.leave(entry)

    def enter(self, entry: Entry, now: datetime | None = None) -> None:
        """It has left where it stood, and stays pending."""
        if not entry.admitted:
            if entry.claim is not None:
                self._journal.put(self._claims.unwritten, entry.key, None)
            return
        if entry.claim is not None:
            self._claims.put((entry,), entry.claim.since)
            self._journal.put(self._claims.moved, entry.key, None)
            return
        status = entry.job.status
        if status.not_before is not None and (now is None or status.not_before > now):
            self._arm(entry, status.not_before)
            return
        if status.blamed and now is None:
            self._arm(entry, EARLIEST)
            return
        avoid = _NOWHERE
        if status.blamed and now is not None:
            avoid = entry.avoided(now)
            if avoid:
                self._arm(entry, min(blame.until for blame in status.blamed if blame.until > now))
        self._join(entry, avoid)

    def leave(self, entry: Entry) -> None:
        self._claims.drop(entry)
        if entry.lane is not None:
            self.take(entry.lane, (entry,))
        else:
            self._disarm(entry)

    def take(self, lane: Lane, entries: Sequence[Entry]) -> None:
        """Neighbours in the lane leave it, and stay pending."""
        first, journal = lane.jobs.first(), self._journal
        for entry in entries:
            self._disarm(entry)
            journal.set(entry, "lane", None)
        for jobs in (lane.jobs, lane.queue.filed):
            for entry in entries:
                jobs.remove(entry.order)
                journal.note(jobs.add, entry.order)
        if first == entries[0].order:
            self._set_head(lane)
        if not lane.jobs:
            journal.drop(lane.queue.lanes, (lane.request, lane.avoid))
            journal.drop(self.untried, lane)

    def _join(self, entry: Entry, avoid: frozenset[str]) -> None:
        lanes = entry.queue.lanes
        lane = lanes.get((entry.request, avoid))
        if lane is None:
            lane = Lane(entry.queue, entry.request, avoid)
            self._journal.put(lanes, (entry.request, avoid), lane)
            self.set_blocked_by(lane, None)
        first = lane.jobs.first() if lane.jobs else entry.order
        for jobs in (lane.jobs, entry.queue.filed):
            jobs.add(entry.order)
            self._journal.note(jobs.remove, entry.order)
        self._journal.set(entry, "lane", lane)
        if entry.order < first:
            self._set_head(lane)

    def _set_head(self, lane: Lane) -> None:
        """Its first job is another one, or there is none any more."""
        self._changes.shift()
        place = lane.place
        if place is not None:
            self.waiters.drop(lane)
            if lane.jobs:
                self.waiters.put(lane, place.blocked_by, self._entries[lane.jobs.first()[2]].since)

    def _disarm(self, entry: Entry) -> None:
        if entry.wakes_at is not None:
            timer = (entry.wakes_at, entry.key)
            self.timers.remove(timer)
            self._journal.note(self.timers.add, timer)
            self._journal.set(entry, "wakes_at", None)

    def _arm(self, entry: Entry, at: datetime) -> None:
        timer = (at, entry.key)
        self.timers.add(timer)
        self._journal.note(self.timers.remove, timer)
        self._journal.set(entry, "wakes_at", at)
