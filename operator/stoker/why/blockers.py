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
from stoker.spec.meta import Key
from stoker.spec.reasons import MOST_JOBS, Code, Reason

from . import sentences
from .capacity_reasons import never_on_nodes, shortages
from .phrases import RESOURCES, in_units, numbers

_LOOKED_AT = 1000


def blockers(state: SchedulerState, entry: Entry, now: datetime) -> tuple[Reason, ...]:
    """All of them at once, not the first that was met; none if the next decide would start it.

    Invariant: a sentence changes with the facts only, never with the time alone: the first is written into the status.
    """
    if entry.claim is not None:
        victims = tuple(str(victim.key) for victim in entry.claim.victims[:MOST_JOBS])
        nodes = tuple(sorted({placed.node for placed in entry.claim.placement}))[:MOST_JOBS]
        message = claim_message(entry.job, entry.claim)
        code = Code.PREEMPTING if victims else Code.RESIZED
        return (Reason(code=code, message=message, queue=entry.queue.name, nodes=nodes, jobs=victims),)
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


def never_in_queue(queue: QueueState, totals: Totals) -> Iterator[Reason]:
    """What the queue, or one above, could not hold even if nothing else ran; and that it takes no jobs itself."""
    if queue.children:
        message = sentences.takes_no_jobs(queue.name, [child.name for child in queue.children])
        yield Reason(code=Code.NEVER_FITS, message=message, queue=queue.name)
        return
    for one in queue.path:
        for resource, limit, wanted in zip(RESOURCES, one.limit, totals, strict=True):
            if limit is not None and wanted > limit:
                message = sentences.above_limit(one.name, queue.name, resource, wanted, limit)
                yield Reason(code=Code.NEVER_FITS, message=message, queue=one.name, **numbers(resource, wanted, limit))


def _barring(state: SchedulerState, entry: Entry) -> Iterator[Reason]:
    """What its queue and its runtime say, with the names of others that would do."""
    job, runtime = entry.job, entry.runtime
    for found in admission_blockers(job, entry.queue.queue, runtime.name, runtime.runtime):
        there = ""
        if found.code is Code.QUEUE_MISSING:
            known = sorted(other.name for other in state.queues.values() if other.queue is not None)[:5]
            there = sentences.known_queues(known)
        elif found.code is Code.RUNTIME_MISSING:
            project = job.metadata.namespace
            others = [
                one.name for one in state.runtimes.states.values() if one.runtime is not None and one.takes(project)
            ]
            there = sentences.open_runtimes(sorted(others))
        yield found.model_copy(update={"message": found.message + there}) if there else found


def _time(entry: Entry, now: datetime) -> Iterator[Reason]:
    until = entry.job.status.not_before
    if until is not None and until > now:
        yield Reason(code=Code.BACKING_OFF, message=sentences.backing_off(until), until=until)


def _limit(state: SchedulerState, entry: Entry) -> Iterator[Reason]:
    for queue in entry.queue.path:
        wants = zip(RESOURCES, queue.limit, queue.used, entry.request.totals, strict=True)
        for at, (resource, limit, used, wanted) in enumerate(wants):
            if limit is not None and wanted and used + wanted > limit:
                message = sentences.at_limit(queue.name, entry.queue.name, resource, wanted, limit, used)
                yield Reason(
                    code=Code.QUEUE_LIMIT,
                    message=message,
                    queue=queue.name,
                    **numbers(resource, wanted, limit - used),
                    jobs=_holders(state, queue, at),
                )


def _holders(state: SchedulerState, queue: QueueState, at: int) -> tuple[str, ...]:
    """Some jobs that hold a resource (its place in `Totals`) of the queue and those below it. However many jobs there
    are, only the first are looked at."""
    first = islice(_holding(queue, at), _LOOKED_AT)
    return tuple(islice((str(key) for key in first if state.entries[key].request.totals[at]), MOST_JOBS))


def _holding(queue: QueueState, at: int) -> Iterator[Key]:
    if queue.used[at]:
        yield from queue.holding if at else queue.holding_gpus
        for child in queue.children:
            yield from _holding(child, at)


def _lent(state: SchedulerState, entry: Entry) -> Iterator[Reason]:
    """What the job may claim by a guarantee, and which queues hold more than theirs."""
    for queue in entry.queue.path:
        above = queue.parent
        beside = above.children if above else [one for one in state.queues.values() if one.parent is None]
        for at, (resource, wanted) in enumerate(zip(RESOURCES, entry.request.totals, strict=True)):
            guarantee, used = queue.guarantee[at], queue.used[at]
            if guarantee is None or not wanted or used + wanted > guarantee:
                continue
            over = {one.name: one.used[at] - (one.guarantee[at] or 0) for one in beside if one is not queue}
            most = sorted(((name, some) for name, some in over.items() if some > 0), key=lambda item: (-item[1], item))
            yield Reason(
                code=Code.GUARANTEE_LENT,
                message=sentences.guaranteed(queue.name, resource, used, guarantee, dict(most)),
                queue=queue.name,
                **numbers(resource, guarantee, used),
                borrowed={name: in_units(resource, some) for name, some in most[:MOST_JOBS]},
            )


def _nodes(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Reason]:
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
        nodes = tuple(sorted(avoid))
        message = sentences.blamed(nodes, fits_there, until)
        yield Reason(code=Code.NODES_BLAMED, message=message, nodes=nodes[:MOST_JOBS], until=until)
    if not fits_there:
        yield from shortages(table, request, () if only_there else avoid)


def _reserved(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Reason]:
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
            holder = state.entries[one.order[2]]
            yield Reason(
                code=Code.BEHIND_RESERVATION,
                message=sentences.kept_for(holder.key.name, holder.key.namespace, holder.since),
                queue=holder.queue.name,
                jobs=(str(holder.key),),
            )
            return


def _given_back(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Reason]:
    cost, queue = cost_of(state, entry, now), entry.queue
    if not cost.given_back:
        return
    may_s, gpus = may_cost_s(entry, now), entry.request.totals.gpus
    waited_s, again_at = (now - entry.waiting_from).total_seconds(), None
    message = sentences.reservation_spent(queue.name, queue.budget, cost.idle_s, may_s, gpus, waited_s)
    if may_s:
        again_at = entry.waiting_from + timedelta(seconds=2 * cost.idle_s / may_s * waited_s)
        message += sentences.kept_again(again_at)
    yield Reason(code=Code.RESERVATION_SPENT, message=message, queue=queue.name, until=again_at)
