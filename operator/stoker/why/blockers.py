"""Everything that keeps one pending job from starting, with its numbers.

Owns the reasons of the queue, of time and of reservations; `capacity_reasons` has those of the nodes. Reads the state,
changes nothing. Called by `reasons` and `explain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

from stoker.life.admission import admission_blockers
from stoker.life.preemption import claim_message
from stoker.sched.budget import cost_of, may_cost_s
from stoker.sched.entries import Entry, QueueState
from stoker.sched.place import capacity, place
from stoker.sched.request import Totals
from stoker.sched.reservations import Kept
from stoker.sched.state import SchedulerState
from stoker.sched.topology import likeliest
from stoker.spec.quantity import format_duration
from stoker.spec.reasons import MOST_JOBS, Blocker, Code

from .capacity_reasons import never_on_nodes, shortages
from .phrases import amount, clock, counted, listed, numbers, part

RESOURCES = ("gpus", "cpu", "memory")


def blockers(state: SchedulerState, entry: Entry, now: datetime) -> tuple[Blocker, ...]:
    """All of them at once, not the first that was met; none if the next decide would start it.

    Invariant: a sentence changes with the facts only, never with the time alone: the first is written into the status.
    """
    if entry.claim is not None:
        victims = tuple(str(victim.key) for victim in entry.claim.victims[:MOST_JOBS])
        return (Blocker(code=Code.PREEMPTING, message=claim_message(entry.job, entry.claim), jobs=victims),)
    found = [*_barring(state, entry), *_time(entry, now)]
    served = entry.runtime.serves(entry.job)  # else the nodes it may use are unknown
    never = [*never_in_queue(entry.queue, entry.request.totals)]
    never += never_on_nodes(state.nodes, entry.request) if served else []
    if never:
        return (*found, *never)
    found += _limit(state, entry)
    found += _nodes(state, entry, now) if served else []
    if not found:
        found += _reserved(state, entry, now)
    if any(one.code in (Code.NO_CAPACITY, Code.BEHIND_RESERVATION) for one in found):
        found += _lent(state, entry)
    found += _given_back(state, entry, now)
    return tuple(found)


def never_in_queue(queue: QueueState, totals: Totals) -> Iterator[Blocker]:
    """What the queue, or one above, could not hold even if nothing else ran; and that it takes no jobs itself."""
    if queue.children:
        names = listed([child.name for child in queue.children], 5)
        message = f"queue '{queue.name}' takes no jobs itself, but only those of the queues below it: {names}"
        yield Blocker(code=Code.NEVER_FITS, message=message, where=queue.name)
        return
    for one in queue.path:
        for resource, limit, wanted in zip(RESOURCES, one.limit, totals, strict=True):
            if limit is not None and wanted > limit:
                yield Blocker(
                    code=Code.NEVER_FITS,
                    message=f"asks for {amount(resource, wanted)} in all; {_titled(one, queue)} may never hold more "
                    f"than {amount(resource, limit)}",
                    **numbers(resource, wanted, limit),
                    where=one.name,
                )


def _barring(state: SchedulerState, entry: Entry) -> Iterator[Blocker]:
    """What its queue and its runtime say, with the names of others that would do."""
    job, runtime = entry.job, entry.runtime
    for found in admission_blockers(job, entry.queue.queue, runtime.name, runtime.runtime):
        there = ""
        if found.code is Code.QUEUE_MISSING:
            known = sorted(other.name for other in state.queues.values() if other.queue is not None)[:5]
            there = f"; there is: {', '.join(known)}" if known else "; there is none yet"
        elif found.code is Code.RUNTIME_MISSING:
            project = job.metadata.namespace
            others = [
                one.name for one in state.runtimes.states.values() if one.runtime is not None and one.takes(project)
            ]
            there = f"; open to it: {listed(sorted(others), 5)}" if others else "; none is open to it yet"
        yield found.model_copy(update={"message": found.message + there}) if there else found


def _time(entry: Entry, now: datetime) -> Iterator[Blocker]:
    until = entry.job.status.not_before
    if until is not None and until > now:
        yield Blocker(code=Code.BACKING_OFF, message=f"backing off until {clock(until)}")


def _limit(state: SchedulerState, entry: Entry) -> Iterator[Blocker]:
    for queue in entry.queue.path:
        wants = zip(RESOURCES, queue.limit, queue.used, entry.request.totals, strict=True)
        for at, (resource, limit, used, wanted) in enumerate(wants):
            if limit is not None and wanted and used + wanted > limit:
                free = max(limit - used, 0)
                yield Blocker(
                    code=Code.QUEUE_LIMIT,
                    message=f"{_titled(queue, entry.queue)} is short {part(resource, wanted - free, wanted)}: its "
                    f"limit is {amount(resource, limit)}, its jobs hold {amount(resource, used)}",
                    **numbers(resource, wanted, free),
                    where=queue.name,
                    jobs=_holders(state, queue, at),
                )


def _holders(state: SchedulerState, queue: QueueState, at: int) -> tuple[str, ...]:
    """Some jobs that hold a resource (its place in `Totals`) of the queue and those below it."""
    holding = (key for one in queue.subtree() for key in one.holding if state.entries[key].request.totals[at])
    return tuple(str(key) for key in islice(holding, MOST_JOBS))


def _titled(queue: QueueState, leaf: QueueState) -> str:
    return f"queue '{queue.name}'" + (f", above '{leaf.name}'," if queue is not leaf else "")


def _lent(state: SchedulerState, entry: Entry) -> Iterator[Blocker]:
    """What the job may claim by a guarantee, and which queues hold more than theirs."""
    for queue in entry.queue.path:
        above = queue.parent
        beside = above.children if above else [one for one in state.queues.values() if one.parent is None]
        for at, (resource, wanted) in enumerate(zip(RESOURCES, entry.request.totals, strict=True)):
            guarantee, used = queue.guarantee[at], queue.used[at]
            if guarantee is None or not wanted or used + wanted > guarantee:
                continue
            over = {one.name: one.used[at] - (one.guarantee[at] or 0) for one in beside if one is not queue}
            borrowers = sorted((name for name, some in over.items() if some > 0), key=lambda name: (-over[name], name))
            holds = f"queue '{queue.name}' holds {part(resource, used, guarantee)} guaranteed to it"
            lent = listed([f"{amount(resource, over[name])} more than theirs in '{name}'" for name in borrowers], 3)
            yield Blocker(
                code=Code.GUARANTEE_LENT,
                message=f"{holds}; others hold {lent}" if lent else f"{holds}; no other queue holds more than its own",
                **numbers(resource, guarantee, used),
                where=queue.name,
            )


def _nodes(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Blocker]:
    avoid, request, table = entry.avoided(now), entry.request, state.nodes
    if place(table, request, avoid) is not None:
        return
    if not avoid:
        yield from shortages(table, request)
        return
    fits_there = place(table, request) is not None
    could = capacity(table, request, avoid)
    only_there = int(likeliest(table, request.near, request.workers, could, could).sum()) < request.workers
    if fits_there or only_there:
        until = min(blame.until for blame in entry.job.status.blamed if blame.until > now)
        names = listed(sorted(avoid), 3)
        nodes = f"node {names}" if len(avoid) == 1 else f"nodes {names}"
        yield Blocker(
            code=Code.NODES_BLAMED,
            message=f"only with {nodes} there {'is' if fits_there else 'could be'} room, but a worker of this job "
            f"failed there: avoided until {clock(until)}",
            where=",".join(sorted(avoid)),
        )
    if not fits_there:
        yield from shortages(table, request, () if only_there else avoid)


def _reserved(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Blocker]:
    lane = entry.lane
    spread = place(state.nodes, entry.request, entry.avoided(now))
    if lane is None or spread is None:
        return
    kept = Kept(state)
    for one in state.plan:
        if one.order[2] not in state.entries or not one.binds(entry.order, entry.queue):
            continue  # of the last drain that came to its end: its job may be gone
        kept.add(one)
        if kept.leave_room(lane, spread) is None:
            holder = one.order[2]
            yield Blocker(
                code=Code.BEHIND_RESERVATION,
                message=f"there is room, but it is kept for job {holder.name} (project {holder.namespace}), "
                f"which is ahead and waits since {state.entries[holder].since:%Y-%m-%d %H:%M} UTC",
                where=str(holder),
                jobs=(str(holder),),
            )
            return


def _given_back(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Blocker]:
    cost = cost_of(state, entry, now)
    if not cost.given_back:
        return
    may_s, gpus = may_cost_s(entry, now), entry.request.totals.gpus
    waited = format_duration((now - entry.waiting_from).total_seconds())
    message = f"nodes are no longer kept for it: that left GPUs idle for {_hours(cost.idle_s)}, and may for "
    message += f"{_hours(may_s)} (reservationBudget {entry.queue.budget:g} of queue '{entry.queue.name}' x "
    message += f"{counted(gpus, 'GPU')} x {waited} of waiting)"
    if may_s:
        again_s = 2 * cost.idle_s / may_s * (now - entry.waiting_from).total_seconds()
        message += f"; they are kept again from {clock(entry.waiting_from + timedelta(seconds=again_s))}"
    yield Blocker(code=Code.RESERVATION_SPENT, message=message, where=entry.queue.name)


def _hours(gpu_s: float) -> str:
    return f"{gpu_s / 3600:.3g} GPU-hours"
