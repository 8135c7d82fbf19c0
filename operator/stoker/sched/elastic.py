"""Elastic jobs: with how many workers one starts, and when one that runs goes on with more.

A job that runs grows once GPUs are idle that no waiting job could use, at most once in 10 minutes, and only if what it
gains until it is expected to be resized again is more than the restart costs. Who shrinks is `preempt`'s choice.
Called by `decide`; `stoker.why` says what one waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from stoker.spec.job import Claim, Phase, Placed
from stoker.spec.outcome import Intent
from stoker.spec.quantity import parse_duration
from stoker.spec.queue import NOT_NAMED

from .columns import Mask
from .entries import Entry, Lane, earliest, workers_on
from .place import Room, Spread, capacity, free_room, place
from .request import Request
from .reservations import Kept
from .running import loss_of, may_be_resized
from .state import SchedulerState
from .topology import domains

GROW_EVERY = timedelta(minutes=10)
_LOOKED_AT = 32
"""Lanes and jobs in back-off; where more wait, any node may be waited for."""
_RESIZED = (Intent.RESIZE, Intent.PREEMPT)


def most_workers(state: SchedulerState, lane: Lane, request: Request, least: Spread, kept: Kept) -> Spread:
    """Where the lane's job starts as `request` says, with as many workers as are wished for or as fit beside what is
    kept: at least as many as in `least`. Cost: one search for room where the wish fits, else one per halving of what
    lies between."""

    def spread_of(workers: int) -> Spread | None:
        wanted = request.sized(workers)
        if not lane.queue.has_room(wanted, kept.queues):
            return None
        return place(state.nodes, wanted, lane.avoid, kept.nodes)

    return _most(spread_of, request.workers, request.up_to, least)


def _most(spread_of: Callable[[int], Spread | None], least: int, wished: int, found: Spread) -> Spread:
    """The spread of as many workers as fit, from `least`, whose is `found`, to `wished`, which is tried first."""
    low, above, workers = least, wished + 1, wished
    while workers > low:
        spread = spread_of(workers)
        if spread is None:
            above = workers
        else:
            low, found = workers, spread
        workers = (low + above) // 2
    return found


class WaitsFor(Enum):
    """Why an elastic job does not grow."""

    TIME = auto()
    """It was resized, or stopped for another job, not long ago."""
    LIMIT = auto()
    """Others wait for room within a limit that holds for it too."""
    ROOM = auto()
    """No more fit where no other job waits."""
    GAIN = auto()
    """The restart would cost more than it gains."""


class Growth(NamedTuple):
    placement: tuple[Placed, ...]
    """Where it would be; empty: that was not looked for."""
    waits_for: WaitsFor | None
    """None: it grows."""
    at: datetime | None = None
    """When time alone may change that."""


class Growths:
    """As of one moment, and as those grow that may. Cost: where no more fit O(nodes) per kind of worker; else that per
    job, and once per request that waits, up to `_LOOKED_AT`."""

    def __init__(self, state: SchedulerState, now: datetime, kept: Kept) -> None:
        self._state, self._now, self._kept = state, now, kept
        self._full: set[Request] = set()

    def has_room(self, one: Request) -> bool:
        """For one worker, where no other job waits."""
        if one in self._full:
            return False
        free = free_room(self._state.nodes, one, self._kept.nodes)
        there = place(self._state.nodes, one, room=free) and place(
            self._state.nodes, one, room=_beside(self._closed, free)
        )
        if there is None:
            self._full.add(one)
        return there is not None

    @cached_property
    def _limits(self) -> set[str]:
        return _limits_waited_for(self._state)

    @cached_property
    def _closed(self) -> Mask:
        return _nodes_waited_for(self._state)

    def of(self, entry: Entry) -> Growth:
        """Of one that `may_grow`."""
        again_at = may_grow_at(entry)
        if again_at > self._now:
            return Growth((), WaitsFor.TIME, again_at)
        if any(account.name in self._limits for account in entry.accounts):
            return Growth((), WaitsFor.LIMIT)
        if not self.has_room(entry.held.one_worker):
            return Growth((), WaitsFor.ROOM)
        worth_at = worth_from(entry, entry.job.spec.most_workers, self._now)
        if worth_at != self._now:  # fewer would gain less
            return Growth((), WaitsFor.GAIN, worth_at)
        placement = _larger(self._state, entry, self._now, self._kept, self._closed)
        if placement is None:
            return Growth((), WaitsFor.ROOM)
        at = worth_from(entry, len(placement), self._now)
        return Growth(placement, None) if at == self._now else Growth(placement, WaitsFor.GAIN, at)


def grow(state: SchedulerState, now: datetime, kept: Kept) -> datetime | None:
    """Have those grow that may: those with fewer workers than they wish for first, then in order. Returns: when time
    alone may let another do so."""
    growths, later = Growths(state, now, kept), list[datetime | None]()
    kinds = (keys for one, keys in state.elastic.below_most.items() if growths.has_room(one))
    jobs = [entry for keys in kinds for key in keys if may_grow(state, entry := state.entries[key])]
    for entry in sorted(jobs, key=lambda one: (len(one.placement) >= one.job.spec.workers, one.order)):
        found = growths.of(entry)
        if found.waits_for is None:
            claim = Claim(placement=found.placement, gpu_type=entry.gpu_type, victims=(), since=now)
            state.grow(entry, claim)
        later.append(found.at)
    return earliest(*later)


def may_grow_at(entry: Entry) -> datetime:
    """Not so soon after it was last resized, or stopped for another job."""
    ends = [one.ended_at for one in entry.job.status.attempts if one.intent in _RESIZED]
    return ends[-1] + GROW_EVERY if ends else datetime.min.replace(tzinfo=UTC)


def worth_from(entry: Entry, workers: int, now: datetime) -> datetime | None:
    """From when on so many workers gain more than the restart costs: what has lasted is expected to last as long again
    (10 minutes at least; no longer than the job), before it is resized. None: that is not to be foreseen.

    Costs: what all of them could do while it restarts, and the work since its last checkpoint.
    """
    job, status, began = entry.job, entry.job.status, entry.job.status.started_at
    if began is None:
        return None
    has, now_s = len(entry.placement), now.timestamp()
    more, (saved_s, restart_s) = workers - has, loss_of(entry)
    ends = [one.ended_at for one in status.attempts if one.intent in _RESIZED]
    firsts = [one.started_at for one in status.attempts[:1] if one.started_at is not None]
    steady_s = (ends[-1] if ends else min([*firsts, began])).timestamp()
    costs = restart_s * workers + max(now_s - saved_s, 0.0) * has
    ran_s = status.ran_s + now_s - began.timestamp()
    left_s = [parse_duration(job.spec.stop.max_duration) - ran_s] if job.spec.stop.max_duration else []
    progress = status.progress
    if progress is not None and progress.step and progress.total_steps:
        left_s.append(ran_s * (progress.total_steps / progress.step - 1))
    least_s = GROW_EVERY.total_seconds()
    if more * min([max(least_s, now_s - steady_s), *left_s]) > costs:
        return now
    # Nothing but time is to change: in a second that passes one more is expected, and one more is not saved.
    if more <= has or left_s:
        return None
    at_s = (more * steady_s + restart_s * workers - has * min(saved_s, now_s)) / (more - has)
    return datetime.fromtimestamp(max(at_s, steady_s + least_s) + 1.0, UTC)


def may_grow(state: SchedulerState, entry: Entry) -> bool:
    """It trains with fewer workers than it may have, and is not about to stop."""
    elastic, status = entry.job.spec.elastic, entry.job.status
    return (
        elastic is not None
        and len(entry.placement) < elastic.max
        and status.phase is Phase.RUNNING
        and (status.held, status.stalled) == (None, None)
        and (status.usage is None or status.usage.idle_since is None)
        and may_be_resized(entry)
        and not entry.stuck
        and entry.key not in state.victims
        and entry.admitted
    )


def _larger(state: SchedulerState, entry: Entry, now: datetime, kept: Kept, closed: Mask) -> tuple[Placed, ...] | None:
    """Where it is with as many workers more as fit beside those that it has. `closed`: slots for none of them."""
    table, elastic, held = state.nodes, entry.job.spec.elastic, entry.workers_on
    if elastic is None or any(name not in table.slots for name in held):
        return None
    near, avoid = entry.request.near, entry.avoided(now)
    mine = [table.slots[name] for name in held]
    if near.required:
        there = [one for one in domains(table, near) if one is not None and one[mine].all()]
        if not there:
            return None
        closed = closed | ~there[0]

    def spread_of(workers: int) -> Spread | None:
        wanted = entry.held._replace(near=near._replace(required=""), workers=workers)
        if not entry.queue.has_room(wanted, kept.queues):
            return None
        free = free_room(table, wanted, kept.nodes)
        return place(table, wanted, avoid, room=_beside(closed, free))

    found = _most(spread_of, 0, elastic.max - len(entry.placement), ())
    if not found:
        return None
    counts = dict(workers_on(entry.placement))
    for slot, more in found:
        counts[table.names[slot]] = counts.get(table.names[slot], 0) + more
    return on_nodes(counts)


def _beside(closed: Mask, free: Room) -> Room:
    gpu, cpu, memory = (np.where(closed, 0, one) for one in free[:3])
    return Room(gpu, cpu, memory, free.extended)


def on_nodes(counts: Mapping[str, int]) -> tuple[Placed, ...]:
    """`counts`: node → workers. Neighbouring ranks share a node."""
    nodes = [name for name, count in counts.items() for _ in range(count)]
    return tuple([Placed(worker=i, node=node) for i, node in enumerate(nodes)])


def _limits_waited_for(state: SchedulerState) -> set[str]:
    """The accounts within whose limits a waiting job waits for room."""
    waiting = (queue for name in state.lanes.waiters.for_limit for queue in state.queues[name].path)
    return {one.name for queue in waiting for one in (queue, *queue.typed.values()) if one.limit != NOT_NAMED}


def _nodes_waited_for(state: SchedulerState) -> Mask:
    """The slots where a waiting job could have workers."""
    found: Mask = np.zeros(len(state.nodes.ready), dtype=np.bool_)
    waiting = _waiting(state)
    for request, avoid in islice(waiting, _LOOKED_AT):
        could = capacity(state.nodes, request, avoid)
        if int(could.sum()) >= request.workers:
            found |= could > 0
    return ~np.zeros_like(found) if next(waiting, None) is not None else found


def _waiting(state: SchedulerState) -> Iterator[tuple[Request, Collection[str]]]:
    """What waiting jobs ask for that would take room on nodes, those that back off too."""
    waiters, timers = state.lanes.waiters, state.lanes.timers
    blocked = (one.lane for kinds in waiters.for_nodes.values() for index in kinds.values() for one in index)
    for lane in chain(blocked, state.lanes.untried):
        yield lane.request, lane.avoid
    for _, key in timers:
        entry = state.entries[key]
        if entry.lane is None:
            yield entry.request, ()
