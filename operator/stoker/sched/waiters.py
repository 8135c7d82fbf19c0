"""Blocked lanes, indexed by what would free them, so that a change finds those it is of use to.

Owns the indexes: room on nodes (by what a node must be, per queue), room in the queue, and age. A lane that waits only
because of reservations stands with those that wait for nodes. Called by `state` (changes), `wake` and `reservations`
(searches). Cost: put, drop O(sqrt lanes); a search skips a run of lanes whose least needs find no room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from math import inf
from operator import eq, le
from typing import Any, NamedTuple, cast

from stoker.spec.queue import NOT_NAMED

from .eligible import NodeFilter
from .entries import BlockedBy, Lane, Order, Place
from .journal import Journal
from .queue_state import NONE_KEPT, QueueState
from .request import NOTHING, GpuFilter, Totals
from .sorted_list import SortedList

Needs = tuple[int, ...]
From = tuple[Any, ...]
"""An order, or the beginning of one."""
_NONE = -(2**62)  # what isn't wanted can't be short, not even where more is held than there is


class Kind(NamedTuple):
    """What a node must be and have beside GPUs, cores and memory."""

    nodes: NodeFilter
    filter: GpuFilter | None
    """None: no GPU is asked for."""
    extended: tuple[tuple[str, int], ...]
    avoid: frozenset[str]

    @classmethod
    def of(cls, lane: Lane) -> Kind:
        request = lane.request
        return cls(request.nodes, request.filter if request.gpus else None, request.extended, lane.avoid)


class Waiting(NamedTuple):
    order: Order
    """Of the lane's head."""
    needs: Needs
    lane: Lane


Bounds = tuple[Needs, Needs]
"""Of each need: none is less than the first, none more than the second."""


class _Run(list[Waiting]):
    """Neighbours in a LaneIndex, with bounds of their needs."""

    __slots__ = ("_bounds", "_gone")
    _bounds: Bounds | None

    def __init__(self, items: Iterable[Waiting]) -> None:
        super().__init__(items)
        self._bounds, self._gone = None, 0

    def insert(self, at: Any, item: Waiting) -> None:
        super().insert(at, item)
        if self._bounds is not None:
            self._bounds = _widened(self._bounds, item.needs)

    def __delitem__(self, at: Any) -> None:
        before = len(self)
        super().__delitem__(at)
        self._gone += before - len(self)
        if self._gone > len(self) // 4:  # until then the bounds are hardly too wide
            self._bounds = None

    @property
    def bounds(self) -> Bounds:
        if self._bounds is None:
            columns = list(zip(*(item.needs for item in self), strict=True))
            self._bounds, self._gone = (tuple(map(min, columns)), tuple(map(max, columns))), 0
        return self._bounds


def _widened(bounds: Bounds, needs: Needs) -> Bounds:
    least, most = bounds
    return tuple(map(min, least, needs)), tuple(map(max, most, needs))


def _moved(items: Sequence[Waiting], each: Callable[[Sequence[Lane]], Iterable[Lane]]) -> Iterator[Waiting]:
    orders, needs, lanes = zip(*items, strict=True) if items else ((), (), ())
    return map(tuple.__new__, repeat(Waiting), zip(orders, needs, each(lanes), strict=True))


class LaneIndex(SortedList[Waiting]):
    """Lanes of one queue in the order of their heads."""

    RUN, CHUNK = _Run, 64
    __slots__ = ("_bounds",)
    _bounds: Bounds | None
    """As a run's."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds = None

    def with_lanes(self, each: Callable[[Sequence[Lane]], Iterable[Lane]]) -> LaneIndex:
        """The same of the lanes that stand for these in a copy; `each`: what stands for each."""
        new = LaneIndex()
        new._splits, new._bounds = tuple(_moved(self._splits, each)), self._bounds
        for run in self._chunks:
            moved = _Run(_moved(run, each))
            moved._bounds, moved._gone = cast(_Run, run)._bounds, cast(_Run, run)._gone
            new._chunks.append(moved)
        return new

    def add(self, item: Waiting) -> None:
        super().add(item)
        if self._bounds is not None:
            self._bounds = _widened(self._bounds, item.needs)

    def remove(self, item: Waiting) -> None:
        super().remove(item)
        if self._bounds is not None and any(any(map(eq, bound, item.needs)) for bound in self._bounds):
            self._bounds = None

    @property
    def bounds(self) -> Bounds:
        """There is at least one lane."""
        if self._bounds is None:
            least, most = zip(*(cast(_Run, run).bounds for run in self._chunks), strict=True)
            self._bounds = tuple(map(min, zip(*least, strict=True))), tuple(map(max, zip(*most, strict=True)))
        return self._bounds

    def some_within(self, rooms: Sequence[Needs]) -> list[Needs]:
        """Those of `rooms` that may take one of the lanes."""
        least = self.bounds[0]
        return [room for room in rooms if all(map(le, least, room))]

    def first_within(self, rooms: Sequence[Needs], begin: From = ()) -> Waiting | None:
        """The first from `begin` on whose needs are all within one of `rooms`."""
        if not self._chunks or not (rooms := self.some_within(rooms)):
            return None
        for run, at in self._runs(begin):
            least = run.bounds[0]
            fine = [room for room in rooms if all(map(le, least, room))]
            if fine:
                for item in run[at:]:
                    for room in fine:
                        if all(map(le, item.needs, room)):
                            return item
        return None

    def first_beyond(self, room: Needs, begin: From) -> Waiting | None:
        """The first from `begin` on with a need that is not within `room`."""
        if not self._chunks or all(map(le, self.bounds[1], room)):
            return None
        for run, at in self._runs(begin):
            if not all(map(le, run.bounds[1], room)):
                for item in run[at:]:
                    if not all(map(le, item.needs, room)):
                        return item
        return None

    def backwards(self, end: From, room: Needs | None = None) -> Iterator[Waiting]:
        """From `end` on, those within `room`."""
        if not self._chunks or (room is not None and not self.some_within([room])):
            return
        for i in range(bisect_left(self._splits, (end,)), -1, -1):
            run = cast(_Run, self._chunks[i])
            if room is None or all(map(le, run.bounds[0], room)):
                for item in reversed(run[: bisect_left(run, (end,))]):
                    if room is None or all(map(le, item.needs, room)):
                        yield item

    def priorities(self, begin: From = (), end: From = (inf,)) -> list[int]:
        """The first parts of the orders between those, each once."""
        found: list[int] = []
        while (item := self.at(begin)) is not None and item.order < end:
            found.append(item.order[0])
            begin = (item.order[0] + 1,)
        return found

    def at(self, begin: From) -> Waiting | None:
        return self.next((begin,))

    def _runs(self, begin: From) -> Iterator[tuple[_Run, int]]:
        """The runs from there on, and where in them to begin."""
        first = bisect_left(self._splits, (begin,))
        for i in range(first, len(self._chunks)):
            run = cast(_Run, self._chunks[i])
            yield run, bisect_left(run, (begin,)) if i == first else 0


class Waiters:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.for_nodes: dict[Kind, dict[str, LaneIndex]] = {}
        """Kind -> queue -> lanes; needs: GPUs, cores, memory of a worker."""
        self.for_limit: dict[str, LaneIndex] = {}
        """Queue -> lanes; needs: those of a job, as Totals."""
        self.heads: dict[str, LaneIndex] = {}
        """Queue -> every blocked lane; needs as `for_limit`."""
        self.ages: SortedList[tuple[datetime, Order]] = SortedList()
        """Since when each blocked lane's head waits."""

    def put(self, lane: Lane, blocked_by: BlockedBy, since: datetime) -> None:
        place = Place(blocked_by, lane.jobs.first(), since)
        self._enter(lane, place)
        self._journal.note(self._leave, lane, place)

    def drop(self, lane: Lane) -> None:
        """Nothing happens where it is not blocked."""
        if lane.place is not None:
            place = lane.place
            self._leave(lane, place)
            self._journal.note(self._enter, lane, place)

    def next_since(self, after: datetime) -> datetime | None:
        """When the first head that waits since later than that began to."""
        found = self.ages.next((after, (2**63,)))
        return None if found is None else found[0]

    def _enter(self, lane: Lane, place: Place) -> None:
        lane.place = place
        self.ages.add((place.since, place.order))
        self._each(lane, place, LaneIndex.add)

    def _leave(self, lane: Lane, place: Place) -> None:
        lane.place = None
        self.ages.remove((place.since, place.order))
        self._each(lane, place, LaneIndex.remove)

    def _each(self, lane: Lane, place: Place, change: Callable[[LaneIndex, Waiting], None]) -> None:
        queue, request = lane.queue.name, lane.request
        each = Waiting(place.order, _needs(request[1:4]), lane)
        in_all = each if request.workers == 1 else Waiting(place.order, _needs(request.totals), lane)
        _change(self.heads, queue, in_all, change)
        if place.blocked_by in (BlockedBy.LIMIT, BlockedBy.EITHER):
            _change(self.for_limit, queue, in_all, change)
        if place.blocked_by in (BlockedBy.CAPACITY, BlockedBy.EITHER):
            kind = Kind.of(lane)
            lanes = self.for_nodes.setdefault(kind, {})
            _change(lanes, queue, each, change)
            if not lanes:
                del self.for_nodes[kind]


def _change(
    indexes: dict[str, LaneIndex], queue: str, item: Waiting, change: Callable[[LaneIndex, Waiting], None]
) -> None:
    index = indexes.get(queue)
    if index is None:
        index = indexes[queue] = LaneIndex()
    change(index, item)
    if not index:
        del indexes[queue]


def _needs(wanted: Sequence[int]) -> Needs:
    return tuple(want or _NONE for want in wanted)


def room_in(queue: QueueState, kept: Mapping[str, Totals] = NONE_KEPT) -> Needs:
    """What is left of the queue's limit and of those above, to compare a job's needs with. `kept`: account → what is
    spoken for."""
    left: Needs = (2**62, 2**62, 2**62)
    for one in queue.path if queue.is_limited else ():
        if one.limit != NOT_NAMED:
            room = (
                there if limit is None else limit - used - keep
                for limit, used, keep, there in zip(one.limit, one.used, kept.get(one.name, NOTHING), left, strict=True)
            )
            left = tuple(map(min, left, room))
    return left


def is_within(needs: Needs, room: Needs) -> bool:
    return all(need <= there for need, there in zip(needs, room, strict=True))
