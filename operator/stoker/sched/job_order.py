"""The order in which jobs are tried: the heads of many lanes, merged.

Owns the order between jobs. Within a queue higher priority goes first, then the longer wait; between queues the head
that has waited longer. So a priority never passes another queue's older job: a queue that puts a young job first has
its others wait behind that one. Called by `decide`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from heapq import heappop, heappush

from stoker.spec.meta import Key

from .entries import Lane, Order


class JobOrder:
    """A merge of the queues, each sorted by Order, by when their heads were queued. Cost: add, pop O(log lanes)."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self._queues: dict[str, list[tuple[Order, Lane]]] = {}
        self._heads: list[tuple[tuple[datetime, Key], str]] = []  # some are of heads that are no longer
        for lane in lanes:
            self.add(lane)

    def add(self, lane: Lane) -> None:
        lanes = self._queues.setdefault(lane.queue.name, [])
        order = lane.jobs.first()
        heappush(lanes, (order, lane))
        if lanes[0][0] == order:
            heappush(self._heads, (order[1:], lane.queue.name))

    def pop(self) -> tuple[Order, Lane] | None:
        """The next head and its lane, which is to be added again if it has more. None: there is none."""
        while self._heads:
            age, name = heappop(self._heads)
            lanes = self._queues[name]
            if not lanes or lanes[0][0][1:] != age:
                continue
            found = heappop(lanes)
            if lanes:
                heappush(self._heads, (lanes[0][0][1:], name))
            return found
        return None
