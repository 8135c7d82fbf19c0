"""Preemption and reclaim: which waiting jobs have running ones stopped, and which.

Owns which jobs may be stopped for another and what that costs; `victims` finds the cheapest set, and each answer is
tried out on the state before it counts: nothing is stopped for a job that does not then start. Called by `decide`,
after everything that fits has started.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice

from stoker.spec.job import MAX_PRIORITY, Claim, Phase, Victim
from stoker.spec.meta import Key
from stoker.spec.outcome import Intent
from stoker.spec.quantity import parse_duration
from stoker.spec.queue import NOT_NAMED, WithinQueue

from .claims import given_up_at
from .entries import EARLIEST, LATEST, Entry, Lane, QueueState
from .place import Spread, place, placed
from .request import NOTHING, Request, Totals
from .reservations import Kept, Reservations
from .state import SchedulerState
from .victims import Candidate, cheapest

_HEADS = 64
"""Jobs per queue and decide, the first in order, that victims are looked for."""
_LEAST_RESTART_S = 30.0
_CORE = 0.01
"""What a core counts, in GPUs."""


class Preemption:
    """Of one pass of `decide`."""

    def __init__(self, state: SchedulerState, now: datetime, voided: Mapping[Key, int]) -> None:
        """`voided`: the claims that have just ended because others took their room, and how often that was."""
        self._state, self._now, self._voided = state, now, voided
        self._vain: dict[tuple[str, Request, frozenset[str]], int] = {}
        self._holders: dict[str, list[Entry]] = {}
        self._borrowing: dict[tuple[str, Totals], list[Entry]] = {}

    def wake(self) -> None:
        """Have the jobs tried that could preempt, for it is not what they wait for that may have changed."""
        state, again = self._state, []
        for queue in state.queues.values():
            if not queue.may_preempt or not queue.filed:
                continue
            for order in islice(queue.filed, _HEADS):
                entry = state.entries[order[2]]
                lane = entry.lane
                if lane is None or lane.place is None:
                    continue
                found = self._stoppable_for(entry)
                again += [at for one in found if self._now < (at := _ripe_at(one)) < LATEST]
                if any(_ripe_at(one) <= self._now for one in found):
                    state.set_blocked_by(lane, None)
                elif not found:
                    break
        late = [given_up_at(state, claim) for key in state.claims if (claim := state.entries[key].claim) is not None]
        state.journal.set(state, "preempt_at", min([*again, *late], default=None))

    def claim_for(self, entry: Entry, lane: Lane, reservations: Reservations) -> Claim | None:
        """What a job that does not fit beside what is kept may claim, and at whose expense."""
        state, queue, request = self._state, entry.queue, entry.request
        kind = (queue.name, request, lane.avoid)
        if not queue.could_hold(request.totals) or self._vain.get(kind, MAX_PRIORITY + 1) <= entry.order[0]:
            return None
        holders = [one for one in self._stoppable_for(entry) if _ripe_at(one) <= self._now]
        if not holders:
            return None
        with state.what_if():
            # Those that are stopped for others already: what they leave may do.
            for key in state.victims:
                state.vacate(key)
            found = self._victims(entry, lane, reservations.ahead_of(entry.order, queue), holders)
        if found is None:
            self._vain[kind] = entry.order[0]
            return None
        spread, stopped = found
        self._borrowing.clear()
        taken = {one.key for one in stopped}
        for name in {one.queue.name for one in stopped}:
            self._holders[name] = [one for one in self._of(state.queues[name]) if one.key not in taken]
        return Claim(
            placement=placed(state.nodes, spread),
            victims=tuple(_victim(one) for one in sorted(stopped, key=lambda one: one.key)),
            since=self._now,
            replans=self._voided.get(entry.key, 0),
        )

    def _stoppable_for(self, entry: Entry) -> list[Entry]:
        """Jobs that may be stopped for this one, now or once they have run long enough."""
        queue, found = entry.queue, []
        if queue.preemption.within_queue is WithinQueue.LOWER_PRIORITY:
            found = [one for one in self._of(queue) if one.order[0] > entry.order[0]]
        return found + self._borrowers(entry) if queue.is_guaranteed else found

    def _borrowers(self, entry: Entry) -> list[Entry]:
        """Jobs of other queues that hold what is guaranteed to the job's queue, or one above it.

        Where the job's queue and another part, the job's side must stay within its guarantee with the job; and the
        other side is made to give back while it holds more than is guaranteed to it.
        """
        state, queue, wanted = self._state, entry.queue, entry.request.totals
        known = self._borrowing.get((queue.name, wanted))
        if known is not None:
            return known
        found: list[Entry] = []
        left: dict[str, Totals] = {}
        going = [one for key in state.victims if not (one := state.entries.get(key, entry)).pending]
        for other in state.queues.values():
            guaranteed = [one for one in queue.path if one not in other.path and one.guarantee != NOT_NAMED]
            if not guaranteed or not _is_entitled(guaranteed[-1], wanted):
                continue
            levels = [one for one in other.path if one not in queue.path]
            for level in levels:
                if level.name not in left:
                    left[level.name] = _less(level.used, *(one for one in going if level in one.queue.path))
            for one in sorted(self._of(other), key=lambda one: (cost_of(one, self._now), one.key)):
                if all(_borrows(level, left[level.name], wanted) for level in levels):
                    found.append(one)
                    left |= {level.name: _less(left[level.name], one) for level in levels}
        self._borrowing[queue.name, wanted] = found
        return found

    def _of(self, queue: QueueState) -> list[Entry]:
        """Its running jobs that may be stopped, now or later."""
        found = self._holders.get(queue.name)
        if found is None:
            entries = (self._state.entries[key] for key in queue.holding if key not in self._state.victims)
            found = self._holders[queue.name] = [one for one in entries if _may_be_stopped(one)]
        return found

    def _victims(self, entry: Entry, lane: Lane, kept: Kept, holders: list[Entry]) -> tuple[Spread, list[Entry]] | None:
        """Where it starts, and what is stopped for it; None: it does not start, or needs no further victim."""
        state, queue, request = self._state, entry.queue, entry.request
        short = [
            (one, at, used + keep + want - limit)
            for one in queue.path
            for at, (limit, used, keep, want) in enumerate(
                zip(one.limit, one.used, kept.queues.get(one.name, NOTHING), request.totals, strict=True)
            )
            if limit is not None and want and used + keep + want > limit
        ]
        candidates = [
            Candidate(
                one,
                cost_of(one, self._now),
                tuple(one.request.totals[at] if limited in one.queue.path else 0 for limited, at, _ in short),
            )
            for one in holders
        ]
        amounts = [amount for _, _, amount in short]
        mixed = [slot for slot in state.nodes.slots.values() if state.nodes.is_mixed(slot)]
        for closed in ([], mixed):
            found = cheapest(state.nodes, request, lane.avoid, kept.nodes, candidates, amounts, closed)
            if not found:
                return None
            with state.what_if():
                for one in found:
                    state.vacate(one.entry.key)
                fits = queue.has_room(request.totals, kept.queues)
                spread = place(state.nodes, request, lane.avoid, kept.nodes) if fits else None
            if spread is not None:
                return spread, [one.entry for one in found]
        return None


def lost_s(entry: Entry, now: datetime) -> float:
    """Seconds that stopping the job now costs each of its workers: since its last checkpoint, and to start again."""
    status = entry.job.status
    if status.held is not None or status.started_at is None:
        return 0.0 if status.held is not None else _LEAST_RESTART_S
    saved = status.progress.checkpoint if status.progress is not None else None
    since = status.started_at.timestamp()
    if saved is not None and saved.at is not None:
        since = max(since, saved.at)
    began = status.placed_at or status.started_at
    return max(now.timestamp() - since, 0.0) + max((status.started_at - began).total_seconds(), _LEAST_RESTART_S)


def _is_entitled(queue: QueueState, wanted: Totals) -> bool:
    """With so much more it holds no more than is guaranteed to it, of all that the guarantee names."""
    named = [
        used + want <= guarantee
        for guarantee, used, want in zip(queue.guarantee, queue.used, wanted, strict=True)
        if guarantee is not None and want
    ]
    return bool(named) and all(named) and (not wanted.gpus or queue.guarantee[0] is not None)


def _less(have: Totals, *gone: Entry) -> Totals:
    return Totals(*(amount - sum(one.request.totals[at] for one in gone) for at, amount in enumerate(have)))


def _borrows(queue: QueueState, holds: Totals, wanted: Totals) -> bool:
    """It holds more than is guaranteed to it of something that is wanted: GPUs, for a job with GPUs."""
    kinds = (0,) if wanted.gpus else (1, 2)
    return any(wanted[at] and holds[at] > (queue.guarantee[at] or 0) for at in kinds)


def _may_be_stopped(entry: Entry) -> bool:
    """As far as the job itself goes."""
    job = entry.job
    return (
        job.spec.preemptible
        and not entry.pending
        and not entry.assumed
        and job.status.phase in (Phase.STARTING, Phase.RUNNING)
        and job.status.intent is Intent.NONE
        and not job.spec.suspend
        and not job.spec.cancel
        and job.metadata.deletion_timestamp is None
    )


def _ripe_at(entry: Entry) -> datetime:
    """When it has run as long as its queue lets it."""
    least, began_at = entry.queue.preemption.min_runtime, entry.job.status.started_at
    if least is None:
        return EARLIEST
    return LATEST if began_at is None else began_at + timedelta(seconds=parse_duration(least))


def cost_of(entry: Entry, now: datetime) -> float:
    """Of stopping a job. Units: GPU-seconds; a core counts as a hundredth of a GPU."""
    gpus, cpu, _ = entry.request.totals
    return lost_s(entry, now) * (gpus + _CORE * cpu / 1000)


def _victim(entry: Entry) -> Victim:
    key = entry.key
    return Victim(namespace=key.namespace, name=key.name, uid=entry.job.uid, attempt=entry.job.status.attempt)
