"""What jobs hold, counted on their nodes and in their queues: starts seen or assumed, and claims.

Owns this counting. Called by `state` and `claim_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.spec.gpu_types import UNKNOWN_TYPE
from stoker.spec.job import Placed
from stoker.spec.meta import Key
from stoker.spec.queue import NOT_NAMED

from .changes import Changes
from .entries import NOWHERE, Entry, workers_on
from .journal import Journal
from .nodes import NodeTable
from .queue_state import Account, QueueState
from .request import Totals
from .running import RunningJobs


class Holdings:
    def __init__(self, journal: Journal, nodes: NodeTable, running: RunningJobs, changes: Changes) -> None:
        self._journal, self._nodes, self._running, self._changes = journal, nodes, running, changes

    def hold(self, entries: Sequence[Entry], placements: Iterable[Sequence[Placed]]) -> None:
        """Jobs of one queue that ask for the same, on GPUs of one type; each has its placement."""
        first, workers = entries[0], 0
        keys, there = dict[Key, None](), list[tuple[str, Key, int]]()
        for entry, placement in zip(entries, placements, strict=True):
            if placement:
                on, keys[entry.key] = workers_on(placement), None
                self._journal.set(entry, "workers_on", on)
                there += [(name, entry.key, count) for name, count in on.items()]
                workers += len(placement)
        if not keys:
            return
        self._nodes.claim(first.held, there)
        self.charge(first.queue, first.gpu_type, first.request.times(workers))
        for holding in _holding(first):
            self._journal.put_all(holding, keys)
        if not first.pending:
            self._running.note(keys)
        self._changes.shift()  # reservations may move to other nodes

    def unhold(self, entry: Entry) -> None:
        """Nothing happens where it holds nothing."""
        if not entry.workers_on:
            return
        for name in entry.workers_on:
            self._nodes.unclaim(name, entry.key)
            self._changes.free_node(name)
        self.charge(entry.queue, entry.gpu_type, entry.request.times(-sum(entry.workers_on.values())))
        for holding in _holding(entry):
            self._journal.drop(holding, entry.key)
        self._running.note((entry.key,))
        self._journal.set(entry, "workers_on", NOWHERE)
        self.free(entry.queue, entry.gpu_type)

    def free(self, queue: QueueState, gpu_type: str) -> None:
        """It holds less than before: jobs there, and below what has a limit, may start."""
        for one in queue.path:
            if one is queue or any(account.limit != NOT_NAMED for account in one.own(gpu_type)):
                self._changes.free_queue(one.name)

    def charge(self, queue: QueueState, gpu_type: str, amounts: Totals) -> None:
        """Count it in the queue and those above, on GPUs of that type, where they are of one."""
        for one in queue.path if gpu_type not in ("", UNKNOWN_TYPE) else ():
            if gpu_type not in one.typed:
                account = Account(f"{one.name}/{gpu_type}")
                self._journal.set(one, "typed", {**one.typed, gpu_type: account})
        for account in queue.accounts(gpu_type):
            self._journal.set(account, "used", account.used.plus(amounts))


def _holding(entry: Entry) -> tuple[dict[Key, None], ...]:
    """Where its queue counts it."""
    queue = entry.queue
    return (queue.holding, queue.holding_gpus) if entry.request.gpus else (queue.holding,)
