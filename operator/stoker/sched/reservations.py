"""What is kept for jobs that have waited long, so that those behind them can't pass for ever.

Owns who reserves, and how much of the nodes and of a queue's limit is spoken for. Called by `decide` and `blockers`.

A lane's head that has waited `reserve_after_s` since it was queued (or its back-off ended) and can't start reserves
its share of its queue's limit against later jobs of the queue and, unless it is the limit that blocks it, the nodes
that it is to run on against every later job; as long as its budget lasts (`budget`). Who could never get it reserves
nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from stoker.spec.meta import Key

from .budget import Cost, cost_of, in_budget, may_cost_s
from .entries import Entry, Lane, Order, Reservation
from .gpu_choice import choices
from .place import Keep, Reserved, Spread, Wanted, could_on, fits_one, place, reserve
from .queue_state import QueueState
from .request import NOTHING, Request, Totals
from .state import SchedulerState
from .waiters import room_in

RESERVE_AFTER_S = 300.0

MAX_RESERVATIONS = 16
"""Gangs that nodes are kept for at a time, and gangs per queue that wait for its limit only. Bounds the work per
decision."""


_MARGIN = 1.5
"""How much more than expected a reservation may come to cost, for it to be begun: given back, all of it was for
nothing."""


class Kept:
    """What is spoken for by some reservations."""

    def __init__(self, state: SchedulerState, reservations: Iterable[Reservation] = ()) -> None:
        self._table = state.nodes
        self.count = 0
        """Of the reservations."""
        self.nodes: Keep | None = None
        self.queues: dict[str, Totals] = {}
        """Account with a limit → what of it."""
        for one in reservations:
            self.add(one)

    def add(self, one: Reservation) -> None:
        if one.spread:
            if self.nodes is None:
                self.nodes = Keep(self._table)
            for slot, workers in one.spread:
                self.nodes.add(slot, workers, one.request)
        self.count += 1
        for account in one.lane.queue.limited(one.request.filter.type):
            self.queues[account.name] = self.queues.get(account.name, NOTHING).plus(one.request.totals)

    def leave_room(self, lane: Lane, request: Request, spread: Spread) -> Spread | None:
        """Where the lane's job may go though `spread` is where it would go without reservations; None: nowhere."""
        if self.count and not lane.queue.has_room(request, self.queues):
            return None
        if self.nodes is None:
            return spread
        if request.workers == 1 and not lane.avoid and spread[0][0] not in self.nodes.slots:
            return spread  # of less to choose from the best is the same
        return place(self._table, request, lane.avoid, self.nodes)


class Reservations:
    """The reservations of one pass, made as the turns of those that need one come."""

    def __init__(self, state: SchedulerState, now: datetime) -> None:
        self._state, self._now = state, now
        self._kept = Kept(state)
        self.places = MAX_RESERVATIONS
        """So many are left for gangs that nodes are kept for, beside those that are set aside."""
        self._set_aside: dict[str, list[Order]] = {}
        """Queue → of its jobs whose turns are to come, those that have a place, in order."""
        self.limited: dict[str, int] = defaultdict(int)
        """Queue -> those that keep its limit only."""
        self.holds_back = False
        """Some job that there is room for."""
        self.queues_held: set[str] = set()
        """Queues of such jobs: so much of their limits is kept for them."""
        self._is_steady, self._has_moved = True, False
        """None of those so far has a choice; some might be made elsewhere now, as jobs have started since."""
        self._latest: tuple[datetime, Key] | None = None
        self._last_in: dict[QueueState, Order] = {}
        """Queue → of its jobs that reserve the one that is last in order."""
        self.plan: list[Reservation] = []
        self._some: dict[tuple[int, ...], Kept] = {}
        """What is kept by those of the plan."""
        self._before = {one.order[2]: at for at, one in enumerate(state.plan)}
        """Job → its place in the plan of the last decide."""
        self._is_as_before = True
        """So far it is that plan."""

    def set_aside(self, orders: Mapping[str, list[Order]]) -> None:
        """A place for each of these, by queue."""
        self._set_aside = {name: sorted(mine) for name, mine in orders.items()}
        self.places -= sum(map(len, orders.values()))

    def with_place(self, queue: QueueState, begin: tuple[object, ...]) -> list[Order]:
        """The queue's from there on that one is set aside for."""
        mine = self._set_aside.get(queue.name, [])
        return mine[bisect_left(mine, begin) :]

    def add(self, order: Order, lane: Lane) -> None:
        queue = lane.queue
        self._take_place(order, queue)
        could = within = choices(self._state, queue, lane.request)
        if queue.is_limited:
            could = tuple([one for one in could if queue.could_hold(one)])
            if not could:
                return
            within = tuple([one for one in could if queue.has_room(one)])
        if within:
            one = self._choose(order, lane, within) if self.places else None
            if one is None:
                return
            self.places -= 1
        elif self.limited[queue.name] == MAX_RESERVATIONS:
            return
        else:
            self.limited[queue.name] += 1
            one = Reservation(order, lane, could[0], Spread())
        if self._is_as_before:
            at = len(self.plan)
            self._is_as_before = self._before.get(order[2]) == at and one.keeps_as(self._state.plan[at])
        self._is_steady = self._is_steady and one.settled and len(could) == 1 and not one.request.near.required
        self._kept.add(one)
        if self._latest is None or self._latest < order[1:]:
            self._latest = order[1:]
        self._last_in[queue] = max(order, self._last_in.get(queue, order))
        self.plan.append(one)
        for name in one.nodes:
            self._state.changes.keep_node(name)

    def started(self, order: Order, queue: QueueState) -> None:
        """A job has: who has no choice stays, unless it took of what is kept."""
        self._take_place(order, queue)
        if self.plan and not self._has_moved:
            self._has_moved = not self._is_steady or self.ahead_of(order, queue) is not self._kept

    @property
    def may_open(self) -> bool:
        """Made anew, they might leave a job more room than it found at its turn. Where several queues wait, turns may
        come in another order by now; and who may have others stopped for it tries that as often as it is tried."""
        heads = self._state.lanes.waiters.heads
        return self._has_moved or len(heads) > 1 or any(self._state.queues[name].may_preempt for name in heads)

    def ahead_of(self, order: Order, queue: QueueState) -> Kept:
        """Of those made so far, the ones that bind the job. They all do unless priorities or shares put younger jobs
        first."""
        if self._latest is None or (self._latest < order[1:] and self._last_in.get(queue, order) <= order):
            return self._kept
        bind = tuple([at for at, one in enumerate(self.plan) if one.binds(order, queue)])
        if len(bind) == len(self.plan):
            return self._kept
        if bind not in self._some:
            self._some[bind] = Kept(self._state, (self.plan[at] for at in bind))
        return self._some[bind]

    def leave_room(self, order: Order, lane: Lane, request: Request, spread: Spread) -> Spread | None:
        """As Kept's of those ahead."""
        kept = self.ahead_of(order, lane.queue)
        found = kept.leave_room(lane, request, spread)
        if found is None:
            self.hold_back(lane.queue, by_limit=not lane.queue.has_room(request, kept.queues))
        return found

    def hold_back(self, queue: QueueState, *, by_limit: bool) -> None:
        """A job of the queue finds no room beside them."""
        self.holds_back = True
        if by_limit:
            self.queues_held.add(queue.name)
            self._state.changes.keep_queue(queue.name)

    def settle(self, *, held: bool) -> None:
        """All have been made, and all lanes looked at that they may hold back. `held`: they hold back some."""
        changes = self._state.changes
        nodes = {name for one in self.plan for name in one.nodes}
        for name, new in (("kept_nodes", nodes), ("kept_queues", self.queues_held)):
            new = new if held else set()
            if getattr(changes, name) != new:
                self._state.journal.set(changes, name, new)

    def _take_place(self, order: Order, queue: QueueState) -> None:
        """Its turn has come: what was set aside for it may be another's if it needs none."""
        mine = self._set_aside.get(queue.name, [])
        if order in mine:
            mine.remove(order)
            self.places += 1

    def _choose(self, order: Order, lane: Lane, requests: Sequence[Request]) -> Reservation | None:
        """On GPUs of the type that lets it start soonest."""
        state = self._state
        entry = state.entries[order[2]]
        cost = cost_of(state, entry, self._now)
        keep = self._kept.nodes
        last = self._as_before(order, lane, requests, cost.nodes, keep)
        if last is not None:
            return last if last.order is order else replace(last, order=order)
        soonest = starts_soonest(state, lane, requests, cost, keep, self._now)
        if soonest is None or too_dear(entry, cost, soonest[1], self._now) is not None:
            return None
        request, found = soonest
        nodes = tuple([state.nodes.names[slot] for slot, _ in found.spread])
        return Reservation(order, lane, request, found.spread, nodes, found.settled)

    def _as_before(
        self, order: Order, lane: Lane, requests: Sequence[Request], stay: tuple[str, ...], keep: Keep | None
    ) -> Reservation | None:
        """Its reservation of the last decide, if `reserve` would find the same: no node has another size, and neither
        what got free since, nor what those ahead keep elsewhere than before, is of use to it."""
        state, at = self._state, self._before.get(order[2])
        if at is None or state.changes.filled_nodes:
            return None
        last, table = state.plan[at], state.nodes
        if not last.settled or last.lane is not lane or len(requests) > 1 or last.request != requests[0]:
            return None
        if last.nodes != stay:
            return None
        follows = self._is_as_before and at == len(self.plan)
        if follows and last.request.gpus > self._most_freed and state.changes.freed_nodes.isdisjoint(last.nodes):
            return last
        mine, freed, moved = {slot for slot, _ in last.spread}, self._freed, set[int]()
        if not follows:  # one that stays is the same object
            moved = {slot for one in {*state.plan[:at]}.symmetric_difference(self.plan) for slot, _ in one.spread}
        if moved & mine and last.request.near.required:
            return None
        # Those ahead may keep more or less there; and freed by a pod outside the jobs it could hold more than before.
        unsure = mine if moved & mine else freed & mine
        spread = [(slot, workers) for slot, workers in last.spread if slot in unsure]
        if any(could_on(table, last.request, slot, keep) != workers for slot, workers in spread):
            return None
        moved |= freed
        return None if any(fits_one(table, last.request, slot, keep) for slot in moved - mine) else last

    @cached_property
    def _most_freed(self) -> int:
        """GPUs that are free on one of those, at most: the pass takes of them and gives back nothing."""
        return max((int(self._state.nodes.free_gpu[slot]) for slot in self._freed), default=0)

    @cached_property
    def _freed(self) -> set[int]:
        """Slots that got room since the last decide."""
        slots = self._state.nodes.slots
        return {slots[name] for name in self._state.changes.freed_nodes if name in slots}


def starts_soonest(
    state: SchedulerState, lane: Lane, requests: Iterable[Request], cost: Cost, keep: Keep | None, now: datetime
) -> tuple[Request, Reserved] | None:
    """On GPUs of which type, and what to keep for it then, beside `keep`."""
    best: tuple[Request, Reserved] | None = None
    for request in requests:
        wanted = Wanted(request, lane.avoid, cost.nodes)
        found = reserve(state.nodes, wanted, keep, state.ends, now.timestamp())
        if found is not None and (best is None or found.start_s < best[1].start_s):
            best = request, found
    return best


class TooDear(NamedTuple):
    """A reservation that is not begun, as it would probably be given back before its job could start.

    Units: GPU-seconds; of waiting: seconds."""

    could_s: float
    """What it may come to cost."""
    may_s: float
    waited_s: float
    """By then."""


def too_dear(entry: Entry, cost: Cost, found: Reserved, now: datetime) -> TooDear | None:
    starts_at = now + timedelta(seconds=found.start_s)
    could_s, may_s = cost.idle_s + _MARGIN * found.idle_s, may_cost_s(entry, starts_at)
    if cost.nodes or could_s <= may_s:
        return None
    return TooDear(could_s, may_s, (starts_at - entry.waiting_from).total_seconds())


def reserves(state: SchedulerState, entry: Entry, now: datetime, reserve_after_s: float) -> bool:
    """It has waited long, and keeping nodes for it is still worth it."""
    return now - entry.since >= timedelta(seconds=reserve_after_s) and in_budget(state, entry, now)


def next_reserving(state: SchedulerState, now: datetime, reserve_after_s: float) -> datetime | None:
    """When the next blocked head will have waited long enough."""
    age = timedelta(seconds=reserve_after_s)
    since = state.lanes.waiters.next_since(now - age)
    return None if since is None or since > now else since + age


def idle_for(
    state: SchedulerState, plan: Sequence[Reservation], held_back: Callable[[int], int]
) -> dict[Key, tuple[float, tuple[str, ...]]]:
    """Holder -> GPUs that are idle for its sake, and its nodes. `held_back`: how many GPUs held back jobs want,
    or so many if that is less.

    A GPU is counted once, for the first in order that keeps it; what those held back could not fill is not counted.
    """
    found: dict[Key, tuple[int, tuple[str, ...]]] = {}
    counted_on, free = set[int](), state.nodes.free_gpu
    for one in plan:
        slots = [slot for slot, _ in one.spread if slot not in counted_on]
        counted_on.update(slots)
        idle = sum([max(free.item(slot), 0) for slot in slots])
        if one.lane.queue.is_limited and any(queue.limit[0] is not None for queue in one.lane.queue.path):
            idle = max(idle, min(one.lane.request.totals.gpus, room_in(one.lane.queue)[0]))
        elif not one.spread:
            idle = one.lane.request.totals.gpus  # what is short of the queue's limit is cores or memory
        found[one.order[2]] = (idle, one.nodes)
    left = held_back(sum(idle for idle, _ in found.values()))
    counted: dict[Key, tuple[float, tuple[str, ...]]] = {}
    for key, (idle, nodes) in found.items():
        counted[key] = float(min(idle, left)), nodes
        left -= min(idle, left)
    return counted
