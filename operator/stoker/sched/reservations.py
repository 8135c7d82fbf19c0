"""What is kept for jobs that have waited long, so that those behind them can't pass for ever.

Owns who reserves, and how much of the nodes and of a queue's limit is spoken for. Called by `decide` and `blockers`.

A lane's head that has waited `reserve_after_s` since it was queued (or its back-off ended) and can't start reserves
its share of its queue's limit against later jobs of the queue and, unless it is the limit that blocks it, the nodes
that it is to run on against every later job. Who could never get it reserves nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush

from .entries import Entry, Lane, Order
from .place import Keep, Spread, place, reserve
from .request import NOTHING, Totals
from .state import SchedulerState

RESERVE_AFTER_S = 300.0

MAX_RESERVATIONS = 16
"""Gangs that nodes are kept for at a time, the first in order. Bounds the work per decision."""


class Kept:
    """What is spoken for by the jobs ahead."""

    def __init__(self, state: SchedulerState) -> None:
        self._table = state.nodes
        self._nodes: Keep | None = None
        self._gangs = 0
        self._queues: dict[str, Totals] = {}

    def add(self, lane: Lane) -> None:
        queue, wanted = lane.queue, lane.request.totals
        if not queue.could_hold(wanted):
            return
        if queue.has_room(wanted):
            nodes = self._nodes or Keep(self._table)
            if self._gangs == MAX_RESERVATIONS or not reserve(self._table, lane.request, lane.avoid, nodes):
                return
            self._nodes = nodes
            self._gangs += 1
        have = self._queues.get(queue.name, NOTHING)
        self._queues[queue.name] = Totals(*(a + b for a, b in zip(have, wanted, strict=True)))

    def leave_room(self, lane: Lane, spread: Spread) -> Spread | None:
        """Where the lane's job may go though `spread` is where it would go without reservations; None: nowhere."""
        kept = self._queues.get(lane.queue.name)
        if kept is not None and not lane.queue.has_room(lane.request.totals, kept):
            return None
        if self._nodes is None:
            return spread
        return place(self._table, lane.request, lane.avoid, self._nodes)


class Reservations:
    """The reservations in force, handed out in order: a job is held back only by those ahead of it."""

    def __init__(self, state: SchedulerState, holders: list[tuple[Order, Lane]]) -> None:
        self._waiting = list(holders)
        heapify(self._waiting)
        self._kept = Kept(state)

    def add(self, order: Order, lane: Lane) -> None:
        heappush(self._waiting, (order, lane))

    def ahead_of(self, order: Order) -> Kept:
        """Orders must be asked for from small to large. The answer grows with the next question."""
        while self._waiting and self._waiting[0][0] < order:
            self._kept.add(heappop(self._waiting)[1])
        return self._kept


def waits_long(entry: Entry, now: datetime, reserve_after_s: float) -> bool:
    return now - entry.since >= timedelta(seconds=reserve_after_s)


def reserving_lanes(
    state: SchedulerState, now: datetime, reserve_after_s: float
) -> tuple[list[tuple[Order, Lane]], datetime | None]:
    """The lanes whose blocked heads have waited long, in order, and when the next one will have."""
    holders: list[tuple[Order, Lane]] = []
    next_at: datetime | None = None
    age = timedelta(seconds=reserve_after_s)
    for queue in state.queues.values():
        for lane in queue.lanes.values():
            if lane.verdict is None:
                continue
            order = lane.jobs.first()
            since = state.entries[order[2]].since
            if now - since >= age:
                holders.append((order, lane))
            elif since <= now and (next_at is None or since + age < next_at):
                next_at = since + age
    holders.sort(key=lambda item: item[0])
    return holders, next_at
