"""The queues that the scheduler knows and their places in their tree, as they come, change and go.

Owns QueueState's being there, the links between queues and, when they move, what each holds with the queues below it.
Called by `state`, which files jobs anew where this says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from stoker.spec.queue import NO_RESOURCES, NOT_NAMED, Discipline, Queue, QueueResources
from stoker.spec.queue_tree import links

from .changes import Changes
from .journal import Journal
from .queue_state import NO_PREEMPTION, Account, QueueState
from .request import NOTHING, Totals


class QueueChange(NamedTuple):
    unclaimed: dict[QueueState, None]
    """Their claims, and those below, were worked out for other limits."""
    refiled: dict[QueueState, None]
    """Their jobs may run now and could not before, or the other way round, or come in another order."""


class QueueTree:
    """Cost: a change of a parent or guarantee O(queues of the trees that it touches)."""

    def __init__(self, journal: Journal, changes: Changes) -> None:
        self._journal, self._changes = journal, changes
        self.queues: dict[str, QueueState] = {}
        self._naming: dict[str, dict[str, None]] = {}
        """Name -> queues that name it as their parent, whether or not it is there."""
        self.guaranteed: dict[str, QueueState] = {}
        """Those whose guarantee counts."""
        self.typing: dict[str, None] = {}
        """Those that name GPU types."""
        self.depth = 1
        """Levels, at least."""

    def named(self, name: str) -> QueueState:
        queue = self.queues.get(name)
        if queue is None:
            queue = QueueState(name)
            self._journal.put(self.queues, name, queue)
        return queue

    def sweep(self, queue: QueueState) -> None:
        """Forget it if nothing refers to it."""
        # A job that neither waits nor runs may still name a record that was swept, and made anew, long ago.
        if queue.is_idle and self.queues.get(queue.name) is queue:
            self._journal.drop(self.queues, queue.name)

    def put(self, name: str, queue: Queue | None) -> QueueChange:
        """Let it stand there, or None."""
        known, journal, changes = self.named(name), self._journal, self._changes
        old, unclaimed, refiled = known.queue, dict[QueueState, None](), dict[QueueState, None]()
        journal.set(known, "queue", queue)
        had_limit, has_limit = (NO_RESOURCES if one is None else one.spec.limit for one in (old, queue))
        if has_limit != had_limit:
            journal.set(known, "limit", has_limit.amounts)
            changes.free_queue(name)
            unclaimed[known] = None
        budget = 0.0 if queue is None else queue.spec.budget
        preemption = NO_PREEMPTION if queue is None else queue.spec.preemption
        las = queue is not None and queue.spec.discipline is Discipline.LAS
        if _access(old) != _access(queue) or las != known.las:
            refiled[known] = None
        weight = known.weight if queue is None else queue.spec.weight
        now = {"budget": budget, "preemption": preemption, "las": las, "weight": weight}
        if queue is not None:
            now |= {"lately": queue.status.decayed_usage.amounts, "lately_of": queue.status.decayed_usage.gpu_types}
        for field, value in now.items():
            if value != getattr(known, field):
                journal.set(known, field, value)
                changes.shift()
        concerned = list(known.subtree()) if has_limit != had_limit else []
        (former, had), (parent, has) = (
            (None, None) if one is None else (one.spec.parent, one.spec.guarantee) for one in (old, queue)
        )
        if (former, had) != (parent, has):
            moved = self._move(name, former, parent)
            changes.shift()  # reservations do not bind an owner
            for one in moved:
                changes.free_queue(one.name)
            unclaimed |= dict.fromkeys(moved)
            concerned += moved
            refiled |= {one: None for one, turned in moved.items() if turned}
        elif has_limit.of_types != had_limit.of_types:
            self._set_types(known, {name: one.guarantee[0] for name, one in known.typed.items()})
        for one in concerned:
            accounts = (account for above in one.path for account in (above, *above.typed.values()))
            journal.set(one, "is_limited", any(account.limit != NOT_NAMED for account in accounts))
        return QueueChange(unclaimed, refiled)

    def _move(self, name: str, former: str | None, parent: str | None) -> dict[QueueState, bool]:
        """A queue came, went, or has another parent or guarantee now. All whose place may be another one, itself too,
        and whether jobs may run in it now and could not before, or the other way round."""
        journal = self._journal
        if former is not None and former != parent:
            journal.drop(self._naming[former], name)
        if parent is not None and former != parent:
            if parent not in self._naming:
                journal.put(self._naming, parent, {})
            journal.put(self._naming[parent], name, None)
        known = self.queues[name]
        if former is None and parent is None and not self._naming.get(name):
            self._guarantee(known, NO_RESOURCES if known.queue is None else known.queue.spec.guarantee)
            journal.set(known, "is_guaranteed", known.name in self.guaranteed)
            return {}
        queues = self._around([name, former, parent])
        turned = {}
        own = {queue.name: _used(queue) for queue in queues}
        for queue in queues:
            for child in queue.children:
                own[queue.name] = _sum(own[queue.name], _used(child), -1)
        placed = links({queue.name: queue.queue.spec for queue in queues if queue.queue is not None})
        used, children = dict(own), dict[str, list[QueueState]]()
        for queue in queues:
            path = [queue]
            at = placed[queue.name].parent if queue.name in placed else None
            if at is not None:
                children.setdefault(at, []).append(queue)
            while at is not None:
                path.append(self.queues[at])
                used[at] = _sum(used[at], own[queue.name])
                at = placed[at].parent
            journal.set(queue, "path", tuple(path))
            if len(path) > self.depth:
                journal.set(self, "depth", len(path))
        for queue in queues:
            below = tuple(sorted(children.get(queue.name, ()), key=lambda child: child.name))
            turned[queue] = bool(below) != bool(queue.children)
            journal.set(queue, "children", below)
            for gpu_type, held in used[queue.name].items():
                if gpu_type not in queue.typed and gpu_type:
                    journal.set(queue, "typed", {**queue.typed, gpu_type: Account(f"{queue.name}/{gpu_type}")})
                journal.set(queue.own(gpu_type)[-1], "used", held)
        for queue in queues:
            self._guarantee(queue, placed[queue.name].guarantee if queue.name in placed else NO_RESOURCES)
        for queue in queues:
            journal.set(queue, "is_guaranteed", any(one.name in self.guaranteed for one in queue.path))
        return turned

    def _guarantee(self, queue: QueueState, guarantee: QueueResources) -> None:
        self._journal.set(queue, "guarantee", guarantee.amounts)
        self._set_types(queue, guarantee.of_types)
        if guarantee != NO_RESOURCES:
            self._journal.put(self.guaranteed, queue.name, queue)
        else:
            self._journal.drop(self.guaranteed, queue.name)

    def _set_types(self, queue: QueueState, guaranteed: Mapping[str, int | None]) -> None:
        limits = {} if queue.queue is None else queue.queue.spec.limit.of_types
        named = {name for some in (limits, guaranteed) for name, count in some.items() if count is not None}
        if named or queue.typed:
            accounts = {}
            for name in sorted({*queue.typed, *named}):
                known = queue.typed.get(name)
                limit, guarantee = (limits.get(name), None, None), (guaranteed.get(name), None, None)
                used = NOTHING if known is None else known.used
                accounts[name] = Account(f"{queue.name}/{name}", limit, guarantee, used)
            self._journal.set(queue, "typed", accounts)
        if named:
            self._journal.put(self.typing, queue.name, None)
        else:
            self._journal.drop(self.typing, queue.name)

    def _around(self, names: Iterable[str | None]) -> list[QueueState]:
        """All queues of the trees that these stand in, as far as the objects say."""
        found: dict[str, QueueState] = {}
        todo = [name for name in names if name is not None]
        while todo:
            name = todo.pop()
            queue = self.queues.get(name)
            if name in found:
                continue
            if queue is not None:
                found[name] = queue
                todo += [above.name for above in queue.path[1:]]  # where it has stood so far
                if queue.queue is not None and queue.queue.spec.parent is not None:
                    todo.append(queue.queue.spec.parent)
                todo += self._naming.get(name, ())
        return list(found.values())


def _used(queue: QueueState) -> dict[str, Totals]:
    """GPU type → what is held; under '' of everything."""
    return {"": queue.used} | {name: one.used for name, one in queue.typed.items()}


def _sum(some: Mapping[str, Totals], more: Mapping[str, Totals], sign: int = 1) -> dict[str, Totals]:
    return dict(some) | {name: some.get(name, NOTHING).plus(amounts, sign) for name, amounts in more.items()}


def _access(queue: Queue | None) -> tuple[bool, datetime | None, tuple[str, ...] | None, int | None]:
    return (
        queue is not None,
        queue.metadata.deletion_timestamp if queue is not None else None,
        queue.spec.projects if queue is not None else None,
        queue.spec.highest_priority if queue is not None else None,
    )
