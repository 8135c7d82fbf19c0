"""Preemption and reclaim: which waiting jobs have running ones stopped, and which.

Owns the search: `stoppable` says which jobs may be stopped, `victims` finds the cheapest set, and each answer is tried
out before it counts: nothing is stopped for a job that does not then start. Called by `decide`, after everything that
fits has started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stoker.spec.job import Claim, Placed, Victim
from stoker.spec.meta import Key
from stoker.spec.queue import NOT_NAMED

from . import victims
from .columns import Column, Mask
from .entries import Entry, Lane, Order, earliest
from .gpu_choice import choices, most_within_guarantee
from .leaving import Leaving
from .place import Room, Spread, fitting, free_room, place, placed
from .queue_state import QueueState, Shortage
from .request import HUGE, NOTHING, Request, Totals
from .reservations import Kept, Reservations
from .running import Floats
from .shrink import Shrinking, may_shrink
from .state import SchedulerState
from .stoppable import NEVER, MayBeStopped, Stoppable
from .topology import domains
from .victim_series import Chosen, VictimSeries
from .victims import Candidates, Problem, cheapest_of
from .waiters import From, LaneIndex, Waiting

_HEADS = 48
"""Lanes per queue and decide, the first in order, whose first job victims are looked for."""
_IN_TURN = 16
"""The same of those behind them, which take turns: there may be thousands for which none can be had."""
_NEXT_TURN_S = 10.0
"""When the next of them are looked at, though nothing has happened meanwhile."""
_MOST_VICTIMS = 4096
"""Of one claim: with their names, which may be long, it still fits into its job's status (etcd takes 1.5 MB)."""
_FAR_S = 2e11
Claimed = tuple[Entry, Claim]


class _Series(NamedTuple):
    """The search for the jobs of one lane and priority, one after another."""

    lane: Lane
    request: Request
    priority: int
    """An order's first part."""
    victims: VictimSeries
    kept: Kept
    reservations: int
    owners: tuple[QueueState, ...]
    """They take back what is guaranteed to them, as long as they are entitled to."""


class Preemption:
    """Of one pass of `decide`."""

    def __init__(self, state: SchedulerState, now: datetime, voided: Mapping[Key, int]) -> None:
        """`voided`: the claims that have just ended because others took their room, and how often that was."""
        self._state, self._now, self._now_s, self._voided = state, now, now.timestamp(), voided
        self._vain: dict[tuple[str, Request, frozenset[str]], int] = {}
        self._later_s = NEVER
        """When the next job may be stopped for one that was tried."""
        self._stale = False
        """Victims were chosen since it was last worked out who may be stopped."""
        self._series: _Series | None = None
        """The latest: others may have counted on the same victims."""

    def wake(self) -> None:
        """Have the jobs tried that could preempt, for it is not what they wait for that may have changed."""
        state = self._state
        for name, heads in list(state.lanes.waiters.heads.items()):
            queue = state.queues[name]
            for waiting in self._heads(queue, heads) if queue.may_preempt else ():
                entry, lane = state.entries[waiting.order[2]], waiting.lane
                found = [(one, self._stoppable.for_job(entry, one)) for one in choices(state, queue, entry.request)]
                if not any(len(jobs.rows) for _, jobs in found):
                    if queue.is_guaranteed:
                        continue
                    break
                if any(self._may_do(request, queue, jobs) for request, jobs in found):
                    state.lanes.set_blocked_by(lane, None)
                for _, jobs in found:
                    self._expect(jobs.ripe_s)

    def _heads(self, queue: QueueState, heads: LaneIndex) -> Iterator[Waiting]:
        """The first in order, then those behind them whose turn it is. `heads` may lose those that were given."""
        begin: From = ()
        for count in range(_HEADS + _IN_TURN):
            if count == _HEADS and queue.preempts_from > begin:
                begin = self._next_turn(queue, ())
            waiting = heads.at(begin)
            if waiting is None:
                return
            begin = (*waiting.order, 0)
            yield waiting
        if heads.at(begin) is not None:
            self._next_turn(queue, begin)

    def _next_turn(self, queue: QueueState, begin: From) -> From:
        """Let the queue's next turn begin there. Returns: where this one was to."""
        self._later_s = min(self._later_s, self._now_s + _NEXT_TURN_S)
        former = queue.preempts_from
        self._state.journal.set(queue, "preempts_from", begin)
        return former

    def _may_do(self, request: Request, queue: QueueState, jobs: MayBeStopped) -> bool:
        """By now enough of them may be stopped, as far as limits go."""
        rows = jobs.rows[jobs.ripe_s <= self._now_s]
        short = self._short(request, queue, {})
        return len(rows) > 0 and all(
            given.sum() >= one.amount for given, one in zip(self._given(rows, short), short, strict=True)
        )

    def settle(self) -> None:
        """All have been tried: note when time alone may change what came of it."""
        at = earliest(_at(self._later_s), self._state.claims.given_up.first)
        self._state.journal.set(self._state, "preempt_at", at)

    def _expect(self, ripe_s: Floats) -> None:
        self._later_s = min(self._later_s, float(np.min(ripe_s, where=ripe_s > self._now_s, initial=NEVER)))

    def claim_for(self, entry: Entry, lane: Lane, reservations: Reservations) -> list[Claimed]:
        """What the lane's first job, which does not fit beside what is kept, claims, and at whose expense; or none."""
        for request in choices(self._state, entry.queue, entry.request):
            chosen = self._chosen(request, entry, lane, reservations)
            if chosen is not None:
                return self._claims((entry,), (chosen,), request)
        return []

    def next_claims(self, lane: Lane, orders: Sequence[Order], reservations: Reservations) -> list[Claimed]:
        """The same for the lane's first jobs, one after another, as long as no new search is needed."""
        if self._series is None or not orders:
            return []
        requests = choices(self._state, lane.queue, lane.request)
        if len(requests) > 1:  # which comes first may change with each
            orders = orders[:1]
        found = self._go_on(requests[0], lane, orders, reservations)
        return self._claims([self._state.entries[order[2]] for order in orders[: len(found)]], found, requests[0])

    def _claims(self, entries: Sequence[Entry], found: Sequence[Chosen], request: Request) -> list[Claimed]:
        table, leaving, claims = self._state.nodes, self._leaving, list[Claimed]()
        there: dict[Spread, tuple[tuple[Placed, ...], str]] = {}
        for entry, (spread, stopped) in zip(entries, found, strict=True):
            if spread not in there:
                gpu_type = table.gpus.type_on([slot for slot, _ in spread], request.filter) if request.gpus else ""
                there[spread] = placed(table, spread), gpu_type
            placement, gpu_type = there[spread]
            if len(stopped) > 1:
                stopped = sorted(stopped, key=lambda one: one[0].key)
            for one, keeps in stopped:
                leaving.add(one, keeps=keeps)
            victims = tuple([_victim(one, keeps) for one, keeps in stopped])
            claim = Claim(placement=placement, gpu_type=gpu_type, victims=victims, since=self._now)
            if entry.key in self._voided:
                claim = claim.model_copy(update={"replans": self._voided[entry.key]})
            claims.append((entry, claim))
        self._stale = True
        return claims

    def took(self, entry: Entry) -> None:
        """A job has started: what it holds now is to be had no more."""
        if self._series is not None:
            self._series.victims.took(entry, self._state.nodes.slots)

    @cached_property
    def _leaving(self) -> Leaving:
        return Leaving(self._state)

    @cached_property
    def _stoppable(self) -> Stoppable:
        return Stoppable(self._state, self._now_s, self._leaving)

    # -- the search

    def _chosen(self, request: Request, entry: Entry, lane: Lane, reservations: Reservations) -> Chosen | None:
        """For a job on GPUs of one type, where types count."""
        found = self._go_on(request, lane, (entry.order,), reservations)
        if found:
            return found[0]
        kind = (entry.queue.name, request, lane.avoid)
        if not entry.queue.could_hold(request) or self._vain.get(kind, NEVER) <= entry.order[0]:
            return None
        chosen = self._search(request, entry, lane, reservations)
        if chosen is None or len(chosen[1]) > _MOST_VICTIMS:
            chosen = None
            self._vain[kind] = entry.order[0]
        return chosen

    def _go_on(self, request: Request, lane: Lane, orders: Sequence[Order], reservations: Reservations) -> list[Chosen]:
        """What the search for the class goes on with, for the lane's first jobs; shorter: it is to be begun anew."""
        series = self._series
        if series is None or (series.lane, series.request, series.priority) != (lane, request, orders[0][0]):
            return []
        most = self._most(series, orders, reservations)
        found = series.victims.take(most) if most else []
        if not found:
            self._series = None
        return found

    def _most(self, series: _Series, orders: Sequence[Order], reservations: Reservations) -> int:
        """Of so many jobs of the series' lane, what is kept, guarantees and limits stay as the search had them."""
        queue, kept, request = series.lane.queue, series.kept, series.request
        if series.reservations != len(reservations.plan):
            return 0
        wanted, gpu_type = request.totals, request.filter.type
        most = min([len(orders), *(most_within_guarantee(one, wanted, gpu_type) for one in series.owners)])
        if queue.limited(gpu_type):
            most = queue.most_within_limits(request, self._queues_left(kept.queues), most)
        while most and reservations.ahead_of(orders[most - 1], queue) is not kept:
            most //= 2  # what binds a job binds those behind it
        return most

    def _search(self, request: Request, entry: Entry, lane: Lane, reservations: Reservations) -> Chosen | None:
        """Where it starts, and what is stopped for it; None: it does not start, or needs no further victim."""
        kept = reservations.ahead_of(entry.order, entry.queue)
        state = self._state
        if self._stale:
            self._stoppable.changed()
            self._stale = False
        stoppable = self._stoppable.for_job(entry, request)
        self._expect(stoppable.ripe_s)
        rows, owners = stoppable.rows[stoppable.ripe_s <= self._now_s], stoppable.owners
        if not len(rows):
            return None
        jobs = state.running.jobs
        elastic = [row for row in rows if (one := jobs[row]) and may_shrink(one)] if state.elastic.placed else []
        if elastic or (request.gpus and state.nodes.gpus.mixed):
            self._series = None
            return self._search_tried(request, lane, kept, rows, elastic)
        short = self._short(request, entry.queue, kept.queues)
        found, amounts = self._candidates(rows, short), [one.amount for one in short]
        if (found.gives.sum(axis=0) < amounts).any():
            return None
        room = self._leaving.room(request, kept.nodes)
        problem = Problem(state.nodes, request, lane.avoid, room, found, amounts)
        if not problem.is_solvable:
            return None
        is_one = request.workers == 1 and not request.extended and not request.near.required
        if is_one and not short and len(problem.rows) > victims.EXACT:
            series = VictimSeries(problem, request)
            made = len(reservations.plan)
            self._series = _Series(lane, request, entry.order[0], series, kept, made, owners)
            return next(iter(self._go_on(request, lane, (entry.order,), reservations)), None)
        problems = [problem]
        if request.near.required:
            most, near = problem.most, domains(state.nodes, request.near)
            problems = [
                Problem(state.nodes, request, lane.avoid, room, found, amounts, domain=domain)
                for domain in near
                if domain is not None and int(most[domain].sum()) >= request.workers
            ]
        stopped = cheapest_of(problems)
        if not stopped:
            return None
        self._series = None
        spread = self._tried(request, lane, kept, stopped)
        return None if spread is None else (spread, [(one, ()) for one in stopped])

    def _search_tried(
        self, request: Request, lane: Lane, kept: Kept, rows: Column, elastic: list[int]
    ) -> Chosen | None:
        """Elastic jobs (their rows, cheapest first) shrink before any is stopped whole; and where nodes have GPUs of
        several types, what a job's end leaves there is only known once it is tried."""
        state, left = self._state, bool(request.gpus and self._state.nodes.gpus.mixed)

        def room() -> Room:
            return free_room(state.nodes, request, kept.nodes) if left else self._leaving.room(request, kept.nodes)

        def starts() -> Spread | None:
            fits = lane.queue.has_room(request, kept.queues if left else self._queues_left(kept.queues))
            return place(state.nodes, request, lane.avoid, room=room()) if fits else None

        with state.what_if():
            if left:
                for key in state.victims:
                    state.give_way(key)
                state.deleted_jobs.release_all()
            if starts() is not None:
                return None
            now = room()
            shrinking = Shrinking(state, self._now, starts)
            if shrinking.make_room(*self._helping(request, lane, now, elastic, elastic), request.workers):
                shrinking.spare()
                spread = starts()
                return None if spread is None else (spread, list(shrinking.keeps.items()))
            shrinking.shrink_all(*self._helping(request, lane, now, rows, elastic))
            short = self._short(request, lane.queue, kept.queues, left=left)
            found = self._candidates(rows, short)._replace(held=state.running.held())
            there, amounts = room(), [one.amount for one in short]
            for closed in ((), tuple(state.nodes.gpus.mixed)):
                stopped = cheapest_of(
                    Problem(state.nodes, request, lane.avoid, there, found, amounts, closed, domain)
                    for domain in domains(state.nodes, request.near)
                )
                if not stopped:
                    return None
                with state.what_if():
                    for one in stopped:
                        state.vacate(one.key)
                    if starts() is None:
                        continue
                    shrinking.spare(stopped)
                    spread = starts()
                    if spread is not None:
                        return spread, list({**dict.fromkeys(stopped, ()), **shrinking.keeps}.items())
        return None

    def _helping(
        self, request: Request, lane: Lane, room: Room, rows: Column | list[int], elastic: list[int]
    ) -> tuple[list[Entry], Mask]:
        """The elastic jobs that hold something on a slot that would take workers of the request without those of
        `rows`, or that a limit may be short of; and these slots. Hopeful where resources are extended or GPUs
        differ."""
        jobs, held, table = self._state.running, self._stoppable.held, self._state.nodes
        mine: Mask = np.zeros(len(jobs.jobs), dtype=np.bool_)
        mine[rows] = True
        row, slot, workers = (column[mine[held.row]] for column in held)
        gpu, cpu, memory = (column.copy() for column in room[:3])
        for column, each in ((gpu, jobs.gpus), (cpu, jobs.cpu), (memory, jobs.memory)):
            np.add.at(column, slot, workers * each[row])
        extended = tuple(np.full_like(gpu, HUGE) for _ in request.extended)
        useful: Mask = fitting(table, request, lane.avoid, Room(gpu, cpu, memory, extended)) > 0
        if request.gpus:
            useful &= table.rest_for(request.filter) > 0
        mine[:] = False
        mine[row[useful[slot]]] = True
        short = any(one.limit != NOT_NAMED for one in lane.queue.accounts(request.filter.type))
        helping = (jobs.jobs[at] for at in elastic if short or mine[at])
        return [one for one in helping if one is not None], useful

    def _tried(self, request: Request, lane: Lane, kept: Kept, stopped: tuple[Entry, ...]) -> Spread | None:
        """Where it starts once these have gone."""
        leaving = self._leaving
        for one in stopped:
            leaving.add(one)
        fits = lane.queue.has_room(request, self._queues_left(kept.queues))
        room = leaving.room(request, kept.nodes)
        spread = place(self._state.nodes, request, lane.avoid, room=room) if fits else None
        for one in stopped:
            leaving.add(one, -1)
        return spread

    def _queues_left(self, kept: Mapping[str, Totals]) -> dict[str, Totals]:
        """Account → what is kept there, less what those that leave will hold no more."""
        queues = dict(kept)
        for name, amounts in self._leaving.queues.items():
            queues[name] = queues.get(name, NOTHING).plus(amounts)
        return queues

    def _short(
        self, request: Request, queue: QueueState, kept: Mapping[str, Totals], *, left: bool = False
    ) -> list[Shortage]:
        """What limits are short of, once those that leave have gone. `kept`: account → what is spoken for. `left`: in
        this what-if they have."""
        if not queue.limited(request.filter.type):
            return []
        return queue.shortages(request, kept if left else self._queues_left(kept))

    def _candidates(self, rows: Column, short: Sequence[Shortage]) -> Candidates:
        gives = np.array(self._given(rows, short), dtype=np.int64).reshape(len(short), len(rows)).T
        return Candidates(self._state.running, rows, self._stoppable.costs[rows], gives, self._stoppable.held)

    def _given(self, rows: Column, short: Iterable[Shortage]) -> list[Column]:
        """What the end of each of the jobs gives back of each that is short."""
        totals = self._state.running.totals
        return [np.where(self._stoppable.are_below(rows, one.account), totals[one.kind][rows], 0) for one in short]


def _at(seconds: float) -> datetime | None:
    """Not before: who is looked at too early would be looked at again and again until then."""
    if seconds > _FAR_S:
        return None
    at = datetime.fromtimestamp(seconds, UTC)
    return at if at.timestamp() >= seconds else at + datetime.resolution


def _victim(entry: Entry, keeps: tuple[Placed, ...]) -> Victim:
    """A field that is not set takes no room: thousands may be made at once."""
    (namespace, name), job = entry.key, entry.job
    victim = Victim(namespace=namespace, name=name, uid=job.metadata.uid, attempt=job.status.attempt)
    return victim.model_copy(update={"keeps": keeps}) if keeps else victim
