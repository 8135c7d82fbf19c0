"""Which blocked lanes are to be tried again: those that what changed since the last decide may let start.

Owns the streams that a pass merges (`job_order`): lanes in the order of their heads, found as they are asked for. What
got free shrinks as jobs start and as reservations are made, so a lane further back is never tried in vain. Lanes that
are passed over for what is kept stay where they stand: the nodes and queues that it is kept of are looked at again
each time, as if they had got free. Called by `decide`.

A queue's younger job of higher priority holds back what stands behind it (`job_order`). So a stream also names the
youngest of each priority that it would have had, were it not for those shortcuts: `youngest`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from heapq import merge
from itertools import islice

from .budget import in_budget
from .entries import Lane, Order
from .freed_nodes import FreedNodes, Look, Rows
from .gpu_choice import choices
from .job_order import Stream
from .place import fits_somewhere
from .queue_state import QueueState
from .request import GpuFilter
from .reservations import MAX_RESERVATIONS, Reservations, reserves
from .state import SchedulerState
from .waiters import From, Kind, LaneIndex, Needs, Waiting, is_within, room_in

_LOOKED_AT = 64


class ForNodes:
    """Lanes that a node may take a worker of, beside what is kept."""

    only_reserves = False

    def __init__(self, index: LaneIndex, kind: Kind, queue: QueueState, rows: Rows, reservations: Reservations) -> None:
        self.gpus = kind.filter is not None
        self.index, self._queue, self._rows, self._reservations = index, queue, rows, reservations

    def first(self, begin: From) -> Waiting | None:
        """What binds the first of a priority binds all behind it."""
        while (fits := self.index.first_within(self._rows.beside(), begin)) is not None:
            kept = self._reservations.ahead_of(fits.order, self._queue)
            if not kept.count:
                return fits
            rows, by_limit = self._rows.beside(kept), False
            found = _first(self.index, rows, fits)
            if found is not None and kept.queues:
                left = room_in(self._queue, kept.queues)
                by_limit = not is_within(found.needs, left)
                if by_limit:
                    found = _first(self.index, [tuple(map(min, row, left)) for row in rows], found)
            if found is not fits:
                self._reservations.hold_back(self._queue, by_limit=by_limit)
            if found is not None:
                return found
            begin = (fits.order[0] + 1,)
        return None

    def youngest(self, priority: int) -> Order | None:
        found = (_youngest(self.index, priority, (priority + 1,), row) for row in self._rows.at_first)
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
        return self._first(self._following, begin)

    def within_limit(self) -> Iterator[Order]:
        """All that nodes may be kept for."""
        following, begin = self.index.at, From()
        if self._queue.is_limited:
            following = partial(self.index.first_within, [room_in(self._queue)])
        while (found := self._first(following, begin)) is not None:
            yield found.order
            begin = (*found.order, 0)

    def _first(self, following: Callable[[From], Waiting | None], begin: From) -> Waiting | None:
        while True:
            found = following(begin)
            if found is None or self._may(found):
                return found
            begin = (*found.order, 0) if found.order[1] <= self._aged else (found.order[0] + 1,)

    def _following(self, begin: From) -> Waiting | None:
        """The first from there on that there is a place for."""
        if self._reservations.places:
            return self.index.at(begin)
        found = None
        if self._reservations.limited[self._queue.name] < MAX_RESERVATIONS:
            found = self.index.first_beyond(room_in(self._queue), begin)
        for order in self._reservations.with_place(self._queue, begin):
            if found is not None and found.order <= order:
                break
            one = self.index.at(order)
            if one is not None and one.order == order:
                return one
        return found

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
            rows = freed.rows(kind, name)
            if index.some_within(rows.at_first):
                yield name, ForNodes(index, kind, state.queues[name], rows, reservations)
    tops = [state.queues[name] for name in freed.queues if name in state.queues]
    for name in sorted({one.name for top in tops for one in top.subtree()} | freed.held):
        if name in state.lanes.waiters.for_limit:
            yield name, ForLimit(state.lanes.waiters.for_limit[name], state.queues[name], reservations)


def some_held_back(state: SchedulerState) -> bool:
    """It was not ruled out that a job would start, were nothing kept."""
    lanes = _may_be_held_back(state)
    return any(_would_start(state, lane) for lane in islice(lanes, _LOOKED_AT)) or next(lanes, None) is not None


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
        within += [(index, freed.rows(kind, name).beside()) for name, index in queues.items()]
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
        lane.queue.has_room(one) and fits_somewhere(state.nodes, one, lane.avoid)
        for one in choices(state, lane.queue, lane.request)
    )


def reserving(
    state: SchedulerState, now: datetime, reserve_after_s: float, reservations: Reservations
) -> list[tuple[str, Reserving]]:
    """(queue, lanes of it that may reserve). Where these are more than there are places, the places are set aside."""
    aged, waiters, count = now - timedelta(seconds=reserve_after_s), state.lanes.waiters, len(state.lanes.untried)
    streams = list[tuple[str, Reserving]]()
    if waiters.ages and waiters.ages.first()[0] <= aged:
        some = (name for name in waiters.heads if state.queues[name].budget)
        streams += [(name, Reserving(state, name, aged, now, reservations)) for name in some]
        count += sum(since <= aged for since, _ in islice(waiters.ages, MAX_RESERVATIONS + 1))
    if count > MAX_RESERVATIONS:
        orders: dict[str, Iterator[Order]] = {name: stream.within_limit() for name, stream in streams}
        untried = defaultdict[str, list[Order]](list)
        for lane in state.lanes.untried:
            order = lane.jobs.first()
            if reserves(state, state.entries[order[2]], now, reserve_after_s) and lane.queue.has_room(lane.request):
                untried[lane.queue.name].append(order)
        for name, some_orders in untried.items():
            orders[name] = merge(sorted(some_orders), orders.get(name, ()))
        reservations.set_aside(_first_of_each(orders))
    return streams


def _first_of_each(queues: Mapping[str, Iterator[Order]]) -> dict[str, list[Order]]:
    """The first job of each queue, then the second of each, and so on, as long as there are places; the last go to
    those that have waited longest. Shares, by which turns go, don't count: a queue that goes first would have all
    places, and others' gangs would lose theirs, and their nodes, with each start."""
    found, left, heads = defaultdict[str, list[Order]](list), MAX_RESERVATIONS, [*queues.items()]
    while left > 0 and heads:
        firsts = [(name, order) for name, orders in heads if (order := next(orders, None)) is not None]
        for name, order in sorted(firsts, key=lambda one: one[1][1:])[:left]:
            found[name].append(order)
        left -= len(firsts)
        heads = [(name, queues[name]) for name, _ in firsts]
    return found


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
