"""What to start now: one pure function over the state, and its decisions.

Owns the drain; never does I/O or reads a clock. Called by the controller (live) and by `stoker.why` (what-if), which
also says why the others wait.

Per call it tries lanes, not jobs. A blocked lane is not tried again until something relevant changes: for capacity,
a node where one of its workers would fit got free, or is kept no longer; for limit, its queue got room.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from datetime import datetime
from itertools import chain, islice, repeat
from typing import NamedTuple

from stoker.spec.job import Claim, Placed, ReservationCost
from stoker.spec.meta import Key

from .budget import changes_at, charge, count, unwritten
from .claims import end_late, end_void, ready
from .collector import CollectorWaits
from .elastic import grow, most_workers
from .entries import BlockedBy, Entry, Lane, Order, Reservation, earliest
from .freed_nodes import FreedNodes, Look
from .gpu_choice import choices
from .job_order import JobOrder
from .place import Spread, place, placed
from .preempt import Preemption
from .request import Request
from .reservations import RESERVE_AFTER_S, Kept, Reservations, idle_for, next_reserving, reserves
from .state import SchedulerState
from .wake import held_back, reserving, some_held_back, woken


class Start(NamedTuple):
    """Start this job there. Write it with `resource_version`: whatever comes of that, the job's next version says it.
    What is not to be written is taken back by SchedulerState.drop_assumption."""

    key: Key
    uid: str
    resource_version: str
    placement: tuple[Placed, ...]
    gpu_type: str


class ClaimChange(NamedTuple):
    """A claim that is made, or ended, to be written with `resource_version`. The next version of the job says what
    became of it."""

    key: Key
    uid: str
    resource_version: str
    claim: Claim | None
    voided: bool
    """The one before it ended because others took its room."""


class Decisions(NamedTuple):
    starts: tuple[Start, ...]
    wake_at: datetime | None
    """When to decide again though nothing was observed: the end of a back-off, a blame or a reservation's budget."""
    reservations: tuple[tuple[Key, ReservationCost], ...] = ()
    """To be written into these jobs' status; then call `SchedulerState.wrote`."""
    claims: tuple[ClaimChange, ...] = ()
    is_cut_short: bool = False
    """There may be more to decide."""


_VICTIMS_A_START = 4
"""A claim takes as long to decide as a start; so many more victims of the same search count as another."""
_BATCH_VICTIMS = 512
"""Of the claims between two looks at whether enough is decided."""


def decide(
    state: SchedulerState, now: datetime, *, reserve_after_s: float = RESERVE_AFTER_S, most: int | None = None
) -> Decisions:
    """Start every job that can start, in order, until no more can, or about as much is decided as `most` starts.

    The starts are counted in `state` as assumed. Invariant: a second call with nothing observed in between starts
    nothing. Cost: O(1) where nothing changed; else O(lanes) cheap checks plus O(nodes) per lane tried and per start.
    """
    with CollectorWaits():
        state.lanes.file_due(now)
        found = list(islice(_all(state, now, reserve_after_s), most)) if _has_work(state, now) else []
        starts, is_cut_short = tuple(one for one in found if one is not None), len(found) == most
        timer = state.lanes.timers.first()[0] if state.lanes.timers else None
        wake_at = earliest(timer, state.spent_at, state.preempt_at, state.elastic.grow_at)
        return Decisions(starts, wake_at, tuple(unwritten(state, now)), tuple(_claim_changes(state)), is_cut_short)


def _has_work(state: SchedulerState, now: datetime) -> bool:
    if state.lanes.untried or state.changes or _is_due(state, now) or _is_late(state, now):
        return True
    grow_at = state.elastic.grow_at
    return grow_at is not None and grow_at <= now


def _is_late(state: SchedulerState, now: datetime) -> bool:
    """Time alone may end a claim, or let a job be preempted."""
    return state.preempt_at is not None and state.preempt_at <= now


def _all(state: SchedulerState, now: datetime, reserve_after_s: float) -> Iterator[Start | None]:
    """Claims that have become starts, then what fits; then victims for those that don't. None: claims were made that
    took as long as a start."""
    voided = dict[Key, int]()
    while True:
        left = 0
        for entry, request, placement in ready(state, now):
            left += entry.claim is not None and entry.claim.placement != placement
            yield _start(state, entry, request, placement)
        if _is_late(state, now):
            left += end_late(state, now)
        some = end_void(state)
        voided |= some
        if not left and not some:  # else what they have left may be what other claims wait for
            break
    for key in voided:
        state.journal.add(state.claims.voided, key)
    yield from _drain(state, now, reserve_after_s, Preemption(state, now, voided))


def _start(state: SchedulerState, entry: Entry, request: Request, placement: tuple[Placed, ...]) -> Start:
    meta = entry.job.metadata
    gpu_type = request.filter.type if request.gpus else ""
    if request.gpus and not gpu_type:
        gpu_type = state.nodes.type_at((one.node for one in placement), request.filter)
    state.assume(entry, placement, gpu_type)
    return Start(entry.key, meta.uid, meta.resource_version, placement, gpu_type)


def _claim_changes(state: SchedulerState) -> Iterator[ClaimChange]:
    unwritten = state.claims.unwritten
    if not unwritten:
        return
    state.journal.set(state.claims, "unwritten", {})
    for key in unwritten:
        entry = state.entries.get(key)
        if entry is None or (not entry.pending and (entry.assumed or entry.claim is None)):
            continue
        claim, written = entry.claim, entry.job.status.claim
        if claim is not None and key not in state.claims.jobs and not entry.admitted:
            claim = None
            state.journal.set(entry, "claim", None)
        if (claim is None) is not (written is None) or claim != written:
            meta = entry.job.metadata
            yield ClaimChange(key, meta.uid, meta.resource_version, claim, key in state.claims.voided)
    state.journal.set(state.claims, "voided", set())


def _is_due(state: SchedulerState, now: datetime) -> bool:
    """Time alone may change who reserves."""
    due = state.next_reserving_at
    return due is not None and due <= now


def _drain(
    state: SchedulerState, now: datetime, reserve_after_s: float, preemption: Preemption
) -> Iterator[Start | None]:
    changed = bool(state.changes) or _is_due(state, now)
    # Should the clock or the age have been set back, fewer reserve.
    changed = changed or (state.counted_at or now) > now or state.reserve_after_s != reserve_after_s
    look = Look(freed=True, kept=count(state, now) or changed)
    preemption.wake()
    before, held = state.plan, bool(state.changes.kept_nodes or state.changes.kept_queues)
    while True:
        started, reservations = False, Reservations(state, now)
        for start in _pass(state, now, reserve_after_s, reservations, look, preemption):
            started = True
            yield start
        held = reservations.holds_back or (held and not look.kept)
        if not held or (look.kept and not reservations.may_open):
            break
        # Reservations may have moved to other nodes, and opened what they kept before.
        if not (started or _where(reservations.plan) != _where(before)) or not some_held_back(state):
            break
        before, look = tuple(reservations.plan), Look(freed=False, kept=True)
    preemption.settle()
    if state.elastic.placed or state.elastic.grow_at is not None:
        state.journal.set(state.elastic, "grow_at", grow(state, now, Kept(state, reservations.plan)))
    charge(state, now, idle_for(state, reservations.plan, lambda most: held_back(state, most) if held else 0))
    state.changes.settle()
    if look.kept:
        reservations.settle(held=held)
    state.journal.set(state, "plan", tuple(reservations.plan))
    spent_at, grown_at = changes_at(state, now)
    state.journal.set(state, "reserve_after_s", reserve_after_s)
    state.journal.set(state, "spent_at", spent_at)
    next_at = next_reserving(state, now, reserve_after_s)
    state.journal.set(state, "next_reserving_at", earliest(next_at, spent_at, grown_at))


def _pass(
    state: SchedulerState,
    now: datetime,
    reserve_after_s: float,
    reservations: Reservations,
    look: Look,
    preemption: Preemption,
) -> Iterator[Start | None]:
    """Try the lanes that may start, their jobs in order; those that reserve do so at their turn."""
    turns, freed = JobOrder(state, state.lanes.untried), FreedNodes(state, look)
    for name, stream in chain(woken(state, freed, reservations), reserving(state, now, reserve_after_s, reservations)):
        turns.follow(name, stream)
    too_big: set[tuple[Request, frozenset[str]]] = set()
    done: Order | None = None
    while (turn := turns.pop()) is not None:
        order, lane, only_reserves = turn
        if order == done:
            continue  # both what it waits for got free, or it was to reserve
        if only_reserves:
            reservations.add(order, lane)
            continue
        done = order
        entry = state.entries[order[2]]
        found = _fit(state, lane, order, reservations, too_big)
        if found in (BlockedBy.CAPACITY, BlockedBy.EITHER):
            freed.in_vain()
        if isinstance(found, BlockedBy) and lane.queue.may_preempt:
            last = yield from _claim(state, entry, lane, reservations, preemption, turns)
            if last is not None:
                done = last.order
                freed.started()
                if lane.jobs:
                    turns.add(lane)
                continue
        if isinstance(found, BlockedBy):
            if lane.place is None or lane.place.blocked_by is not found:
                state.lanes.set_blocked_by(lane, found)
            if reserves(state, entry, now, reserve_after_s):
                reservations.add(order, lane)
            continue
        if lane.place is not None:
            state.lanes.set_blocked_by(lane, None)
        request, spread = found
        if request.up_to:
            spread = most_workers(state, lane, request, spread, reservations.ahead_of(order, lane.queue))
        start = _start(state, entry, request, placed(state.nodes, spread))
        preemption.took(entry)
        reservations.started(order, lane.queue)
        freed.started()
        yield start
        if lane.jobs:
            turns.add(lane)


def _claim(
    state: SchedulerState,
    entry: Entry,
    lane: Lane,
    reservations: Reservations,
    preemption: Preemption,
    turns: JobOrder,
) -> Generator[None, None, Entry | None]:
    """Claims for a job that does not fit, the lane's first, and for those behind it as long as their turns come next.
    Returns: the last that has one."""
    found, last = preemption.claim_for(entry, lane, reservations), None
    if found and lane.place is not None:
        state.lanes.set_blocked_by(lane, None)
    while found:
        state.claim(lane, found)
        victims = sum([len(claim.victims) for _, claim in found])
        yield from repeat(None, max(victims // _VICTIMS_A_START, last is None))
        last = found[-1][0]
        # Those behind it fit no more than the one before. How many are looked at follows from how many had one.
        most = min(8 * len(found), max(_BATCH_VICTIMS * len(found) // max(victims, 1), 1))
        following = turns.in_a_row(lane, most) if lane.jobs else []
        found = preemption.next_claims(lane, following, reservations)
    return last


def _fit(
    state: SchedulerState,
    lane: Lane,
    order: Order,
    reservations: Reservations,
    too_big: set[tuple[Request, frozenset[str]]],
) -> tuple[Request, Spread] | BlockedBy:
    """As what and where its first job may start, or why it may not. `too_big`: what found no room on the nodes in this
    pass."""
    blocked_by = set()
    for request in choices(state, lane.queue, lane.request):
        kind, spread = (request, lane.avoid), None
        if not lane.queue.has_room(request):
            blocked_by.add(BlockedBy.LIMIT)
        elif kind in too_big:
            blocked_by.add(BlockedBy.CAPACITY)
        elif (spread := place(state.nodes, *kind)) is None:
            too_big.add(kind)
            blocked_by.add(BlockedBy.CAPACITY)
        else:
            spread = reservations.leave_room(order, lane, request, spread)
            blocked_by.add(BlockedBy.CAPACITY)
        if spread is not None:
            return request, spread
    return blocked_by.pop() if len(blocked_by) == 1 else BlockedBy.EITHER


def _where(plan: Iterable[Reservation]) -> list[tuple[Key, object]]:
    return [(one.order[2], one.spread) for one in plan]
