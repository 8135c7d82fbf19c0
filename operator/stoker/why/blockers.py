"""Everything that keeps one pending job from starting, with its numbers.

Owns the reasons of the queue, of time and of reservations; `capacity_reasons` has those of the nodes. Reads the state,
changes nothing. Called by `reasons` and `explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

import numpy as np

from stoker.life.admission import admission_blockers
from stoker.life.preemption import claim_message
from stoker.sched.budget import cost_of, may_cost_s
from stoker.sched.entries import Entry
from stoker.sched.gpu_choice import choices
from stoker.sched.place import capacity, fitting, free_room, place
from stoker.sched.queue_state import Account, QueueState
from stoker.sched.request import Request
from stoker.sched.reservations import MAX_RESERVATIONS, Kept, reserves, starts_soonest, too_dear
from stoker.sched.state import SchedulerState
from stoker.sched.stoppable import NEVER, Stoppable
from stoker.sched.topology import likeliest
from stoker.spec.meta import Key
from stoker.spec.outcome import Category
from stoker.spec.quantity import parse_duration
from stoker.spec.queue import WithinQueue
from stoker.spec.reasons import MOST_JOBS, Code, Reason

from . import sentences
from .capacity_reasons import never_on_nodes, shortages
from .phrases import OF_TYPE, in_units, numbers, resources

_LOOKED_AT = 1000


def blockers(
    state: SchedulerState, entry: Entry, now: datetime, stoppable: Callable[[], Stoppable]
) -> tuple[Reason, ...]:
    """All of them at once, not the first that was met; none if the next decide would start it. `stoppable`: as of now;
    made only where a guarantee is lent.

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
    requests = choices(state, entry.queue, entry.request)
    never = {
        one: [*never_in_queue(entry.queue, one), *(never_on_nodes(state.nodes, one) if served else ())]
        for one in requests
    }
    unsized = () if found else tuple(_unsized(entry))
    if all(never.values()):
        return (*found, *_each_once(never.values()), *unsized)
    short = {
        one: [*_limit(state, entry, one), *(_nodes(state, entry, one, now) if served else ())]
        for one in requests
        if not never[one]
    }
    if all(short.values()):
        found += _each_once(short.values())
    if not found:
        found += _reserved(state, entry, [one for one, reasons in short.items() if not reasons], now)
    if any(one.code in (Code.NO_CAPACITY, Code.BEHIND_RESERVATION) for one in found):
        found += _each_once([_lent(state, entry, short, now, stoppable)])
    if any(one.code in (Code.NO_CAPACITY, Code.BEHIND_RESERVATION, Code.QUEUE_LIMIT) for one in found):
        found += _run_too_short(state, entry, now, stoppable)
    if any(one.code is Code.NO_CAPACITY for one in found):
        found += _not_kept(state, entry, now)
    found += _given_back(state, entry, now)
    return (*found, *unsized)


def _each_once(found: Iterable[Iterable[Reason]]) -> Iterator[Reason]:
    """Of GPUs of each type that were tried."""
    yield from {(one.code, one.message): one for reasons in found for one in reasons}.values()


def never_in_queue(queue: QueueState, request: Request) -> Iterator[Reason]:
    """What the queue, or one above, could not hold even if nothing else ran; and that it takes no jobs itself."""
    if queue.children:
        message = sentences.takes_no_jobs(queue.name, [child.name for child in queue.children])
        yield Reason(code=Code.NEVER_FITS, message=message, queue=queue.name)
        return
    for one in queue.path:
        for account in one.own(request.filter.type):
            for resource, limit, wanted in zip(resources(account), account.limit, request.totals, strict=False):
                if limit is not None and wanted > limit:
                    message = sentences.above_limit(one.name, queue.name, resource, wanted, limit)
                    lacks = numbers(resource, wanted, limit)
                    yield Reason(code=Code.NEVER_FITS, message=message, queue=one.name, **lacks)


def _barring(state: SchedulerState, entry: Entry) -> Iterator[Reason]:
    """What its queue and its runtime say, with the names of others that would do."""
    job, runtime = entry.job, entry.runtime
    for found in admission_blockers(job, entry.queue.queue, runtime.name, runtime.runtime):
        there = ""
        if found.code is Code.QUEUE_MISSING:
            there = sentences.open_to_it(sorted(one.name for one in state.queues.values() if one.allows(job)))
        elif found.code is Code.RUNTIME_MISSING:
            project = job.metadata.namespace
            others = [
                one.name for one in state.runtimes.states.values() if one.runtime is not None and one.takes(project)
            ]
            there = sentences.open_to_it(sorted(others))
        yield found.model_copy(update={"message": found.message + there}) if there else found


def _unsized(entry: Entry) -> Iterator[Reason]:
    if not entry.job.is_sized:
        yield Reason(code=Code.SIZE_UNKNOWN, message=sentences.unsized(entry.request.gpus))


def _time(entry: Entry, now: datetime) -> Iterator[Reason]:
    until = entry.job.status.not_before
    if until is not None and until > now:
        last = entry.job.status.attempts[-1] if entry.job.status.attempts else None
        if last is not None and last.category is Category.SECRET_MISSING:
            message = sentences.looked_for_again(last.message, until)
            yield Reason(code=Code.SECRET_MISSING, message=message, until=until)
            return
        yield Reason(code=Code.BACKING_OFF, message=sentences.backing_off(until), until=until)


def _limit(state: SchedulerState, entry: Entry, request: Request) -> Iterator[Reason]:
    for queue in entry.queue.path:
        for account in queue.own(request.filter.type):
            wants = zip(resources(account), account.limit, account.used, request.totals, strict=False)
            for at, (resource, limit, used, wanted) in enumerate(wants):
                if limit is not None and wanted and used + wanted > limit:
                    ending = sum(held[at] for one, held in state.deleted_jobs.charged() if one is account)
                    message = sentences.at_limit(queue.name, entry.queue.name, resource, wanted, limit, used, ending)
                    yield Reason(
                        code=Code.QUEUE_LIMIT,
                        message=message,
                        queue=queue.name,
                        **numbers(resource, wanted, limit - used),
                        jobs=_holders(state, queue, account, at),
                    )


def _holders(state: SchedulerState, queue: QueueState, account: Account, at: int) -> tuple[str, ...]:
    """Some jobs that hold a resource (its place in `Totals`) of the queue and those below it. However many jobs there
    are, only the first are looked at."""
    entries = (state.entries[key] for key in islice(_holding(queue, at), _LOOKED_AT))
    found = (str(one.key) for one in entries if one.request.totals[at] and account in one.accounts)
    return tuple(islice(found, MOST_JOBS))


def _holding(queue: QueueState, at: int) -> Iterator[Key]:
    if queue.used[at]:
        yield from queue.holding if at else queue.holding_gpus
        for child in queue.children:
            yield from _holding(child, at)


def _lent(
    state: SchedulerState,
    entry: Entry,
    requests: Iterable[Request],
    now: datetime,
    stoppable: Callable[[], Stoppable],
) -> Iterator[Reason]:
    """What the job may claim by a guarantee, which queues hold more than theirs, and what of that may be stopped."""
    if not entry.queue.is_guaranteed:
        return
    of_running, held = stoppable(), state.running.totals
    for owed in (one for request in requests for one in of_running.owed(entry.queue, request)):
        queue, account, above = owed.owner, owed.account, owed.owner.parent
        beside = above.children if above else [one for one in state.queues.values() if one.parent is None]
        for at in owed.kinds:
            resource, guarantee, used = resources(account)[at], account.guarantee[at] or 0, account.used[at]
            over = {one.name: _borrowed(one, resource, at) for one in beside if one is not queue}
            most = sorted(((name, much) for name, much in over.items() if much > 0), key=lambda item: (-item[1], item))
            first_s = float(np.min(owed.ripe_s, initial=NEVER))
            first_at = datetime.fromtimestamp(first_s, UTC) if now.timestamp() < first_s < NEVER else None
            may_go = owed.rows[owed.ripe_s <= now.timestamp()]
            some = int(held[at][may_go].sum()) if len(may_go) else None
            yield Reason(
                code=Code.GUARANTEE_LENT,
                message=sentences.guaranteed(queue.name, resource, used, guarantee, dict(most), some, first_at),
                queue=queue.name,
                **numbers(resource, guarantee, used),
                borrowed={name: in_units(resource, much) for name, much in most[:MOST_JOBS]},
            )


def _run_too_short(
    state: SchedulerState, entry: Entry, now: datetime, stoppable: Callable[[], Stoppable]
) -> Iterator[Reason]:
    """The jobs of its queue that may be stopped for it later."""
    preemption, jobs = entry.queue.preemption, state.running.jobs
    if preemption.within_queue is WithinQueue.NEVER or preemption.min_runtime is None:
        return
    rows, ripe_s = stoppable().of_lower_priority(entry)
    order = np.argsort(ripe_s, kind="stable")
    later = [(job.key, ripe_s[at]) for at in order if ripe_s[at] > now.timestamp() and (job := jobs[rows[at]])]
    if later:
        keys, (first_s, *_) = zip(*later, strict=True)
        first_at = datetime.fromtimestamp(first_s, UTC) if first_s < NEVER else None
        least_s, name = parse_duration(preemption.min_runtime), entry.queue.name
        message = sentences.run_too_short(name, [key.name for key in keys], least_s, first_at)
        some = tuple(map(str, keys[:MOST_JOBS]))
        yield Reason(code=Code.MIN_RUNTIME, message=message, queue=name, jobs=some, until=first_at)


def _borrowed(queue: QueueState, resource: str, at: int) -> int:
    of_type = resource.startswith(OF_TYPE)
    account = queue.typed.get(resource.removeprefix(OF_TYPE)) if of_type else queue
    return 0 if account is None else queue.borrowed(account, at)


def _nodes(state: SchedulerState, entry: Entry, request: Request, now: datetime) -> Iterator[Reason]:
    avoid, table = entry.avoided(now), state.nodes
    if place(table, request, avoid) is not None:
        return

    def holds(avoid: Collection[str]) -> bool:
        could = capacity(table, request, avoid)
        return int(likeliest(table, request.near, request.workers, could, could).sum()) >= request.workers

    def fits(avoid: Collection[str]) -> bool:
        return place(table, request, avoid) is not None

    fits_there = bool(avoid) and fits(())
    only_there = bool(avoid) and not holds(avoid) and holds(())
    if fits_there or only_there:
        is_enough, there = (fits, free_room(table, request, None)) if fits_there else (holds, None)
        until = min(
            one.until for one in entry.job.status.blamed if one.until > now and is_enough(entry.avoided(one.until))
        )
        workers = capacity(table, request) if there is None else fitting(table, request, (), there)
        nodes = tuple(sorted(name for name in avoid if name in table.slots and workers[table.slots[name]]))
        message = sentences.blamed(nodes, fits_there, until)
        yield Reason(code=Code.NODES_BLAMED, message=message, nodes=nodes[:MOST_JOBS], until=until)
    if not fits_there:
        yield from shortages(state, request, () if only_there else avoid)


def _reserved(state: SchedulerState, entry: Entry, requests: Sequence[Request], now: datetime) -> Iterator[Reason]:
    lane = entry.lane
    fits = [(one, spread) for one in requests if (spread := place(state.nodes, one, entry.avoided(now))) is not None]
    if lane is None or not fits:
        return
    kept = Kept(state)
    for one in state.plan:
        if one.order[2] not in state.entries or not one.binds(entry.order, entry.queue):
            continue  # of the last drain that came to its end: its job may be gone
        kept.add(one)
        if all(kept.leave_room(lane, *fit) is None for fit in fits):
            holder = state.entries[one.order[2]]
            yield Reason(
                code=Code.BEHIND_RESERVATION,
                message=sentences.kept_for(holder.key.name, holder.key.namespace, holder.since),
                queue=holder.queue.name,
                jobs=(str(holder.key),),
            )
            return


def _not_kept(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Reason]:
    """It has waited long, and keeping nodes for it until it could start would cost more than it may."""
    lane, queue = entry.lane, entry.queue
    kept = {one.order[2]: one for one in state.plan if one.order[2] in state.entries}
    gangs = sum(bool(one.spread) for one in kept.values())
    if lane is None or lane.jobs.first() != entry.order or entry.key in kept or gangs >= MAX_RESERVATIONS:
        return
    requests = [one for one in choices(state, queue, entry.request) if queue.has_room(one)]
    if not requests or not reserves(state, entry, now, state.reserve_after_s):
        return
    cost = cost_of(state, entry, now)
    ahead = Kept(state, (one for one in kept.values() if one.binds(entry.order, queue))).nodes
    soonest = starts_soonest(state, lane, requests, cost, ahead, now)
    found = too_dear(entry, cost, soonest[1], now) if soonest is not None else None
    if found is not None:
        message = sentences.reservation_too_dear(queue.name, queue.budget, *found, entry.request.totals.gpus)
        yield Reason(code=Code.RESERVATION_SPENT, message=message, queue=queue.name)


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
