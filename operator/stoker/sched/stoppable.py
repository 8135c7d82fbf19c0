"""Which running jobs may be stopped for one that waits, and from when on.

Owns these rules: a queue's own jobs of lower priority, those that `las` puts behind, and other queues' jobs that hold
what is guaranteed to the job's. `running` says what each costs. Called by `preempt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stoker.spec.quantity import parse_duration
from stoker.spec.queue import NOT_NAMED, WithinQueue

from .columns import Column, Mask
from .discipline import BOUNDS_OR_NEVER, LOSS, STANDS_BACK_S
from .entries import Entry
from .gpu_choice import most_within_guarantee
from .leaving import Leaving
from .lenders import Asked, Lenders
from .queue_state import Account, QueueState
from .request import Request, Totals
from .running import Floats, Held
from .state import SchedulerState

NEVER = float("inf")
_NONE: Column = np.zeros(0, dtype=np.int64)


class _Running(NamedTuple):
    """The jobs that may be stopped, as of one moment. Shape: the rows of `RunningJobs`."""

    came: int
    """When: as `RunningJobs.came`."""
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


class Owed(NamedTuple):
    """What can be taken back of a guarantee for a job."""

    owner: QueueState
    account: Account
    """The owner's, or that of its GPUs of the job's type, if the guarantee names it."""
    kinds: tuple[int, ...]
    """Of Totals."""
    rows: Column
    """The jobs that may be stopped, now or later."""
    ripe_s: Floats
    """From when on each may be."""


class Stoppable:
    """As of `now_s`, beside those that leave already. Cost: O(running jobs) in numpy, again after `changed`."""

    def __init__(self, state: SchedulerState, now_s: float, leaving: Leaving) -> None:
        self._state, self._now_s, self._leaving = state, now_s, leaving
        self._running = self._now()
        self._lenders = Lenders(state, leaving, self._running.rank)
        self._held: Held | None = None
        self._found: dict[tuple[str, tuple[object, ...]], MayBeStopped] = {}

    def changed(self) -> None:
        """Some of them are stopped now, and others hold other things."""
        self._state.running.refresh()
        self._held = None
        self._found.clear()
        if self._running.came != self._state.running.came:
            self._running = self._now()
            self._lenders = Lenders(self._state, self._leaving, self._running.rank)
        self._lenders.forget()

    @property
    def costs(self) -> Floats:
        """Of stopping each of the running jobs."""
        return self._running.costs

    @property
    def held(self) -> Held:
        if self._held is None:
            self._held = self._state.running.held()
        return self._held

    def for_job(self, entry: Entry, request: Request) -> MayBeStopped:
        """`request`: the job's, on GPUs of the type that is tried."""
        queue = entry.queue
        if queue.is_guaranteed:  # what has started since counts
            return self._for_job(entry, request)
        kind = queue.name, entry.order if queue.las else entry.order[:1]
        found = self._found.get(kind)
        if found is None:
            found = self._found[kind] = self._for_job(entry, request)
        return found

    def _for_job(self, entry: Entry, request: Request) -> MayBeStopped:
        queue, running, jobs = entry.queue, self._running, self._state.running
        found: list[tuple[Column, Floats]] = []
        owners = tuple[QueueState, ...]()
        if queue.preemption.within_queue is WithinQueue.LOWER_PRIORITY:
            found.append(self.of_lower_priority(entry))
        if queue.las:
            mine = jobs.of(queue.name)
            found.append((mine, np.maximum(running.ripe_s[mine], self._behind_s(entry, mine))))
        if queue.is_guaranteed:
            owed = [one for one in self.owed(queue, request) if len(one.rows)]
            found += [(one.rows, one.ripe_s) for one in owed]
            owners = tuple(dict.fromkeys(one.owner for one in owed))
        if len(found) < 2:
            rows, ripe_s = found[0] if found else (_NONE, running.ripe_s[_NONE])
        else:
            ripe_of = np.full(len(running.costs), NEVER)
            for rows, ripe_s in found:
                ripe_of[rows] = np.minimum(ripe_of[rows], ripe_s)
            rows = np.unique(np.concatenate([rows for rows, _ in found]))
            ripe_s = ripe_of[rows]
        order = np.argsort(running.rank[rows])
        return MayBeStopped(rows[order], ripe_s[order], owners)

    def of_lower_priority(self, entry: Entry) -> tuple[Column, Floats]:
        """The jobs of its queue over which it comes by its priority, and when each has run as long as the queue lets
        it."""
        mine = self._state.running.of(entry.queue.name)
        rows = mine[self._state.running.urgency[mine] > -entry.job.spec.priority]
        return rows, self._running.ripe_s[rows]

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

    def owed(self, queue: QueueState, request: Request) -> Iterator[Owed]:
        """What other queues hold of what is guaranteed to the job's, or to one above it.

        Where the job's queue and another part, the job's side must stay within its guarantee with the job; and the
        other side is made to give back while it holds more than is guaranteed to it.
        """
        wanted, gpu_type = request.totals, request.filter.type
        owner: QueueState | None = None
        for side, above in zip(queue.path, (*queue.path[1:], None), strict=True):
            if any(mine.guarantee != NOT_NAMED for mine in side.own(gpu_type)):
                owner = side
            if owner is None or not most_within_guarantee(owner, wanted, gpu_type):
                continue
            account: Account = owner.own(gpu_type)[-1]
            if account.guarantee == NOT_NAMED:
                account = owner
            kinds = _taken_back(wanted, account)
            rows = self._lenders.to(queue, above, Asked(kinds, gpu_type if account is not owner else ""))
            yield Owed(owner, account, kinds, rows, self._running.ripe_s[rows])

    def are_below(self, rows: Column, account: Account) -> Mask:
        """Which of them the account counts."""
        jobs = self._state.running.jobs
        if isinstance(account, QueueState):
            return self._lenders.is_below(rows, account)
        return np.array([(one := jobs[row]) is not None and account in one.accounts for row in rows], dtype=np.bool_)

    def _now(self) -> _Running:
        jobs = self._state.running
        jobs.refresh()
        costs, rows = jobs.costs(self._now_s), jobs.rows
        rank = np.zeros(len(costs), dtype=np.int64)
        rank[rows[np.argsort(costs[rows], kind="stable")]] = np.arange(len(rows))
        ripe_s = np.full(len(costs), -NEVER)
        for name in jobs.queues:
            queue = self._state.queues.get(name)
            if queue is not None and queue.preemption.min_runtime is not None:
                mine = jobs.of(name)
                ripe_s[mine] = jobs.began_s[mine] + parse_duration(queue.preemption.min_runtime)
        return _Running(jobs.came, costs, rank, ripe_s)


def _taken_back(wanted: Totals, owner: Account) -> tuple[int, ...]:
    """Which of Totals: what is wanted and guaranteed to the owner: GPUs, for a job with GPUs."""
    kinds = (0,) if wanted.gpus else (1, 2)
    return tuple(at for at in kinds if wanted[at] and owner.guarantee[at] is not None)
