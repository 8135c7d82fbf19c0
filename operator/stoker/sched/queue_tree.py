"""The queues' places in their tree, as they come, change and go.

Owns the links between queues and, when they move, what each holds with the queues below it. Called by `state`.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.spec.queue import NOT_NAMED
from stoker.spec.queue_tree import links

from .entries import QueueState
from .journal import Journal


class QueueTree:
    """Cost: a change of a parent or guarantee O(queues of the trees that it touches)."""

    def __init__(self, journal: Journal, queues: dict[str, QueueState]) -> None:
        self._journal, self._queues = journal, queues
        self._naming: dict[str, dict[str, None]] = {}
        """Name -> queues that name it as their parent, whether or not it is there."""
        self.depth = 1
        """Levels, at least."""

    def move(self, name: str, former: str | None, parent: str | None) -> dict[QueueState, bool]:
        """A queue came, went, or has another parent or guarantee now. All whose place may be another one, itself too,
        and whether jobs may run in it now and could not before, or the other way round."""
        journal = self._journal
        if former is not None and former != parent:
            journal.drop(self._naming[former], name)
        if parent is not None and former != parent:
            if parent not in self._naming:
                journal.put(self._naming, parent, {})
            journal.put(self._naming[parent], name, None)
        known = self._queues[name]
        if former is None and parent is None and not self._naming.get(name):
            amounts = NOT_NAMED if known.queue is None else known.queue.spec.guarantee.amounts
            journal.set(known, "guarantee", amounts)
            journal.set(known, "is_guaranteed", amounts != NOT_NAMED)
            return {}
        queues = self._around([name, former, parent])
        turned = {}
        own = {queue.name: queue.used for queue in queues}
        for queue in queues:
            for child in queue.children:
                own[queue.name] = own[queue.name].plus(child.used, -1)
        placed = links({queue.name: queue.queue.spec for queue in queues if queue.queue is not None})
        used, children = dict(own), dict[str, list[QueueState]]()
        for queue in queues:
            path = [queue]
            at = placed[queue.name].parent if queue.name in placed else None
            if at is not None:
                children.setdefault(at, []).append(queue)
            while at is not None:
                path.append(self._queues[at])
                used[at] = used[at].plus(own[queue.name])
                at = placed[at].parent
            journal.set(queue, "path", tuple(path))
            journal.set(queue, "guarantee", placed[queue.name].guarantee if queue.name in placed else NOT_NAMED)
            if len(path) > self.depth:
                journal.set(self, "depth", len(path))
        for queue in queues:
            below = tuple(sorted(children.get(queue.name, ()), key=lambda child: child.name))
            turned[queue] = bool(below) != bool(queue.children)
            journal.set(queue, "children", below)
            journal.set(queue, "used", used[queue.name])
            journal.set(queue, "is_guaranteed", any(one.guarantee != NOT_NAMED for one in queue.path))
        return turned

    def _around(self, names: Iterable[str | None]) -> list[QueueState]:
        """All queues of the trees that these stand in, as far as the objects say."""
        found: dict[str, QueueState] = {}
        todo = [name for name in names if name is not None]
        while todo:
            name = todo.pop()
            queue = self._queues.get(name)
            if name in found:
                continue
            if queue is not None:
                found[name] = queue
                todo += [above.name for above in queue.path[1:]]  # where it has stood so far
                if queue.queue is not None and queue.queue.spec.parent is not None:
                    todo.append(queue.queue.spec.parent)
                todo += self._naming.get(name, ())
        return list(found.values())
