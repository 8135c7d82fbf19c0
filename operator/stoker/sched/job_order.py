"""The order in which jobs are tried: the heads of many lanes, merged.

Owns the order between jobs. Between queues, at each level of their tree: one that holds less than its guarantee goes
first, then the one with the least share, then the job that has waited longer. A queue's share is the largest part that
it holds of any resource of the cluster, and held on average of late, divided by its weight (dominant resource fairness:
Ghodsi et al., NSDI 2011). Within a queue higher priority goes first, then the longer wait: a priority never passes
another queue's job. Called by `decide`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from operator import is_
from typing import Any, NamedTuple, Protocol

from .entries import Lane, LaneKind, Order, QueueState
from .gpu_choice import guarantees_types, kind_of
from .request import Totals
from .state import SchedulerState
from .waiters import From, Waiting

Rank = tuple[Any, ...]
"""A group's place among all, smallest first: (level by level from the top: guarantee, share), age of its head."""


class Stream(Protocol):
    """Blocked lanes of one queue."""

    only_reserves: bool

    @property
    def gpus(self) -> bool | None:
        """All its lanes want GPUs, those of one filter, or none does. None: some of each may be there."""

    def first(self, begin: From) -> Waiting | None:
        """The first from there on."""

    def youngest(self, priority: int) -> Order | None:
        """The last of that priority (an order's first part)."""


class _Part:
    """Those lanes of a stream that are of one kind."""

    gpus = None

    def __init__(self, state: SchedulerState, stream: Stream, kind: LaneKind) -> None:
        self._state, self._stream, self._kind = state, stream, kind
        self.only_reserves, self.youngest = stream.only_reserves, stream.youngest

    def first(self, begin: From) -> Waiting | None:
        found = self._stream.first(begin)
        while found is not None and kind_of(self._state, found.lane) != self._kind:
            found = self._stream.first((*found.order, 0))
        return found


class _Turn(NamedTuple):
    order: Order
    only_reserves: bool
    """It comes after that of the same lane which may start it."""
    number: int
    lane: Lane | None
    """None: it only holds back what stands behind it."""
    stream: Stream | None


@dataclass(slots=True, eq=False)
class _Group:
    """Turns of one queue that differ in nothing but their order."""

    queue: QueueState
    kind: LaneKind
    """If its queue is guaranteed something."""
    turns: list[_Turn] = field(default_factory=list)
    rank: Rank = ()
    """That it stands under, until its turn shows that it has another one by now: a start can only put it back."""
    used: Totals | None = None
    level: Rank = ()
    """That of the queue when it held `used`, where the tree is flat."""


class JobOrder:
    """A merge of the queues, each sorted by Order. Cost: add, pop O(log lanes); a start moves the groups of the queues
    under its top-level queue, each when its turn comes."""

    def __init__(self, state: SchedulerState, lanes: Iterable[Lane]) -> None:
        self._state, self._capacity = state, state.nodes.capacity
        self._flat = state.tree.depth == 1
        self._out: _Group | None = None
        """That of the last turn: it stands among the others again when the next is asked for, as it may hold more."""
        self._groups: dict[tuple[str, LaneKind], _Group] = {}
        self._heads: list[tuple[Rank, int, _Group]] = []  # some are no longer
        self._count = count()
        for lane in lanes:
            self.add(lane)

    def add(self, lane: Lane) -> None:
        turn = _Turn(lane.jobs.first(), False, next(self._count), lane, None)
        self._push(lane.queue, kind_of(self._state, lane), turn)

    def follow(self, name: str, stream: Stream, priorities: Iterable[int]) -> None:
        """Blocked lanes of the queue in order, each looked for as its turn comes. `priorities`: those of the queue's
        lanes, if they differ."""
        queue = self._state.queues[name]
        parts: dict[LaneKind, Stream] = {stream.gpus is True: stream}
        if guarantees_types(self._state, queue):
            kinds = {kind_of(self._state, lane) for lane in queue.lanes.values()}
            parts = {kind: _Part(self._state, stream, kind) for kind in kinds}
        elif stream.gpus is None and queue.is_guaranteed:
            parts = {kind: _Part(self._state, stream, kind) for kind in (True, False)}
        for kind, part in parts.items():
            for priority in priorities:
                held_back = part.youngest(priority)
                if held_back is not None:
                    turn = _Turn(held_back, part.only_reserves, next(self._count), None, None)
                    self._push(queue, kind, turn)
            self._look(queue, part, ())

    def pop(self) -> tuple[Order, Lane, bool] | None:
        """The next head and its lane, and whether it may but reserve. None: there is none.

        A lane that was started from is to be added again if it has more.
        """
        if self._out is not None and self._out.turns:
            self._enter(self._out, self._rank(self._out))
        self._out = None
        while self._heads:
            rank, _, group = heappop(self._heads)
            if rank is not group.rank:
                continue
            if not self._flat or group.used is not group.queue.used:
                now_at = self._rank(group)
                if now_at != rank:
                    self._enter(group, now_at)
                    continue
            turn = heappop(group.turns)
            lane = turn.lane
            if turn.stream is not None:
                now = turn.stream.first(turn.order)
                if now is None or now.order != turn.order:
                    lane = None
                    if now is not None:
                        heappush(group.turns, turn._replace(order=now.order, lane=now.lane, number=next(self._count)))
                else:
                    found = turn.stream.first((*turn.order, 0))
                    if found is not None:
                        again = _Turn(found.order, turn.only_reserves, next(self._count), found.lane, turn.stream)
                        heappush(group.turns, again)
            group.rank = ()
            if lane is not None:
                self._out = group
                return turn.order, lane, turn.only_reserves
            if group.turns:
                self._enter(group, self._rank(group))
        return None

    def _look(self, queue: QueueState, stream: Stream, begin: From) -> None:
        found = stream.first(begin)
        if found is not None:
            turn = _Turn(found.order, stream.only_reserves, next(self._count), found.lane, stream)
            self._push(queue, kind_of(self._state, found.lane), turn)

    def _push(self, queue: QueueState, kind: LaneKind, turn: _Turn) -> None:
        kind = kind if queue.is_guaranteed else False
        group = self._groups.get((queue.name, kind))
        if group is None:
            group = self._groups[queue.name, kind] = _Group(queue, kind)
        heappush(group.turns, turn)
        if group.turns[0] is turn and group is not self._out:
            self._enter(group, self._rank(group))

    def _enter(self, group: _Group, rank: Rank) -> None:
        group.rank = rank
        heappush(self._heads, (rank, next(self._count), group))

    def _rank(self, group: _Group) -> Rank:
        age = group.turns[0].order[1:]
        if self._flat:
            if group.used is not group.queue.used:
                group.used, group.level = group.queue.used, self._level(group.queue, group.kind)
            return group.level + age
        path = group.queue.path
        missing = self._state.tree.depth - len(path)
        level = self._level(path[0], group.kind)
        above = [self._level(queue, group.kind) for queue in path[:0:-1]]
        return sum(above, ()) + level * (1 + missing) + age  # as long as the deepest queue's

    def _level(self, queue: QueueState, kind: LaneKind) -> Rank:
        known = queue.levels.get(kind)
        of = queue.used, queue.lately, self._capacity, queue.guarantee, queue.weight, queue.typed
        if known is not None and all(map(is_, known[0], of)):
            return known[1]
        share = 0.0
        for held, lately, there in zip(queue.used, queue.lately, self._capacity, strict=True):
            if there and held + lately > share * there:
                share = (held + lately) / there
        level = (not queue.is_below_guarantee(kind), share / queue.weight)
        queue.levels[kind] = of, level
        return level
