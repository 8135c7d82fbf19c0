"""The claims there are: which jobs have one, by queue and request, and whose end each waits for.

Owns these tables; what a claim comes to is decided in `claims`. A claim is counted like a placement. Called by `lanes`
(changes), `claims`, `decide` and `preempt` (reading).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from stoker.spec.job import Claim, Victim
from stoker.spec.meta import Key

from .changes import Changes
from .deadlines import Deadlines
from .entries import Entry, Order
from .holdings import Holdings
from .journal import Journal
from .queue_state import QueueState
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
        """Of those: the room was taken by others."""

    def victim_moved(self, key: Key) -> None:
        """Something of a job has changed: nothing happens unless it is stopped for a claim."""
        claimant = self.victims.get(key)
        if claimant is not None:
            self._journal.put(self.moved, claimant, None)

    def put(self, queue: QueueState, entries: Sequence[Entry], *, decided: bool) -> None:
        """Pending jobs of the queue that ask for the same, each with its claim. `decided`: just now, so that their
        victims all hold their places."""
        journal, keys = self._journal, [entry.key for entry in entries]
        journal.put_all(self.jobs, dict.fromkeys(keys))
        if not decided:
            journal.put_all(self.moved, dict.fromkeys(keys))
        kinds = self.of.get(queue.name)
        if kinds is None:
            kinds = {}
            journal.put(self.of, queue.name, kinds)
        victims: dict[Key, Key] = {}
        times: dict[datetime, list[Key]] = {}
        for entry in entries:
            claim = entry.claim
            assert claim is not None
            times.setdefault(claim.since, []).append(entry.key)
            for victim in claim.victims:
                victims[victim.key] = entry.key
                if victim.keeps:
                    journal.put(self.keeps, victim.key, victim)
        for since, keys in times.items():
            self.given_up.add(keys, since + PATIENCE)
        journal.put_all(self.victims, victims)
        self._running.note(victims)
        by_type: dict[str, list[Entry]] = {}
        for entry in entries:
            by_type.setdefault(entry.gpu_type, []).append(entry)
        for some in by_type.values():
            held = some[0].held
            orders = kinds.get(held)
            if orders is None:
                orders = SortedList()
                journal.put(kinds, held, orders)
            for entry in some:
                orders.add(entry.order)
                journal.note(orders.remove, entry.order)
            self._holdings.hold(some, [entry.room for entry in some])

    def drop(self, entry: Entry, *, stays: bool = False) -> None:
        """Nothing happens where it has no claim. `stays`: it starts there, and what it holds stays counted."""
        if entry.key not in self.jobs:
            return
        if not stays:
            self._holdings.unhold(entry)
        self._journal.drop(self.jobs, entry.key)
        self._journal.drop(self.moved, entry.key)
        self._journal.drop(self.ready, entry.key)
        self.given_up.set(entry.key, None)
        kinds, held = self.of[entry.queue.name], entry.held
        orders = kinds[held]
        orders.remove(entry.order)
        self._journal.note(orders.add, entry.order)
        if not orders:
            self._journal.drop(kinds, held)
        for victim in entry.claim.victims if entry.claim is not None else ():
            key = victim.key
            if self.victims.get(key) == entry.key:
                self._journal.drop(self.victims, key)
                self._journal.drop(self.keeps, key)
                self._running.note((key,))
                for name in self._entries[key].workers_on if key in self._entries else ():
                    self._changes.fill_node(name)  # it stays, and others may have counted on what it would leave

    def stays(self, entry: Entry, old: Entry) -> bool:
        """The job has the same claim and place among others as before."""
        unchanged = entry.key in self.jobs and old.claim == entry.claim and old.order == entry.order
        return unchanged and entry.pending and entry.admitted

    def replace(self, entry: Entry, old: Entry) -> None:
        """The usual answer to a claim that was decided: nothing moves."""
        self._journal.set(entry, "workers_on", old.workers_on)
        self._journal.put(self._entries, entry.key, entry)
        self._journal.put(entry.queue.pending, entry.key, entry)
