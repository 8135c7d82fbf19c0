"""Which running jobs may be stopped for one that waits, and from when on.

Owns these rules: a queue's own jobs of lower priority, those that `las` puts behind, and other queues' jobs that hold
what is guaranteed to the job's. `running` says what each costs. Called by `preempt`.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from stoker.spec.quantity import parse_duration
from stoker.spec.queue import NOT_NAMED, WithinQueue

from .columns import Column, Mask
from .discipline import BOUNDS_OR_NEVER, LOSS, STANDS_BACK_S
from .entries import Account, Entry, QueueState
from .gpu_choice import is_entitled
from .leaving import Leaving
from .request import NOTHING, Request, Totals
from .running import Floats, Held
from .state import SchedulerState

NEVER = float("inf")


class _Running(NamedTuple):
    """The jobs that may be stopped, as of one moment. Shape: the rows of `RunningJobs`."""

    costs: Floats
    rank: Column
    """By cost, then key."""
    ripe_s: Floats
    """When each has run as long as its queue lets it; infinite: not before it has begun."""


class MayBeStopped(NamedTuple):
    """The jobs that may be stopped for one that waits, cheapest first, now or later."""

    rows: Column
    ripe_s: Floats
    """From when on each may be."""
    owners: tuple[QueueState, ...]
    """The queues to whose guarantee some of what they hold would go."""


class Stoppable:
    """As of `now_s`, beside those that leave already."""

    def __init__(self, state: SchedulerState, now_s: float, leaving: Leaving) -> None:
        self._state, self._now_s, self._leaving = state, now_s, leaving
        self._borrowing: dict[tuple[str, Totals, str], tuple[Column, tuple[QueueState, ...]]] = {}

    @property
    def costs(self) -> Floats:
        """Of stopping each of the running jobs."""
        return self._running.costs

    @cached_property
    def held(self) -> Held:
        return self._state.running.held(self._state.nodes.slots)

    def for_job(self, entry: Entry, request: Request) -> MayBeStopped:
        """`request`: the job's, on GPUs of the type that is tried."""
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
            borrowers, owners = self._borrowers(queue, request)
            found.append((borrowers, running.ripe_s[borrowers]))
        if len(found) == 1:
            rows, ripe_s = found[0]
        else:
            ripe_of = np.full(len(running.costs), NEVER)
            for rows, ripe_s in found:
                ripe_of[rows] = np.minimum(ripe_of[rows], ripe_s)
            rows = np.unique(np.concatenate([rows for rows, _ in found]))
            ripe_s = ripe_of[rows]
        order = np.argsort(running.rank[rows])
        return MayBeStopped(rows[order], ripe_s[order], owners)

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
        cheap_s = np.where(growing, NEVER, began_s + lost_s)
        found: Floats = np.maximum(behind_s, cheap_s)
        return found

    def _borrowers(self, queue: QueueState, request: Request) -> tuple[Column, tuple[QueueState, ...]]:
        """Jobs of other queues that hold what is guaranteed to the job's queue, or one above it.

        Where the job's queue and another part, the job's side must stay within its guarantee with the job; and the
        other side is made to give back while it holds more than is guaranteed to it.
        """
        state, jobs, wanted, gpu_type = self._state, self._state.running, request.totals, request.filter.type
        known = self._borrowing.get((queue.name, wanted, gpu_type))
        if known is not None:
            return known
        found, owners = [np.zeros(0, dtype=np.int64)], dict[QueueState, None]()
        left: dict[str, Totals] = {}
        for other in [state.queues[name] for name in jobs.queues]:
            guaranteed = [
                one
                for one in queue.path
                if one not in other.path and any(mine.guarantee != NOT_NAMED for mine in one.own(gpu_type))
            ]
            if not guaranteed or not is_entitled(guaranteed[-1], wanted, gpu_type):
                continue
            owner, levels = guaranteed[-1].own(gpu_type)[-1], [one for one in other.path if one not in queue.path]
            rows = jobs.of(other.name)
            rows = rows[np.argsort(self._running.rank[rows])]
            entries = [one for row in rows if (one := jobs.jobs[row]) is not None]
            accounts: list[Account] = [*levels]
            if owner.guarantee == NOT_NAMED:
                owner = guaranteed[-1]
            elif owner is not guaranteed[-1]:  # of this type: who holds such GPUs gives them back
                found_at = [at for at, one in enumerate(entries) if one.gpu_type == gpu_type]
                rows, entries = rows[found_at], [entries[at] for at in found_at]
                accounts = [one.typed[gpu_type] for one in levels if gpu_type in one.typed]
            if not entries:
                continue
            gives = np.array([one.request.totals for one in entries], dtype=np.int64)
            before = np.cumsum(gives, axis=0) - gives
            lends = np.ones(len(rows), dtype=np.bool_)
            for account in accounts:
                gone = self._leaving.queues.get(account.name, NOTHING)
                held = left.setdefault(account.name, account.used.plus(gone))
                lends &= _borrows(account, np.array(held) - before, wanted, owner)
            count = int(lends.argmin()) if not lends.all() else len(rows)
            given = Totals(*gives[:count].sum(axis=0).tolist())
            for account in accounts:
                left[account.name] = left[account.name].plus(given, -1)
            if count:
                found.append(rows[:count])
                owners[guaranteed[-1]] = None
        self._borrowing[queue.name, wanted, gpu_type] = np.concatenate(found), tuple(owners)
        return self._borrowing[queue.name, wanted, gpu_type]

    @cached_property
    def _running(self) -> _Running:
        jobs = self._state.running
        jobs.refresh()
        costs, rows = jobs.costs(self._now_s), jobs.rows
        rank = np.zeros(len(costs), dtype=np.int64)
        rank[rows[np.argsort(costs[rows], kind="stable")]] = np.arange(len(rows))
        ripe_s = np.full(len(costs), -NEVER)
        for name in jobs.queues:
            least = self._state.queues[name].preemption.min_runtime
            if least is not None:
                mine = jobs.of(name)
                ripe_s[mine] = jobs.began_s[mine] + parse_duration(least)
        return _Running(costs, rank, ripe_s)


def _borrows(account: Account, holds: Column, wanted: Totals, owner: Account) -> Mask:
    """It holds more than is guaranteed to it of something that is wanted and guaranteed to the owner: GPUs, for a job
    with GPUs. Shape: (…, 3)."""
    kinds = (0,) if wanted.gpus else (1, 2)
    found: Mask = np.zeros(len(holds), dtype=np.bool_)
    for at in kinds:
        if wanted[at] and owner.guarantee[at] is not None:
            found |= holds[:, at] > (account.guarantee[at] or 0)
    return found
