"""The claims there are: which jobs have one, by queue and request, and whose end each waits for.

Owns these tables; what a claim comes to is decided in `claims`. A claim is counted like a placement. Called by `lanes`
(changes), `claims`, `decide` and `preempt` (reading).
"""

from __future__ import annotations

from stoker.spec.job import Claim
from stoker.spec.meta import Key

from .deadlines import Deadlines
from .entries import Entry, Order
from .holdings import Holdings
from .journal import Journal
from .request import Request
from .running import RunningJobs
from .sorted_list import SortedList


class ClaimTable:
    def __init__(self, journal: Journal, running: RunningJobs, holdings: Holdings, victims: dict[Key, Key]) -> None:
        """`victims`: job that is stopped for a claim → the claimant."""
        self._journal, self._running, self._holdings = journal, running, holdings
        self.victims = victims
        self.jobs: dict[Key, None] = {}
        """Those with a claim."""
        self.of: dict[str, dict[Request, SortedList[Order]]] = {}
        """The same: queue → what is asked for → jobs."""
        self.moved: dict[Key, None] = {}
        """Those whose victims changed since it was worked out when the claim is given up."""
        self.given_up = Deadlines(journal)
        self.unwritten: dict[Key, None] = {}
        """Jobs whose claim was decided, or its end, since the last decide."""
        self.voided: set[Key] = set()
        """Of those: the room was taken by others."""

    def victim_moved(self, key: Key) -> None:
        """Something of a job has changed: nothing happens unless it is stopped for a claim."""
        claimant = self.victims.get(key)
        if claimant is not None:
            self._journal.put(self.moved, claimant, None)

    def put(self, entry: Entry, claim: Claim) -> None:
        self._journal.put(self.jobs, entry.key, None)
        self._journal.put(self.moved, entry.key, None)
        kinds = self.of.get(entry.queue.name)
        if kinds is None:
            kinds = {}
            self._journal.put(self.of, entry.queue.name, kinds)
        if entry.request not in kinds:
            self._journal.put(kinds, entry.request, SortedList())
        kinds[entry.request].add(entry.order)
        self._journal.note(kinds[entry.request].remove, entry.order)
        for victim in claim.victims:
            self._journal.put(self.victims, victim.key, entry.key)
            self._running.note(victim.key)
        self._holdings.hold(entry, claim.placement)

    def drop(self, entry: Entry) -> None:
        """Nothing happens where it has no claim."""
        if entry.key not in self.jobs:
            return
        self._holdings.unhold(entry)
        self._journal.drop(self.jobs, entry.key)
        self._journal.drop(self.moved, entry.key)
        self.given_up.set(entry.key, None)
        kinds = self.of[entry.queue.name]
        orders = kinds[entry.request]
        orders.remove(entry.order)
        self._journal.note(orders.add, entry.order)
        if not orders:
            self._journal.drop(kinds, entry.request)
        for victim in entry.claim.victims if entry.claim is not None else ():
            if self.victims.get(victim.key) == entry.key:
                self._journal.drop(self.victims, victim.key)
                self._running.note(victim.key)
