"""Preemption and reclaim: which waiting jobs have running ones stopped, and which.

Owns which jobs may be stopped for another; `running` says what that costs, `victims` finds the cheapest set, and each
answer is tried out before it counts: nothing is stopped for a job that does not then start. Called by `decide`, after
everything that fits has started.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from stoker.spec.job import Claim, Victim
from stoker.spec.meta import Key
from stoker.spec.quantity import parse_duration
from stoker.spec.queue import NOT_NAMED, WithinQueue

from . import victims
from .claims import next_given_up
from .columns import Column, Mask
from .discipline import BOUNDS_OR_NEVER, LOSS, STANDS_BACK_S
from .entries import Entry, Lane, QueueState, earliest
from .leaving import Leaving
from .place import Spread, free_room, place, placed
from .request import NOTHING, Request, Totals
from .reservations import Kept, Reservations
from .running import Floats, Held
from .state import SchedulerState
from .topology import domains
from .victims import Candidates, OneByOne, Problem, cheapest_of

_HEADS = 64
"""Jobs per queue and decide, the first in order, that victims are looked for."""
_NEVER, _FAR_S = float("inf"), 2e11


class _Running(NamedTuple):
    """The jobs that may be stopped, as of one moment. Shape: the rows of `RunningJobs`."""

    costs: Floats
    rank: Column
    """By cost, then key."""
    ripe_s: Floats
    """When each has run as long as its queue lets it; infinite: not before it has begun."""


class _Stoppable(NamedTuple):
    """The jobs that may be stopped for one that waits, cheapest first, now or later."""

    rows: Column
    ripe_s: Floats
    """From when on each may be."""
    owners: tuple[QueueState, ...]
    """The queues to whose guarantee some of what they hold would go."""


class _Series(NamedTuple):
    """The search for one class of jobs, one after another."""

    victims: OneByOne
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
        self._borrowing: dict[tuple[str, Totals], tuple[Column, tuple[QueueState, ...]]] = {}
        self._later_s = _NEVER
        """When the next job may be stopped for one that was tried."""
        self._stale = False
        """Victims were chosen since it was last worked out who may be stopped."""
        self._series: dict[tuple[str, int, Request, frozenset[str]], _Series] = {}

    def wake(self) -> None:
        """Have the jobs tried that could preempt, for it is not what they wait for that may have changed."""
        state = self._state
        for queue in state.queues.values():
            if not queue.may_preempt or not queue.filed:
                continue
            for order in islice(queue.filed, _HEADS):
                entry = state.entries[order[2]]
                lane = entry.lane
                if lane is None or lane.place is None or lane.place.order != order:
                    continue
                ripe_s = self._stoppable_for(entry).ripe_s
                if not len(ripe_s):
                    if queue.is_guaranteed:
                        continue
                    break
                if (ripe_s <= self._now_s).any():
                    state.lanes.set_blocked_by(lane, None)
                self._expect(ripe_s)

    def settle(self) -> None:
        """All have been tried: note when time alone may change what came of it."""
        at = earliest(_at(self._later_s), next_given_up(self._state))
        self._state.journal.set(self._state, "preempt_at", at)

    def _expect(self, ripe_s: Floats) -> None:
        self._later_s = min(self._later_s, float(np.min(ripe_s, where=ripe_s > self._now_s, initial=_NEVER)))

    def claim_for(self, entry: Entry, lane: Lane, reservations: Reservations) -> Claim | None:
        """What a job that does not fit beside what is kept may claim, and at whose expense."""
        state, queue, request = self._state, entry.queue, entry.request
        kind = (queue.name, request, lane.avoid)
        if not queue.could_hold(request.totals) or self._vain.get(kind, _NEVER) <= entry.order[0]:
            return None
        kept = reservations.ahead_of(entry.order, queue)
        found = self._next(entry, lane, kept, reservations)
        if found is None:
            found = self._search(entry, lane, kept, reservations)
        if found is None:
            self._vain[kind] = entry.order[0]
            return None
        spread, stopped = found
        for one in stopped:
            self._leaving.add(one)
        self._stale = True
        return Claim(
            placement=placed(state.nodes, spread),
            victims=tuple(_victim(one) for one in sorted(stopped, key=lambda one: one.key)),
            since=self._now,
            replans=self._voided.get(entry.key, 0),
        )

    def took(self, entry: Entry) -> None:
        """A job has started, or its claim counts: what it holds now is to be had no more."""
        if not self._series:
            return
        state = self._state
        nodes = dict.fromkeys(entry.workers_on)
        for victim in () if entry.claim is None else entry.claim.victims:
            nodes |= dict.fromkeys(state.entries[victim.key].workers_on)
        for (_, _, request, _), series in self._series.items():
            for slot in [state.nodes.slots[name] for name in nodes if name in state.nodes.slots]:
                series.victims.turn(slot, self._leaving.free(slot, request, series.kept.nodes))

    # -- who may be stopped

    @cached_property
    def _running(self) -> _Running:
        jobs = self._state.running
        jobs.refresh()
        costs, rows = jobs.costs(self._now_s), jobs.rows
        rank = np.zeros(len(costs), dtype=np.int64)
        rank[rows[np.argsort(costs[rows], kind="stable")]] = np.arange(len(rows))
        ripe_s = np.full(len(costs), -_NEVER)
        for name in jobs.queues:
            least = self._state.queues[name].preemption.min_runtime
            if least is not None:
                mine = jobs.of(name)
                ripe_s[mine] = jobs.began_s[mine] + parse_duration(least)
        return _Running(costs, rank, ripe_s)

    @cached_property
    def _held(self) -> Held:
        return self._state.running.held(self._state.nodes.slots)

    def _look_again(self) -> None:
        for name in ("_running", "_held"):
            self.__dict__.pop(name, None)
        self._borrowing.clear()
        self._stale = False

    @cached_property
    def _leaving(self) -> Leaving:
        return Leaving(self._state)

    def _stoppable_for(self, entry: Entry) -> _Stoppable:
        queue, running, jobs = entry.queue, self._running, self._state.running
        found: list[tuple[Column, Floats]] = []
        owners = tuple[QueueState, ...]()
        if queue.preemption.within_queue is WithinQueue.LOWER_PRIORITY:
            mine = jobs.of(queue.name)
            lower = mine[jobs.urgency[mine] > -entry.job.spec.priority]
            found.append((lower, running.ripe_s[lower]))
        if queue.las:
            mine = jobs.of(queue.name)
            found.append((mine, np.maximum(running.ripe_s[mine], self._behind_s(entry, mine))))
        if queue.is_guaranteed:
            borrowers, owners = self._borrowers(entry)
            found.append((borrowers, running.ripe_s[borrowers]))
        if len(found) == 1:
            rows, ripe_s = found[0]
        else:
            ripe_of = np.full(len(running.costs), _NEVER)
            for rows, ripe_s in found:
                ripe_of[rows] = np.minimum(ripe_of[rows], ripe_s)
            rows = np.unique(np.concatenate([rows for rows, _ in found]))
            ripe_s = ripe_of[rows]
        order = np.argsort(running.rank[rows])
        return _Stoppable(rows[order], ripe_s[order], owners)

    def _behind_s(self, entry: Entry, rows: Column) -> Floats:
        """From when on each job of the queue has had so much that this one goes first, and loses little (`LOSS`)."""
        jobs = self._state.running
        gpus, began_s = np.maximum(jobs.all_gpus[rows], 1e-9), jobs.began_s[rows]
        beyond = np.searchsorted(STANDS_BACK_S, entry.order[1].timestamp() - jobs.queued_s[rows], side="right")
        beyond[jobs.urgency[rows] > entry.order[0]] = 0
        beyond[jobs.urgency[rows] < entry.order[0]] = len(STANDS_BACK_S)
        behind_s = np.where(beyond > 0, (BOUNDS_OR_NEVER[beyond] - jobs.attained_s[rows]) / gpus, 0.0) + began_s
        lost_s = jobs.restart_s[rows] * jobs.weight[rows] / LOSS / gpus
        # Of a job that has lost too much by now, only a checkpoint makes that less.
        growing = (jobs.saved_s[rows] < self._now_s) & (
            self._running.costs[rows] > LOSS * gpus * (self._now_s - began_s)
        )
        cheap_s = np.where(growing, _NEVER, began_s + lost_s)
        found: Floats = np.maximum(behind_s, cheap_s)
        return found

    def _borrowers(self, entry: Entry) -> tuple[Column, tuple[QueueState, ...]]:
        """Jobs of other queues that hold what is guaranteed to the job's queue, or one above it.

        Where the job's queue and another part, the job's side must stay within its guarantee with the job; and the
        other side is made to give back while it holds more than is guaranteed to it.
        """
        state, jobs, queue, wanted = self._state, self._state.running, entry.queue, entry.request.totals
        known = self._borrowing.get((queue.name, wanted))
        if known is not None:
            return known
        found, owners = [np.zeros(0, dtype=np.int64)], dict[QueueState, None]()
        left: dict[str, Totals] = {}
        for other in [state.queues[name] for name in jobs.queues]:
            guaranteed = [one for one in queue.path if one not in other.path and one.guarantee != NOT_NAMED]
            if not guaranteed or not _is_entitled(guaranteed[-1], wanted):
                continue
            levels = [one for one in other.path if one not in queue.path]
            rows = jobs.of(other.name)
            rows = rows[np.argsort(self._running.rank[rows])]
            entries = [one for row in rows if (one := jobs.jobs[row]) is not None]
            gives = np.array([one.request.totals for one in entries], dtype=np.int64)
            before = np.cumsum(gives, axis=0) - gives
            lends = np.ones(len(rows), dtype=np.bool_)
            for level in levels:
                gone = self._leaving.queues.get(level.name, NOTHING)
                held = left.setdefault(level.name, level.used.plus(gone))
                lends &= _borrows(level, np.array(held) - before, wanted)
            count = int(lends.argmin()) if not lends.all() else len(rows)
            given = Totals(*gives[:count].sum(axis=0).tolist())
            for level in levels:
                left[level.name] = left[level.name].plus(given, -1)
            if count:
                found.append(rows[:count])
                owners[guaranteed[-1]] = None
        self._borrowing[queue.name, wanted] = np.concatenate(found), tuple(owners)
        return self._borrowing[queue.name, wanted]

    # -- the search

    def _next(
        self, entry: Entry, lane: Lane, kept: Kept, reservations: Reservations
    ) -> tuple[Spread, tuple[Entry, ...]] | None:
        """What the search for the class goes on with; None: it is to be begun anew."""
        kind = (entry.queue.name, entry.order[0], entry.request, lane.avoid)
        series, wanted = self._series.pop(kind, None), entry.request.totals
        if series is None or series.kept is not kept or series.reservations != len(reservations.plan):
            return None
        if not all(_is_entitled(one, wanted) for one in series.owners) or self._short(entry, kept):
            return None
        found = series.victims.next()
        if found is None:
            return None
        self._series = {kind: series}  # others may have counted on the same victims
        return ((found[0], 1),), found[1]

    def _search(
        self, entry: Entry, lane: Lane, kept: Kept, reservations: Reservations
    ) -> tuple[Spread, tuple[Entry, ...]] | None:
        """Where it starts, and what is stopped for it; None: it does not start, or needs no further victim."""
        state, request = self._state, entry.request
        if self._stale:
            self._look_again()
        stoppable = self._stoppable_for(entry)
        self._expect(stoppable.ripe_s)
        rows, owners = stoppable.rows[stoppable.ripe_s <= self._now_s], stoppable.owners
        if not len(rows):
            return None
        short = self._short(entry, kept)
        found, amounts = self._candidates(rows, short), [amount for _, _, amount in short]
        if request.gpus and state.nodes.mixed:
            self._series.clear()
            return self._search_mixed(entry, lane, kept, found, amounts)
        room = self._leaving.room(request, kept.nodes)
        problems = [
            one
            for domain in domains(state.nodes, request.near)
            if (one := Problem(state.nodes, request, lane.avoid, room, found, amounts, domain=domain)).is_solvable
        ]
        if not problems:
            return None
        problem = problems[0]
        if request.workers == 1 and not request.extended and not short and len(problem.entries) > victims.EXACT:
            kind = (entry.queue.name, entry.order[0], request, lane.avoid)
            self._series[kind] = _Series(OneByOne(problem), kept, len(reservations.plan), owners)
            return self._next(entry, lane, kept, reservations)
        stopped = cheapest_of(problems)
        if not stopped:
            return None
        self._series.clear()
        spread = self._tried(entry, lane, kept, stopped)
        return None if spread is None else (spread, stopped)

    def _search_mixed(
        self, entry: Entry, lane: Lane, kept: Kept, found: Candidates, short: list[int]
    ) -> tuple[Spread, tuple[Entry, ...]] | None:
        """Where nodes have GPUs of several types, what a job's end leaves there is only known once it is tried."""
        state, queue, request = self._state, entry.queue, entry.request
        with state.what_if():
            for key in state.victims:
                state.vacate(key)
            room = free_room(state.nodes, request, kept.nodes)
            for closed in ((), tuple(state.nodes.mixed)):
                stopped = cheapest_of(
                    Problem(state.nodes, request, lane.avoid, room, found, short, closed, domain)
                    for domain in domains(state.nodes, request.near)
                )
                if not stopped:
                    return None
                with state.what_if():
                    for one in stopped:
                        state.vacate(one.key)
                    fits = queue.has_room(request.totals, kept.queues)
                    spread = place(state.nodes, request, lane.avoid, kept.nodes) if fits else None
                if spread is not None:
                    return spread, stopped
        return None

    def _tried(self, entry: Entry, lane: Lane, kept: Kept, stopped: tuple[Entry, ...]) -> Spread | None:
        """Where it starts once these have gone."""
        leaving, request, queues = self._leaving, entry.request, dict(kept.queues)
        for one in stopped:
            leaving.add(one)
        for name, amounts in leaving.queues.items():
            queues[name] = queues.get(name, NOTHING).plus(amounts)
        fits = entry.queue.has_room(request.totals, queues)
        room = leaving.room(request, kept.nodes)
        spread = place(self._state.nodes, request, lane.avoid, room=room) if fits else None
        for one in stopped:
            leaving.add(one, -1)
        return spread

    def _short(self, entry: Entry, kept: Kept) -> list[tuple[QueueState, int, int]]:
        """(queue, resource, how much) that its limit and those above are short of, once those that leave have gone."""
        if all(one.limit == NOT_NAMED for one in entry.queue.path):
            return []
        gone, keep = self._leaving.queues, kept.queues
        return [
            (one, at, used + less + kept_of + want - limit)
            for one in entry.queue.path
            if one.limit != NOT_NAMED
            for at, (limit, used, less, kept_of, want) in enumerate(
                zip(
                    one.limit,
                    one.used,
                    gone.get(one.name, NOTHING),
                    keep.get(one.name, NOTHING),
                    entry.request.totals,
                    strict=True,
                )
            )
            if limit is not None and want and used + less + kept_of + want > limit
        ]

    def _candidates(self, rows: Column, short: list[tuple[QueueState, int, int]]) -> Candidates:
        jobs = self._state.running
        gives = np.zeros((len(rows), len(short)), dtype=np.int64)
        for i, row in enumerate(rows if short else ()):
            one = jobs.jobs[row]
            if one is not None:
                gives[i] = [one.request.totals[at] if limited in one.queue.path else 0 for limited, at, _ in short]
        return Candidates(jobs, rows, self._running.costs[rows], gives, self._held)


def _at(seconds: float) -> datetime | None:
    return None if seconds > _FAR_S else datetime.fromtimestamp(seconds, UTC)


def _is_entitled(queue: QueueState, wanted: Totals) -> bool:
    """With so much more it holds no more than is guaranteed to it, of all that the guarantee names."""
    named = [
        used + want <= guarantee
        for guarantee, used, want in zip(queue.guarantee, queue.used, wanted, strict=True)
        if guarantee is not None and want
    ]
    return bool(named) and all(named) and (not wanted.gpus or queue.guarantee[0] is not None)


def _borrows(queue: QueueState, holds: Column, wanted: Totals) -> Mask:
    """It holds more than is guaranteed to it of something that is wanted: GPUs, for a job with GPUs. Shape: (…, 3)."""
    kinds = (0,) if wanted.gpus else (1, 2)
    found: Mask = np.zeros(len(holds), dtype=np.bool_)
    for at in kinds:
        if wanted[at]:
            found |= holds[:, at] > (queue.guarantee[at] or 0)
    return found


def _victim(entry: Entry) -> Victim:
    key = entry.key
    return Victim(namespace=key.namespace, name=key.name, uid=entry.job.uid, attempt=entry.job.status.attempt)
