"""What deleted jobs leave behind in their queues, and those of which no status can say that they end: pods that still
end count in the limits there until they are gone.

Owns these charges. Of a pod on a lost node there is none: it may never be seen to end, and the queue's other jobs are
not to wait for that. No object names them: a process knows of those that it saw the deletion of. Called by
`foreign_pods`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stoker.spec.meta import Key

from .entries import Entry
from .holdings import Holdings
from .journal import Journal
from .queue_state import Account, QueueState
from .queue_tree import QueueTree
from .request import NOTHING, Totals


class Charge(NamedTuple):
    """Of one pod."""

    queue: QueueState
    gpu_type: str
    amounts: Totals
    node: str


class DeletedJobs:
    """Cost: O(1) per pod; O(charges) for a node that is lost."""

    def __init__(self, journal: Journal, holdings: Holdings, tree: QueueTree) -> None:
        self._journal, self._holdings, self._tree = journal, holdings, tree
        self.charges: dict[Key, Charge] = {}
        """By pod."""
        self._sums: dict[tuple[QueueState, str], Totals] = {}
        """Of each queue and GPU type."""

    def charge(self, pod: Key, node: str, entry: Entry) -> None:
        """The pod is one of the job's workers; the job goes."""
        new = Charge(entry.queue, entry.gpu_type, entry.request.times(1), node)
        self._journal.put(self.charges, pod, new)
        self._add(new, 1)

    def release(self, pod: Key) -> None:
        """Nothing happens where it has no charge."""
        found = self.charges.get(pod)
        if found is not None:
            self._journal.drop(self.charges, pod)
            self._add(found, -1)
            self._holdings.free(found.queue, found.gpu_type)
            self._tree.sweep(found.queue)

    def release_node(self, node: str) -> None:
        for pod in [pod for pod, charge in self.charges.items() if charge.node == node]:
            self.release(pod)

    def release_all(self) -> None:
        """In a what-if: as if the pods had ended."""
        for pod in list(self.charges):
            self.release(pod)

    def charged(self) -> Iterator[tuple[Account, Totals]]:
        """In each account that counts them, as the tree is now."""
        for (queue, gpu_type), amounts in self._sums.items():
            for account in queue.accounts(gpu_type):
                yield account, amounts

    def _add(self, charge: Charge, sign: int) -> None:
        kind = charge.queue, charge.gpu_type
        amounts = self._sums.get(kind, NOTHING).plus(charge.amounts, sign)
        if amounts == NOTHING:
            self._journal.drop(self._sums, kind)
        else:
            self._journal.put(self._sums, kind, amounts)
        self._holdings.charge(*kind, NOTHING.plus(charge.amounts, sign))
