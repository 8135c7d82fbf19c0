"""What jobs hold, counted on their nodes and in their queues: starts seen or assumed, and claims.

Owns this counting. Called by `state` and `claim_table`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.spec.gpu_types import UNKNOWN_TYPE
from stoker.spec.job import Placed
from stoker.spec.queue import NOT_NAMED

from .changes import Changes
from .entries import NOWHERE, Entry, workers_on
from .gpu_groups import Claim
from .journal import Journal
from .nodes import NodeTable
from .queue_state import Account
from .running import RunningJobs


class Holdings:
    def __init__(self, journal: Journal, nodes: NodeTable, running: RunningJobs, changes: Changes) -> None:
        self._journal, self._nodes, self._running, self._changes = journal, nodes, running, changes

    def hold(self, entry: Entry, placement: Sequence[Placed]) -> None:
        if not placement:
            return
        there, held = workers_on(placement), entry.held
        self._journal.set(entry, "workers_on", there)
        for name, workers in there.items():
            self._nodes.claim(name, entry.key, Claim(workers, held))
        self._charge(entry, 1)
        self._changes.shift()  # reservations may move to other nodes

    def unhold(self, entry: Entry) -> None:
        """Nothing happens where it holds nothing."""
        if not entry.workers_on:
            return
        for name in entry.workers_on:
            self._nodes.unclaim(name, entry.key)
            self._changes.free_node(name)
        self._charge(entry, -1)
        self._journal.set(entry, "workers_on", NOWHERE)
        for queue in entry.queue.path:
            if queue is entry.queue or any(one.limit != NOT_NAMED for one in queue.own(entry.gpu_type)):
                self._changes.free_queue(queue.name)

    def _charge(self, entry: Entry, sign: int) -> None:
        queue, gpu_type = entry.queue, entry.gpu_type
        amounts = entry.request.times(sum(entry.workers_on.values()))
        for one in queue.path if gpu_type not in ("", UNKNOWN_TYPE) else ():
            if gpu_type not in one.typed:
                account = Account(f"{one.name}/{gpu_type}")
                self._journal.set(one, "typed", {**one.typed, gpu_type: account})
        for account in queue.accounts(gpu_type):
            self._journal.set(account, "used", account.used.plus(amounts, sign))
        self._running.note(entry.key)
        for holding in (queue.holding, queue.holding_gpus) if entry.request.gpus else (queue.holding,):
            if sign > 0:
                self._journal.put(holding, entry.key, None)
            else:
                self._journal.drop(holding, entry.key)
