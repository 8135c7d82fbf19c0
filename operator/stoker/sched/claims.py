"""Claims: room that is kept for a job while the jobs stopped for it save and end.

Owns when a claim has become a start, and when it is given up. A claim is counted like a placement (`state`), so what is
free on its nodes is negative until the victims' pods are gone, and no other job is placed there. All that decides
follows from objects: the claim in its job's status, the victims' attempts, the pods. Called by `decide`.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import chain

from stoker.spec.job import Claim, Placed, Victim
from stoker.spec.meta import Key

from . import gpu_groups
from .claim_table import PATIENCE, at_the_earliest
from .columns import Holder
from .entries import LATEST, Entry, Order
from .leaving import Leaving
from .nodes import NodeTable
from .place import Keep, place, placed
from .request import NOTHING, Request, Totals
from .reservations import Kept
from .state import SchedulerState


def ready(state: SchedulerState, now: datetime) -> Iterator[tuple[Entry, Request, tuple[Placed, ...]]]:
    """The claims that have become starts, as what and where: their room is there, or other room."""
    _look_at_moved(state)
    for entry in _touched(state, [*_hopeful(state), *_below(state, state.changes.freed_queues)]):
        claim = entry.claim
        if claim is None:
            continue
        # Once its own victims have gone, other claims, which wait for theirs, don't count, nor does what is kept.
        kept = None if entry.key in state.claims.ready else _ahead(state, entry)
        request = entry.held
        if _has_room(entry, state, kept) and _fits(state, entry, request, kept):
            yield entry, request, claim.placement
    if state.changes.freed_nodes:
        yield from _elsewhere(state, now)


def _look_at_moved(state: SchedulerState) -> None:
    claims, journal = state.claims, state.journal
    for key in list(claims.moved):
        journal.drop(claims.moved, key)
        claim = state.entries[key].claim
        if claim is None:
            continue
        if any(_is_held(state, victim) for victim in claim.victims):
            journal.drop(claims.ready, key)
        else:
            journal.put(claims.ready, key, None)
        if claims.given_up.at(key) != at_the_earliest(claim):
            claims.given_up.set(key, given_up_at(state, claim))


def _hopeful(state: SchedulerState) -> Iterator[Key]:
    """Claims on freed nodes that may have room there."""
    table, claims, freed = state.nodes, state.claims, state.changes.freed_nodes
    for key in claims.ready:
        if not freed.isdisjoint(state.entries[key].workers_on):
            yield key
    requests = {request for kinds in claims.of.values() for request in kinds}
    content: dict[tuple[bool, bool, bool], set[Request]] = {}
    """What is short → the claimed requests that want none of it."""
    for name in freed if requests else ():
        slot = table.slots.get(name)
        if slot is None or name not in claims.on:
            continue
        short = bool(table.free_gpu[slot] < 0), bool(table.free_cpu[slot] < 0), bool(table.free_mem[slot] < 0)
        if short not in content:
            content[short] = {request for request in requests if not _wants(request, short)}
        for request, there in claims.on[name].items():
            if request in content[short]:
                yield from there


def _wants(request: Request, short: tuple[bool, bool, bool]) -> bool:
    """Some of what is short of even what the claims and jobs there hold."""
    return bool((request.gpus and short[0]) or (request.cpu and short[1]) or (request.memory and short[2]))


def _elsewhere(state: SchedulerState, now: datetime) -> Iterator[tuple[Entry, Request, tuple[Placed, ...]]]:
    """Claims whose jobs fit beside all claims and what is kept for those ahead."""
    vain: set[Request] = set()
    turns = [
        (orders.first(), name, request) for name, kinds in state.claims.of.items() for request, orders in kinds.items()
    ]
    heapify(turns)
    while turns:
        order, name, request = heappop(turns)
        entry = state.entries[order[2]]
        if request in vain or not _has_room(entry, state, kept := _ahead(state, entry)):
            continue
        avoid = entry.avoided(now)
        spread = place(state.nodes, request, avoid, kept.nodes)
        following = state.claims.of[name][request].next((*order, 0))
        if spread is not None:
            yield entry, request, placed(state.nodes, spread)
        elif not avoid:
            vain.add(request)
        if following is not None:
            heappush(turns, (following, name, request))


def _ahead(state: SchedulerState, entry: Entry) -> Kept:
    """What is kept for jobs ahead of it."""
    plan = (one for one in state.plan if one.order[2] in state.entries)
    return Kept(state, (one for one in plan if one.binds(entry.order, entry.queue)))


def _has_room(entry: Entry, state: SchedulerState, kept: Kept | None) -> bool:
    """Within its queue's limits beside what is kept, were it not for its own claim; None: for all claims."""
    if not entry.queue.limited(entry.gpu_type):
        return True
    spared: dict[str, Totals] = {} if kept is None else dict(kept.queues)
    top = entry.queue.path[-1]
    others = (
        (account, request.totals, len(orders))
        for name, kinds in (state.claims.of.items() if kept is None else ())
        if state.queues[name].path[-1] is top
        for request, orders in kinds.items()
        for account in state.queues[name].accounts(request.filter.type)
    )
    own = ((account, entry.request.totals, 1) for account in entry.accounts)
    for account, totals, count in others if kept is None else own:
        spared[account.name] = spared.get(account.name, NOTHING).plus(totals, -count)
    return entry.queue.has_room(entry.held, spared)


def end_void(state: SchedulerState) -> dict[Key, int]:
    """End the claims whose room others have taken, or jobs that are no longer stopped. Returns: job → how often that
    has happened to it in a row."""
    found: dict[Key, int] = {}
    while True:
        some = len(found)
        nodes, queues = state.changes.filled_nodes, state.changes.filled_queues
        keys = [key for name in nodes for there in state.claims.on.get(name, {}).values() for key in there]
        left: Mapping[str, Totals] | None = None
        for entry in _touched(state, [*keys, *_below(state, queues)]):
            claim = entry.claim
            if claim is None:
                continue
            is_possible = _is_possible(state, entry)
            if is_possible and entry.queue.limited(entry.gpu_type):
                left = Leaving(state).queues if left is None else left
                is_possible = _is_within_limits(entry, left)
            if not is_possible:
                found[entry.key], left = claim.replans + 1, None
                state.end_claim(entry)
        if len(found) == some:  # else some victims stay, on which others may have counted
            return found


def end_late(state: SchedulerState, now: datetime) -> int:
    """End the claims whose victims don't end. Returns: how many."""
    ended = 0
    for key in state.claims.given_up.due(now):
        claim = state.entries[key].claim
        at = now if claim is None else given_up_at(state, claim)
        if at <= now:
            state.end_claim(state.entries[key])
            ended += 1
        else:
            state.claims.given_up.set(key, at)
    return ended


def given_up_at(state: SchedulerState, claim: Claim) -> datetime:
    last, grace_s = at_the_earliest(claim), 0.0
    for victim in claim.victims:
        entry = state.entries.get(victim.key)
        if entry is None or entry.job.uid != victim.uid:
            continue
        ended = next((one.ended_at for one in entry.job.status.attempts if one.number == victim.attempt), None)
        if ended is None:
            grace_s = max(grace_s, entry.job.spec.checkpoint.grace_s)
        else:
            last = max(last, ended + PATIENCE)
    return last + timedelta(seconds=grace_s)


def _touched(state: SchedulerState, claims: Iterable[Key]) -> list[Entry]:
    """In the order in which they were decided."""
    return sorted((state.entries[key] for key in set(claims)), key=_age)


def _below(state: SchedulerState, queues: Collection[str]) -> Iterator[Key]:
    """Claims of these queues and of those below: a limit holds for both."""
    for name, kinds in state.claims.of.items() if queues else ():
        if any(one.name in queues for one in state.queues[name].path):
            yield from (order[2] for orders in kinds.values() for order in orders)


def _age(entry: Entry) -> tuple[datetime, Order]:
    return (LATEST if entry.claim is None else entry.claim.since), entry.order


def _is_held(state: SchedulerState, victim: Victim) -> bool:
    """It still has its place."""
    entry = state.entries.get(victim.key)
    if entry is None or entry.pending or not entry.workers_on:  # it may have ended for good
        return False
    return entry.attempt == victim.attempt and entry.job.uid == victim.uid


def _is_within_limits(entry: Entry, left: Mapping[str, Totals]) -> bool:
    """Its queue will have room for it once all victims have gone. `left`: account → what they will hold no more."""
    own = {one.name: left.get(one.name, NOTHING).plus(entry.request.totals, -1) for one in entry.accounts}
    return entry.queue.has_room(entry.held, {**left, **own})


def _is_possible(state: SchedulerState, entry: Entry) -> bool:
    """Its room will be free once all victims there, whatever claim they are stopped for, and the pods on their way out
    have gone."""
    table = state.nodes
    for name, workers in entry.workers_on.items():
        held, others = table.claims[name], table.others.get(name, {})
        jobs = [key for key in held if key == entry.key or key in state.victims]
        pods = [one for one, taken in others.items() if taken.terminating or one.ours]
        kept = _kept(state, name, jobs)
        leaving = [*(held[key] for key in jobs), *(others[one].claim for one in pods)]
        leaving += [gpu_groups.Claim(-count, request) for count, request in kept]
        if not _would_take(table, name, entry.held, workers, leaving, chain(kept, _others(table, name, jobs, pods))):
            return False
    return True


def _kept(state: SchedulerState, name: str, gone: Iterable[Key]) -> list[gpu_groups.Claim]:
    """What those of them that go on with fewer workers keep on the node."""
    found = []
    for key in gone:
        victim, held = state.claims.keeps.get(key), state.nodes.claims[name][key]
        workers = 0 if victim is None else sum(placed.node == name for placed in victim.keeps)
        if workers:
            found.append(gpu_groups.Claim(min(workers, held.workers), held.request))
    return found


def _fits(state: SchedulerState, entry: Entry, request: Request, kept: Kept | None) -> bool:
    """Its room is free on each of its nodes beside what is kept, were it not for its own claim; None: for all those
    there."""
    table = state.nodes
    for name, workers in entry.workers_on.items():
        aside, jobs = {request: {entry.key: workers}}, {entry.key: None}
        if kept is None:
            aside, jobs = state.claims.on[name], state.claims.jobs
        leaving = [gpu_groups.Claim(sum(workers_of.values()), of) for of, workers_of in aside.items()]
        keep = None if kept is None else kept.nodes
        if not _would_take(table, name, request, workers, leaving, _others(table, name, jobs), keep):
            return False
    return True


def _others(
    table: NodeTable, name: str, jobs: Container[Key], pods: Container[Holder] = ()
) -> Iterator[gpu_groups.Claim]:
    """What others than these hold on the node."""
    yield from (claim for key, claim in table.claims.get(name, {}).items() if key not in jobs)
    yield from (taken.claim for one, taken in table.others.get(name, {}).items() if one not in pods)


def _would_take(
    table: NodeTable,
    name: str,
    request: Request,
    workers: int,
    leaving: Iterable[gpu_groups.Claim],
    staying: Iterable[gpu_groups.Claim],
    keep: Keep | None = None,
) -> bool:
    """So many workers are let onto the node and fit there once it has got back what is `leaving`, beside what is
    `staying` and kept."""
    slot = table.slots.get(name)
    if slot is None or not table.eligible[request.nodes].open[slot]:
        return False
    kept = (0, 0, 0) if keep is None else keep.of(slot)
    gpus, cpu, memory = (column.item(slot) for column in (table.free_gpu, table.free_cpu, table.free_mem))
    gpus, cpu, memory = gpus - kept[0], cpu - kept[1], memory - kept[2]
    columns = {resource: table.extended[resource].free for resource, _ in request.extended}
    if keep is not None:
        columns = {resource: keep.leave(resource, free) for resource, free in columns.items()}
    extended = {resource: free.item(slot) for resource, free in columns.items()}
    for count, of in leaving:
        gpus, cpu, memory = gpus + count * of.gpus, cpu + count * of.cpu, memory + count * of.memory
        for resource, each in of.extended if extended else ():
            if resource in extended:
                extended[resource] += count * each
    wanted = request.times(workers)
    if (wanted.gpus and gpus < wanted.gpus) or (wanted.cpu and cpu < wanted.cpu):
        return False
    if wanted.memory and memory < wanted.memory:
        return False
    differ = not table.gpus.is_any(request.filter)
    if wanted.gpus and differ and table.gpus.room_beside(slot, staying, request.filter) - kept[0] < wanted.gpus:
        return False
    return all(extended[resource] >= workers * count for resource, count in request.extended)
