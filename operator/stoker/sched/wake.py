"""Which blocked lanes are to be tried again: those that what changed since the last decide may let start.

Owns the streams that a pass merges (`job_order`): lanes in the order of their heads, found as they are asked for. What
got free shrinks as jobs start and as reservations are made, so a lane further back is never tried in vain. Lanes that
are passed over for what is kept stay where they stand: the nodes and queues that it is kept of are looked at again
each time, as if they had got free. Called by `decide`.

A queue's younger job of higher priority holds back what stands behind it (`job_order`). So a stream also names the
youngest of each priority that it would have had, were it not for those shortcuts: `youngest`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from .budget import in_budget
from .entries import Lane, Order
from .gpu_choice import choices
from .job_order import Stream
from .place import Keep, place
from .queue_state import QueueState
from .request import GpuFilter
from .reservations import MAX_RESERVATIONS, Kept, Reservations
from .state import SchedulerState
from .waiters import From, Kind, LaneIndex, Needs, Waiting, room_in

_FEW = 64
_ROWS = 16


class Look(NamedTuple):
    """Which room a pass looks at."""

    freed: bool
    """What got free since the last decide."""
    kept: bool
    """What reservations keep, or did."""


class FreedNodes:
    """What nodes have free that a pass looks at, as rows of (GPUs, cores, memory), per kind."""

    def __init__(self, state: SchedulerState, look: Look) -> None:
        changes = state.changes
        self.queues = changes.freed_queues if look.freed else set()
        names = changes.freed_nodes if look.freed else set()
        self.held = frozenset(changes.kept_queues if look.kept else ())
        """Queues for whose lanes all nodes are looked at."""
        self._some = _Rows(state, names | changes.kept_nodes if look.kept else names)
        self._all = _Rows(state, state.nodes.slots if self.held else ())

    def started(self) -> None:
        """A job took something."""
        self._some.started()
        self._all.started()

    def in_vain(self) -> None:
        """A job found less than what the rows say."""
        self._some.clear()
        self._all.clear()

    def rows(self, queue: str, kind: Kind, kept: Kept | None = None) -> list[Needs]:
        """A worker that is within none of them fits on no such node; beside what is kept."""
        return (self._all if queue in self.held else self._some).of(kind, kept)


class _Rows:
    """Of some nodes."""

    def __init__(self, state: SchedulerState, names: Collection[str]) -> None:
        table = self._table = state.nodes
        self._slots = np.array([table.slots[name] for name in names if name in table.slots], dtype=np.intp)
        self._found: dict[tuple[Kind, Kept | None, int], list[Needs]] = {}

    def started(self) -> None:
        if len(self._slots) <= _FEW:
            self.clear()

    def clear(self) -> None:
        self._found.clear()

    def of(self, kind: Kind, kept: Kept | None) -> list[Needs]:
        if not len(self._slots):
            return []
        of = kind, kept, 0 if kept is None else kept.count
        found = self._found.get(of)
        if found is None:
            found = self._found[of] = self._work_out(kind, None if kept is None else kept.nodes)
        return found

    def _work_out(self, kind: Kind, keep: Keep | None) -> list[Needs]:
        table, slots = self._table, self._slots
        slots = slots[table.open_for(kind.nodes)[slots]]
        for resource, count in kind.extended:
            free = table.extended[resource].free
            slots = slots[(free if keep is None else keep.leave(resource, free))[slots] >= count]
        if kind.filter is not None:
            gpus = table.free_for(kind.filter) if keep is None else keep.most_for(kind.filter)
            slots = slots[gpus[slots] > 0]
        else:
            gpus = table.free_gpu
        if kind.avoid:
            slots = slots[[table.names[slot] not in kind.avoid for slot in slots]]
        if not len(slots):
            return []
        columns = [gpus[slots], table.free_cpu[slots], table.free_mem[slots]]
        if keep is not None:
            columns[1:] = columns[1] - keep.cpu[slots], columns[2] - keep.memory[slots]
        rows = set(zip(*(column.tolist() for column in columns), strict=True)) if len(slots) <= _FEW else set()
        if len(rows) in range(1, _ROWS + 1):
            return [one for one in rows if not any(one != other and _within(one, other) for other in rows)]
        gpu, cpu, memory = columns
        return [(int(count), int(cpu[gpu == count].max()), int(memory[gpu == count].max())) for count in np.unique(gpu)]


class ForNodes:
    """Lanes that a node may take a worker of, beside what is kept."""

    only_reserves = False

    def __init__(
        self, index: LaneIndex, kind: Kind, queue: QueueState, freed: FreedNodes, reservations: Reservations
    ) -> None:
        self.gpus = kind.filter is not None
        self.index, self._kind, self._queue = index, kind, queue
        self._freed, self._reservations = freed, reservations

    def first(self, begin: From) -> Waiting | None:
        """What binds the first of a priority binds all behind it."""
        while (fits := self.index.first_within(self.rows(), begin)) is not None:
            kept = self._reservations.ahead_of(fits.order, self._queue)
            if not kept.count:
                return fits
            rows, by_limit = self.rows(kept), False
            found = _first(self.index, rows, fits)
            if found is not None and kept.queues:
                left = room_in(self._queue, kept.queues)
                by_limit = not _within(found.needs, left)
                if by_limit:
                    found = _first(self.index, [tuple(map(min, row, left)) for row in rows], found)
            if found is not fits:
                self._reservations.hold_back(self._queue, by_limit=by_limit)
            if found is not None:
                return found
            begin = (fits.order[0] + 1,)
        return None

    def rows(self, kept: Kept | None = None) -> list[Needs]:
        return self._freed.rows(self._queue.name, self._kind, kept)

    def youngest(self, priority: int) -> Order | None:
        found = (_youngest(self.index, priority, (priority + 1,), row) for row in self.rows())
        return max((one.order for one in found if one is not None), default=None)


class ForLimit:
    """Lanes that their queue has room for now, beside what is kept."""

    only_reserves = False
    gpus = None

    def __init__(self, index: LaneIndex, queue: QueueState, reservations: Reservations) -> None:
        self.index, self._queue, self._reservations = index, queue, reservations

    def first(self, begin: From) -> Waiting | None:
        while (fits := self.index.first_within([room_in(self._queue)], begin)) is not None:
            kept = self._reservations.ahead_of(fits.order, self._queue)
            found = _first(self.index, [room_in(self._queue, kept.queues)], fits)
            if found is not fits:
                self._reservations.hold_back(self._queue, by_limit=True)
            if found is not None:
                return found
            begin = (fits.order[0] + 1,)
        return None

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


def woken(state: SchedulerState, freed: FreedNodes, reservations: Reservations) -> Iterator[tuple[str, Stream]]:
    """(queue, lanes of it that there is room for on the nodes, or that the queue's limit got room for)."""
    for kind, queues in state.lanes.waiters.for_nodes.items():
        for name, index in queues.items():
            rows = freed.rows(name, kind)
            if rows and index.some_within(rows):
                yield name, ForNodes(index, kind, state.queues[name], freed, reservations)
    tops = [state.queues[name] for name in freed.queues if name in state.queues]
    for name in sorted({one.name for top in tops for one in top.subtree()} | freed.held):
        if name in state.lanes.waiters.for_limit:
            yield name, ForLimit(state.lanes.waiters.for_limit[name], state.queues[name], reservations)


def some_held_back(state: SchedulerState) -> bool:
    """It was not ruled out that a job would start, were nothing kept."""
    lanes = _may_be_held_back(state)
    return any(_would_start(state, lane) for lane in islice(lanes, _FEW)) or next(lanes, None) is not None


def held_back(state: SchedulerState, most: int) -> int:
    """GPUs that jobs want that would start, were nothing kept; or `most`, if that is less."""
    wanted, lanes = 0, _may_be_held_back(state)
    while wanted < most and (lane := next(lanes, None)) is not None:
        if _would_start(state, lane):
            wanted += len(lane.jobs) * lane.request.totals.gpus
    return min(wanted, most)


def _may_be_held_back(state: SchedulerState) -> Iterator[Lane]:
    """Lanes that wait though there is room for a worker in what a pass looks at."""
    freed, waiters = FreedNodes(state, Look(freed=True, kept=True)), state.lanes.waiters
    within: list[tuple[LaneIndex, list[Needs]]] = []
    for kind, queues in waiters.for_nodes.items():
        within += [(index, freed.rows(name, kind)) for name, index in queues.items()]
    limited = ((name, waiters.for_limit[name]) for name in freed.held if name in waiters.for_limit)
    within += [(index, [room_in(state.queues[name])]) for name, index in limited]

    @cache
    def most_workers(wanted: GpuFilter, gpus: int) -> int:
        """That all nodes take, as far as GPUs go."""
        return int((state.nodes.free_for(wanted) // gpus).clip(0).sum())

    seen: set[Lane] = set()
    for index, rows in within:
        found = index.first_within(rows)
        while found is not None:
            lane, request = found.lane, found.lane.request
            fits = request.workers == 1 or not request.gpus
            if lane not in seen and (fits or most_workers(request.filter, request.gpus) >= request.workers):
                seen.add(lane)
                yield lane
            found = index.first_within(rows, (*found.order, 0))


def _would_start(state: SchedulerState, lane: Lane) -> bool:
    return any(
        lane.queue.has_room(one) and place(state.nodes, one, lane.avoid) is not None
        for one in choices(state, lane.queue, lane.request)
    )


def reserving(
    state: SchedulerState, now: datetime, reserve_after_s: float, reservations: Reservations
) -> Iterator[tuple[str, Stream]]:
    aged = now - timedelta(seconds=reserve_after_s)
    if state.lanes.waiters.ages and state.lanes.waiters.ages.first()[0] <= aged:
        for name in state.lanes.waiters.heads:
            if state.queues[name].budget:
                yield name, Reserving(state, name, aged, now, reservations)


def _first(index: LaneIndex, rooms: list[Needs], begin: Waiting) -> Waiting | None:
    """The first from there on within one of `rooms`, of the same priority."""
    found = index.first_within(rooms, begin.order)
    return None if found is None or found.order[0] != begin.order[0] else found


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
