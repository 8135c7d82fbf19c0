"""The claims there are: which jobs have one, by queue and request, and whose end each waits for.

Owns these tables; what a claim comes to is decided in `claims`. A claim is counted like a placement. Called by `lanes`
(changes), `claims`, `decide` and `preempt` (reading).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from stoker.spec.job import Claim, Victim
from stoker.spec.meta import Key
from stoker.spec.queue import NOT_NAMED

from .changes import Changes
from .deadlines import Deadlines
from .entries import Entry, Order
from .holdings import Holdings
from .journal import Journal
from .request import Request
from .running import RunningJobs
from .sorted_list import SortedList

PATIENCE = timedelta(minutes=5)
"""A claim is given up so long after the last of its victims ended (or it was decided), their grace to save aside."""


def at_the_earliest(claim: Claim) -> datetime:
    """No claim is given up before."""
    return claim.since + PATIENCE


class ClaimTable:
    def __init__(
        self,
        journal: Journal,
        entries: dict[Key, Entry],
        holdings: Holdings,
        changes: Changes,
        running: RunningJobs,
        victims: dict[Key, Key],
    ) -> None:
        """`victims`: job that is stopped for a claim → the claimant."""
        self._journal, self._entries, self._holdings, self._changes = journal, entries, holdings, changes
        self._running, self.victims = running, victims
        self.jobs: dict[Key, None] = {}
        """Those with a claim."""
        self.of: dict[str, dict[Request, SortedList[Order]]] = {}
        """The same: queue → what is claimed → jobs."""
        self.on: dict[str, dict[Request, dict[Key, int]]] = {}
        """The same: node → what is claimed → job → workers."""
        self.moved: dict[Key, None] = {}
        """Those whose victims changed since the last decide."""
        self.ready: dict[Key, None] = {}
        """Those whose victims had all left their places then."""
        self.given_up = Deadlines(journal)
        """When each is looked at next, whether it is to be given up."""
        self.unwritten: dict[Key, None] = {}
        """Jobs whose claim was decided, or its end, since the last decide."""
        self.keeps: dict[Key, Victim] = {}
        """Of those that are stopped for a claim: the elastic jobs that go on with fewer workers."""
        self.voided: set[Key] = set()
        """Those of `unwritten` whose room was taken by others."""

    def victim_moved(self, key: Key) -> None:
        """Something of a job has changed: nothing happens unless it is stopped for a claim."""
        claimant = self.victims.get(key)
        if claimant is not None:
            self._journal.put(self.moved, claimant, None)

    def put(self, entries: Sequence[Entry], since: datetime) -> None:
        """Pending jobs of one queue that ask for the same, each with a claim of that time on GPUs of one type."""
        journal, first = self._journal, entries[0]
        keys = [entry.key for entry in entries]
        journal.put_all(self.jobs, dict.fromkeys(keys))
        self.given_up.add(keys, since + PATIENCE)
        victims = dict[Key, Key]()
        for entry in entries:
            for victim in entry.victims:
                victims[victim.key] = entry.key
                if victim.keeps:
                    journal.put(self.keeps, victim.key, victim)
        journal.put_all(self.victims, victims)
        self._running.note(victims)
        held = first.held
        kinds = journal.get_or_make(self.of, first.queue.name, dict)
        orders: SortedList[Order] = journal.get_or_make(kinds, held, SortedList)
        for entry in entries:
            orders.add(entry.order)
            journal.note(orders.remove, entry.order)
        self._holdings.hold(entries, [entry.room for entry in entries])
        for entry in entries:
            for name, workers in entry.workers_on.items():
                there = journal.get_or_make(self.on, name, dict)
                journal.put(journal.get_or_make(there, held, dict), entry.key, workers)

    def drop(self, entry: Entry, *, stays: bool = False) -> None:
        """Nothing happens where it has no claim. `stays`: it starts there, and what it holds stays counted."""
        key, journal = entry.key, self._journal
        if key not in self.jobs:
            return
        held = entry.held
        for name in entry.workers_on:
            there = self.on[name]
            jobs = there[held]
            journal.drop(jobs, key)
            if not jobs:
                journal.drop(there, held)
                if not there:
                    journal.drop(self.on, name)
        if not stays:
            self._holdings.unhold(entry)
        for some in (self.jobs, self.moved, self.ready):
            journal.drop(some, key)
        self.given_up.set(key, None)
        kinds = self.of[entry.queue.name]
        orders = kinds[held]
        orders.remove(entry.order)
        journal.note(orders.add, entry.order)
        if not orders:
            journal.drop(kinds, held)
        for victim in entry.victims:
            gone = victim.key
            if self.victims.get(gone) == key:
                journal.drop(self.victims, gone)
                journal.drop(self.keeps, gone)
                self._running.note((gone,))
                if gone in self._entries:
                    self._stays(self._entries[gone])

    def _stays(self, victim: Entry) -> None:
        """Others may have counted on what it would leave."""
        for name in victim.workers_on:
            self._changes.fill_node(name)
        for queue in victim.queue.path if victim.workers_on else ():
            if any(one.limit != NOT_NAMED for one in queue.own(victim.gpu_type)):
                self._changes.fill_queue(queue.name)

    def stays(self, entry: Entry, old: Entry) -> bool:
        """The job has the same claim and place among others as before."""
        unchanged = entry.key in self.jobs and old.claim == entry.claim and old.order == entry.order
        return unchanged and entry.pending and entry.admitted

    def replace(self, entry: Entry, old: Entry) -> None:
        """The usual answer to a claim that was decided: nothing moves."""
        self._journal.set(entry, "workers_on", old.workers_on)
        self._journal.put(self._entries, entry.key, entry)
        self._journal.put(entry.queue.pending, entry.key, entry)
