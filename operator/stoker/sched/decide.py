"""What to start now: one pure function over the state, and its decisions.

Owns the drain; never does I/O or reads a clock. Called by the controller (live) and by `stoker.why` (what-if), which
also says why the others wait.

Per call it tries lanes, not jobs. A blocked lane is not tried again until something relevant changes: for capacity,
a node where one of its workers would fit got free; for limit, its queue got room; for reserved, anything at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice

from stoker.spec.job import Placed, ReservationCost
from stoker.spec.meta import Key

from .budget import changes_at, charge, count, unwritten
from .entries import BlockedBy, Lane, Reservation
from .job_order import JobOrder
from .place import Spread, place, placed
from .request import Request
from .reservations import RESERVE_AFTER_S, Reservations, idle_for, reserves, reserving_lanes
from .state import SchedulerState


@dataclass(frozen=True, slots=True)
class Start:
    """Start this job there. Write it with `resource_version`; on failure call SchedulerState.drop_assumption."""

    key: Key
    uid: str
    resource_version: str
    placement: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    starts: tuple[Start, ...]
    wake_at: datetime | None
    """When to decide again though nothing was observed: the end of a back-off, a blame or a reservation's budget."""
    reservations: tuple[tuple[Key, ReservationCost], ...] = ()
    """To be written into these jobs' status; then call `SchedulerState.wrote`."""
    preemptions: tuple[Key, ...] = ()
    resizes: tuple[Key, ...] = ()


def decide(
    state: SchedulerState, now: datetime, *, reserve_after_s: float = RESERVE_AFTER_S, most: int | None = None
) -> Decisions:
    """Start every job that can start, in order, until no more can, or `most` of them.

    The starts are counted in `state` as assumed. Invariant: a second call with nothing observed in between starts
    nothing. Cost: O(1) where nothing changed; else O(lanes) cheap checks plus O(nodes) per lane tried and per start.
    """
    state.file_due(now)
    starts = tuple(islice(_drain(state, now, reserve_after_s), most)) if _has_work(state, now) else ()
    wake_at = earliest(state.timers.first()[0] if state.timers else None, state.spent_at)
    return Decisions(starts, wake_at, tuple(unwritten(state, now)))


def _has_work(state: SchedulerState, now: datetime) -> bool:
    due = state.next_reserving_at
    return bool(
        state.untried or state.freed_nodes or state.freed_queues or state.shifted or (due is not None and due <= now)
    )


def _drain(state: SchedulerState, now: datetime, reserve_after_s: float) -> Iterator[Start]:
    count(state, now)
    reserving, _ = reserving_lanes(state, now, reserve_after_s)
    _reopen(state, _keys(reserving) != state.reserving)
    kept = _where(state.plan)
    while True:
        started, reservations = False, Reservations(state, now)
        for start in _pass(state, now, reserve_after_s, reservations):
            started = True
            yield start
        # Reservations may have moved to other nodes, and opened what they kept before.
        reserved = _lanes(state, BlockedBy.RESERVED)
        moved = _where(reservations.plan) != kept
        if not reserved or not (started or moved):
            break
        kept = _where(reservations.plan)
        for lane in reserved:
            state.set_blocked_by(lane, None)
    state.settle()
    state.journal.set(state, "plan", tuple(reservations.plan))
    held_back = sum(len(lane.jobs) * lane.request.totals.gpus for lane in reserved)
    charge(state, now, idle_for(state, reservations.plan, held_back))
    reserving, next_at = reserving_lanes(state, now, reserve_after_s)
    spent_at, grown_at = changes_at(state, now)
    state.journal.set(state, "reserving", _keys(reserving))
    state.journal.set(state, "spent_at", spent_at)
    state.journal.set(state, "next_reserving_at", earliest(next_at, spent_at, grown_at))


def _pass(state: SchedulerState, now: datetime, reserve_after_s: float, reservations: Reservations) -> Iterator[Start]:
    """Try the lanes that are not blocked, their jobs in order; blocked ones that reserve do so at their turn."""
    turns = JobOrder(chain(state.untried.values(), reserving_lanes(state, now, reserve_after_s)[0]))
    too_big: set[tuple[Request, frozenset[str]]] = set()  # found no room on the nodes in this pass
    while (turn := turns.pop()) is not None:
        order, lane = turn
        if lane.blocked_by is not None:
            reservations.add(order, lane)
            continue
        entry, kind = state.entries[order[2]], (lane.request, lane.avoid)
        spread: Spread | None = None
        if not lane.queue.has_room(lane.request.totals):
            blocked_by = BlockedBy.LIMIT
        elif kind in too_big or (spread := place(state.nodes, *kind)) is None:
            too_big.add(kind)
            blocked_by = BlockedBy.CAPACITY
        else:
            blocked_by = BlockedBy.RESERVED
            spread = reservations.ahead_of(order, lane.queue).leave_room(lane, spread)
        if spread is None:
            state.set_blocked_by(lane, blocked_by)
            if reserves(state, entry, now, reserve_after_s):
                reservations.add(order, lane)
            continue
        meta = entry.job.metadata
        start = Start(entry.key, meta.uid, meta.resource_version, placed(state.nodes, spread))
        state.assume(entry, start.placement)
        yield start
        if lane.jobs:
            turns.add(lane)


def earliest(*times: datetime | None) -> datetime | None:
    return min((at for at in times if at is not None), default=None)


def _where(plan: Iterable[Reservation]) -> list[tuple[Key, object]]:
    return [(one.order[2], one.spread) for one in plan]


def _keys(reserving: list[Lane]) -> tuple[Key, ...]:
    return tuple(lane.jobs.first()[2] for lane in reserving)


def _lanes(state: SchedulerState, blocked_by: BlockedBy) -> list[Lane]:
    return [lane for queue in state.queues.values() for lane in queue.lanes.values() if lane.blocked_by is blocked_by]


def _reopen(state: SchedulerState, reservations_differ: bool) -> None:
    """Unblock the lanes whose reason may no longer hold."""
    freed = [state.nodes.slots[name] for name in state.freed_nodes if name in state.nodes.slots]
    if freed:
        for lane in _lanes(state, BlockedBy.CAPACITY):
            if _fits_on(state, lane, freed):
                state.set_blocked_by(lane, None)
    for name in state.freed_queues:
        for lane in state.queues[name].lanes.values() if name in state.queues else ():
            if lane.blocked_by is BlockedBy.LIMIT:
                state.set_blocked_by(lane, None)
    if state.freed_nodes or state.freed_queues or state.shifted or reservations_differ:
        for lane in _lanes(state, BlockedBy.RESERVED):
            state.set_blocked_by(lane, None)


def _fits_on(state: SchedulerState, lane: Lane, slots: list[int]) -> bool:
    """One of the lane's workers would fit on one of these nodes: without that, what they freed is of no use to it."""
    table, request = state.nodes, lane.request
    door = table.open_for(request.nodes)
    free = table.free_for(request.filter) if request.gpus else table.free_gpu
    return any(
        door[slot]
        and (not request.gpus or free[slot] >= request.gpus)
        and (not request.cpu or table.free_cpu[slot] >= request.cpu)
        and (not request.memory or table.free_mem[slot] >= request.memory)
        and all(table.extended[name].free[slot] >= count for name, count in request.extended)
        and table.names[slot] not in lane.avoid
        for slot in slots
    )
