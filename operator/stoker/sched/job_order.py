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

from stoker.spec.queue import NOT_NAMED

from .entries import Lane, Order, QueueState
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
        """All its lanes want GPUs, or none does. None: some of each may be there."""

    def first(self, begin: From) -> Waiting | None:
        """The first from there on."""

    def youngest(self, priority: int) -> Order | None:
        """The last of that priority (an order's first part)."""


class _Half:
    """Those lanes of a stream that want GPUs, or those that want none."""

    def __init__(self, stream: Stream, gpus: bool) -> None:
        self._stream, self.gpus, self.only_reserves = stream, gpus, stream.only_reserves
        self.youngest = stream.youngest

    def first(self, begin: From) -> Waiting | None:
        found = self._stream.first(begin)
        while found is not None and (found.lane.request.gpus > 0) != self.gpus:
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
    gpus: bool
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
        self._groups: dict[tuple[str, bool], _Group] = {}
        self._heads: list[tuple[Rank, int, _Group]] = []  # some are no longer
        self._count = count()
        for lane in lanes:
            self.add(lane)

    def add(self, lane: Lane) -> None:
        turn = _Turn(lane.jobs.first(), False, next(self._count), lane, None)
        self._push(lane.queue, lane.request.gpus > 0, turn)

    def follow(self, name: str, stream: Stream, priorities: Iterable[int]) -> None:
        """Blocked lanes of the queue in order, each looked for as its turn comes. `priorities`: those of the queue's
        lanes, if they differ."""
        queue = self._state.queues[name]
        both = stream.gpus is None and queue.is_guaranteed
        for half in (_Half(stream, True), _Half(stream, False)) if both else (stream,):
            for priority in priorities:
                held_back = half.youngest(priority)
                if held_back is not None:
                    turn = _Turn(held_back, half.only_reserves, next(self._count), None, None)
                    self._push(queue, half.gpus is True, turn)
            self._look(queue, half, ())

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
            self._push(queue, found.lane.request.gpus > 0, turn)

    def _push(self, queue: QueueState, gpus: bool, turn: _Turn) -> None:
        gpus = gpus and queue.is_guaranteed
        group = self._groups.get((queue.name, gpus))
        if group is None:
            group = self._groups[queue.name, gpus] = _Group(queue, gpus)
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
                group.used, group.level = group.queue.used, self._level(group.queue, group.gpus)
            return group.level + age
        path = group.queue.path
        missing = self._state.tree.depth - len(path)
        level = self._level(path[0], group.gpus)
        above = [self._level(queue, group.gpus) for queue in path[:0:-1]]
        return sum(above, ()) + level * (1 + missing) + age  # as long as the deepest queue's

    def _level(self, queue: QueueState, gpus: bool) -> Rank:
        known = queue.levels.get(gpus)
        of = queue.used, queue.lately, self._capacity, queue.guarantee, queue.weight
        if known is not None and all(map(is_, known[0], of)):
            return known[1]
        share = 0.0
        for held, lately, there in zip(queue.used, queue.lately, self._capacity, strict=True):
            if there and held + lately > share * there:
                share = (held + lately) / there
        level = (queue.guarantee == NOT_NAMED or not queue.is_below_guarantee(gpus), share / queue.weight)
        queue.levels[gpus] = of, level
        return level
