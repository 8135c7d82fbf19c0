"""The order in which jobs are tried: the heads of many lanes, merged.

Owns the order between jobs. Within a queue higher priority goes first, then the longer wait; between queues the head
that has waited longer. So a priority never passes another queue's older job: a queue that puts a young job first has
its others wait behind that one. Called by `decide`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from stoker.spec.meta import Key

from .entries import Lane, Order
from .waiters import From, Waiting


class Stream(Protocol):
    """Blocked lanes of one queue."""

    only_reserves: bool

    def first(self, begin: From) -> Waiting | None:
        """The first from there on."""

    def youngest(self, priority: int) -> Order | None:
        """The last of that priority (an order's first part)."""


class _Turn(NamedTuple):
    order: Order
    only_reserves: bool
    """It comes after that of the same lane which may start it."""
    number: int
    lane: Lane | None
    """None: it only holds back what stands behind it."""
    stream: Stream | None


class JobOrder:
    """A merge of the queues, each sorted by Order, by when their heads were queued. Cost: add, pop O(log lanes)."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self._queues: dict[str, list[_Turn]] = {}
        self._heads: list[tuple[tuple[datetime, Key], str]] = []  # some are of heads that are no longer
        self._count = count()
        for lane in lanes:
            self.add(lane)

    def add(self, lane: Lane) -> None:
        self._push(lane.queue.name, _Turn(lane.jobs.first(), False, next(self._count), lane, None))

    def follow(self, queue: str, stream: Stream, priorities: Iterable[int]) -> None:
        """Blocked lanes of the queue in order, each looked for as its turn comes. `priorities`: those of the queue's
        lanes, if they differ."""
        for priority in priorities:
            held_back = stream.youngest(priority)
            if held_back is not None:
                self._push(queue, _Turn(held_back, stream.only_reserves, next(self._count), None, None))
        self._look(queue, stream, ())

    def pop(self) -> tuple[Order, Lane, bool] | None:
        """The next head and its lane, and whether it may but reserve. None: there is none.

        A lane that was started from is to be added again if it has more.
        """
        while self._heads:
            age, name = heappop(self._heads)
            turns = self._queues[name]
            if not turns or turns[0].order[1:] != age:
                continue
            turn = heappop(turns)
            lane = turn.lane
            if turn.stream is not None:
                now = turn.stream.first(turn.order)
                if now is None or now.order != turn.order:
                    lane = None
                    if now is not None:
                        self._push(name, turn._replace(order=now.order, lane=now.lane, number=next(self._count)))
                else:
                    self._look(name, turn.stream, (*turn.order, 0))
            if turns:
                heappush(self._heads, (turns[0].order[1:], name))
            if lane is not None:
                return turn.order, lane, turn.only_reserves
        return None

    def _look(self, queue: str, stream: Stream, begin: From) -> None:
        found = stream.first(begin)
        if found is not None:
            self._push(queue, _Turn(found.order, stream.only_reserves, next(self._count), found.lane, stream))

    def _push(self, queue: str, turn: _Turn) -> None:
        turns = self._queues.setdefault(queue, [])
        heappush(turns, turn)
        if turns[0] is turn:
            heappush(self._heads, (turn.order[1:], queue))
