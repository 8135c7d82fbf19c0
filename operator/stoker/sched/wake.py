"""Which blocked lanes are to be tried again: those that what changed since the last decide may let start.

Owns the streams that a pass merges (`job_order`): lanes in the order of their heads, found as they are asked for. What
got free shrinks as jobs start, so a lane further back is never tried in vain. Called by `decide`.

A queue's younger job of higher priority holds back what stands behind it (`job_order`). So a stream also names the
youngest of each priority that it would have had, were it not for those shortcuts: `youngest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import numpy as np

from .budget import in_budget
from .entries import Order
from .job_order import Stream
from .queue_state import QueueState
from .reservations import MAX_RESERVATIONS, Reservations
from .state import SchedulerState
from .waiters import From, Kind, LaneIndex, Needs, Waiting, room_in

_FEW = 64
_ROWS = 16


class FreedNodes:
    """What nodes that changed since the last decide have free, as rows of (GPUs, cores, memory), per kind."""

    def __init__(self, state: SchedulerState) -> None:
        table = self._table = state.nodes
        slots = [table.slots[name] for name in state.changes.freed_nodes if name in table.slots]
        self._slots = np.array(slots, dtype=np.intp)
        self._rows: dict[Kind, list[Needs]] = {}

    def started(self) -> None:
        """A job took something."""
        if len(self._slots) <= _FEW:
            self._rows.clear()

    def in_vain(self) -> None:
        """A job found less than what the rows say."""
        self._rows.clear()

    def rows(self, kind: Kind) -> list[Needs]:
        """A worker that is within none of them fits on no such node."""
        found = self._rows.get(kind)
        if found is None:
            found = self._rows[kind] = self._work_out(kind) if len(self._slots) else []
        return found

    def _work_out(self, kind: Kind) -> list[Needs]:
        table, slots = self._table, self._slots
        slots = slots[table.open_for(kind.nodes)[slots]]
        for resource, count in kind.extended:
            slots = slots[table.extended[resource].free[slots] >= count]
        if kind.avoid:
            slots = slots[[table.names[slot] not in kind.avoid for slot in slots]]
        if not len(slots):
            return []
        gpus = table.free_gpu if kind.filter is None else table.free_for(kind.filter)
        columns = (gpus[slots], table.free_cpu[slots], table.free_mem[slots])
        rows = set(zip(*(column.tolist() for column in columns), strict=True)) if len(slots) <= _FEW else set()
        if len(rows) in range(1, _ROWS + 1):
            return [one for one in rows if not any(one != other and _within(one, other) for other in rows)]
        gpu, cpu, memory = columns
        return [(int(count), int(cpu[gpu == count].max()), int(memory[gpu == count].max())) for count in np.unique(gpu)]


class ForNodes:
    """Lanes that a freed node may take a worker of."""

    only_reserves = False

    def __init__(self, index: LaneIndex, kind: Kind, freed: FreedNodes) -> None:
        self.gpus = kind.filter is not None
        self.index, self._kind, self._freed = index, kind, freed

    def first(self, begin: From) -> Waiting | None:
        return self.index.first_within(self._freed.rows(self._kind), begin)

    def youngest(self, priority: int) -> Order | None:
        found = (_youngest(self.index, priority, (priority + 1,), row) for row in self._freed.rows(self._kind))
        return max((one.order for one in found if one is not None), default=None)


class ForLimit:
    """Lanes that their queue has room for now."""

    only_reserves = False
    gpus = None

    def __init__(self, index: LaneIndex, queue: QueueState) -> None:
        self.index, self._queue = index, queue

    def first(self, begin: From) -> Waiting | None:
        return self.index.first_within([room_in(self._queue)], begin)

    def youngest(self, priority: int) -> Order | None:
        found = _youngest(self.index, priority, (priority + 1,))
        return None if found is None else found.order


class Reserving:
    """Lanes whose heads have waited long enough to reserve, and may, as long as it makes a difference."""

    only_reserves = True
    gpus = None

    def __init__(
        self, state: SchedulerState, name: str, aged: datetime, now: datetime, reservations: Reservations
    ) -> None:
        """`aged`: who waits since then or longer has waited long enough."""
        self.index = state.lanes.waiters.heads[name]
        self._state, self._queue, self._aged, self._now = state, state.queues[name], aged, now
        self._reservations = reservations

    def first(self, begin: From) -> Waiting | None:
        while True:
            if self._reservations.gangs < MAX_RESERVATIONS:
                found = self.index.at(begin)
            elif self._reservations.limited[self._queue.name] < MAX_RESERVATIONS:
                found = self.index.first_beyond(room_in(self._queue), begin)
            else:
                return None
            if found is None or self._may(found):
                return found
            begin = (*found.order, 0) if found.order[1] <= self._aged else (found.order[0] + 1,)

    def youngest(self, priority: int) -> Order | None:
        index, end = self.index, (priority, self._aged, ("\U0010ffff",))
        found = _youngest(index, priority, end, accept=self._may)
        return None if found is None else found.order

    def _may(self, found: Waiting) -> bool:
        place = found.lane.place
        return (
            place is not None
            and place.since <= self._aged
            and in_budget(self._state, self._state.entries[found.order[2]], self._now)
        )


def woken(state: SchedulerState, freed: FreedNodes) -> Iterator[tuple[str, Stream]]:
    """(queue, lanes of it that nodes or the queue's limit got room for)."""
    for kind, queues in state.lanes.waiters.for_nodes.items():
        if freed.rows(kind):
            for name, index in queues.items():
                yield name, ForNodes(index, kind, freed)
    freed_queues = [state.queues[name] for name in state.changes.freed_queues if name in state.queues]
    for queue in {one.name: one for top in freed_queues for one in top.subtree()}.values():
        if queue.name in state.lanes.waiters.for_limit:
            yield queue.name, ForLimit(state.lanes.waiters.for_limit[queue.name], queue)


def reserving(
    state: SchedulerState, now: datetime, reserve_after_s: float, reservations: Reservations
) -> Iterator[tuple[str, Stream]]:
    aged = now - timedelta(seconds=reserve_after_s)
    if state.lanes.waiters.ages and state.lanes.waiters.ages.first()[0] <= aged:
        for name in state.lanes.waiters.heads:
            if state.queues[name].budget:
                yield name, Reserving(state, name, aged, now, reservations)


def _youngest(
    index: LaneIndex,
    priority: int,
    end: From,
    room: Needs | None = None,
    accept: Callable[[Waiting], bool] = lambda one: True,
) -> Waiting | None:
    """The last of the priority before `end`."""
    found = next((one for one in index.backwards(end, room) if one.order[0] != priority or accept(one)), None)
    return None if found is None or found.order[0] != priority else found


def _within(needs: Needs, room: Needs) -> bool:
    return all(need <= there for need, there in zip(needs, room, strict=True))
