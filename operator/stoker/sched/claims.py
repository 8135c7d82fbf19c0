"""Claims: room that is kept for a job while the jobs stopped for it save and end.

Owns when a claim has become a start, and when it is given up. A claim is counted like a placement (`state`), so what is
free on its nodes is negative until the victims' pods are gone, and no other job is placed there. All that decides
follows from objects: the claim in its job's status, the victims' attempts, the pods. Called by `decide`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush

from stoker.spec.job import Claim, Placed, Victim
from stoker.spec.meta import Key
from stoker.spec.quantity import parse_duration
from stoker.spec.queue import NOT_NAMED

from . import gpu_groups
from .claim_table import PATIENCE, at_the_earliest
from .columns import Holder
from .entries import LATEST, Entry, Order
from .nodes import NodeTable
from .place import place, placed
from .request import NOTHING, Request, Totals
from .reservations import Kept
from .state import SchedulerState


def ready(state: SchedulerState, now: datetime) -> Iterator[tuple[Entry, tuple[Placed, ...]]]:
    """The claims that have become starts, and where: their room is there, or other room."""
    _look_at_moved(state)
    gone = state.claims.ready
    for entry in _touched(state, _hopeful(state), state.changes.freed_queues):
        claim = entry.claim
        if claim is None:
            continue
        # Other claims wait for victims of their own: once its own have gone, they don't count.
        aside = state.claims.jobs if entry.key in gone else {entry.key: None}
        if _has_room(entry, state, all_aside=entry.key in gone) and _fits(state, entry, aside):
            yield entry, claim.placement
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
        if slot is None or name not in table.claims:
            continue
        short = bool(table.free_gpu[slot] < 0), bool(table.free_cpu[slot] < 0), bool(table.free_mem[slot] < 0)
        if short not in content:
            content[short] = {request for request in requests if not _wants(request, short)}
        for key, (_, request) in table.claims[name].items() if content[short] else ():
            if key in claims.jobs and request in content[short]:
                yield key


def _wants(request: Request, short: tuple[bool, bool, bool]) -> bool:
    """Some of what is short of even what the claims and jobs there hold."""
    return bool((request.gpus and short[0]) or (request.cpu and short[1]) or (request.memory and short[2]))


def _elsewhere(state: SchedulerState, now: datetime) -> Iterator[tuple[Entry, tuple[Placed, ...]]]:
    """Claims whose jobs fit beside all claims and what is kept for those ahead."""
    vain: set[Request] = set()
    turns = [
        (orders.first(), name, request) for name, kinds in state.claims.of.items() for request, orders in kinds.items()
    ]
    heapify(turns)
    while turns:
        order, name, request = heappop(turns)
        entry = state.entries[order[2]]
        if request in vain or not _has_room(entry, state, all_aside=False):
            continue
        ahead = (one for one in state.plan if one.order[2] in state.entries and one.binds(order, entry.queue))
        avoid = entry.avoided(now)
        spread = place(state.nodes, request, avoid, Kept(state, ahead).nodes)
        following = state.claims.of[name][request].next((*order, 0))
        if spread is not None:
            yield entry, placed(state.nodes, spread)
        elif not avoid:
            vain.add(request)
        if following is not None:
            heappush(turns, (following, name, request))


def _has_room(entry: Entry, state: SchedulerState, *, all_aside: bool) -> bool:
    """Within its queue's limits, were it not for its own claim, or for all of them."""
    if all(one.limit == NOT_NAMED for one in entry.accounts):
        return True
    spared: dict[str, Totals] = {}
    others = (
        (account, request.totals, len(orders))
        for name, kinds in (state.claims.of.items() if all_aside else ())
        for request, orders in kinds.items()
        for account in state.queues[name].accounts(request.filter.type)
    )
    own = ((account, entry.request.totals, 1) for account in entry.accounts)
    for account, totals, count in others if all_aside else own:
        spared[account.name] = spared.get(account.name, NOTHING).plus(totals, -count)
    return entry.queue.has_room(entry.held, spared)


def end_void(state: SchedulerState) -> dict[Key, int]:
    """End the claims whose room others have taken, or jobs that are no longer stopped. Returns: job → how often that
    has happened to it in a row."""
    found: dict[Key, int] = {}
    claims, seen = state.nodes.claims, set[str]()
    while filled := state.changes.filled_nodes - seen:  # the end of one lets its victims stay, on whatever node
        seen |= filled
        keys = [key for name in filled for key in claims.get(name, ()) if key in state.claims.jobs]
        for entry in _touched(state, keys, ()):
            claim = entry.claim
            if claim is not None and not _is_possible(state, entry):
                found[entry.key] = claim.replans + 1
                state.end_claim(entry)
    return found


def end_late(state: SchedulerState, now: datetime) -> None:
    """End the claims whose victims don't end."""
    for key in state.claims.given_up.due(now):
        claim = state.entries[key].claim
        at = now if claim is None else given_up_at(state, claim)
        if at <= now:
            state.end_claim(state.entries[key])
        else:
            state.claims.given_up.set(key, at)


def given_up_at(state: SchedulerState, claim: Claim) -> datetime:
    last, grace_s = at_the_earliest(claim), 0.0
    for victim in claim.victims:
        entry = state.entries.get(victim.key)
        if entry is None or entry.job.uid != victim.uid:
            continue
        ended = next((one.ended_at for one in entry.job.status.attempts if one.number == victim.attempt), None)
        if ended is None:
            grace_s = max(grace_s, parse_duration(entry.job.spec.checkpoint.grace))
        else:
            last = max(last, ended + PATIENCE)
    return last + timedelta(seconds=grace_s)


def _touched(state: SchedulerState, claims: Iterable[Key], queues: Iterable[str]) -> list[Entry]:
    """Those claims, and those of the queues, in the order in which they were decided."""
    if not state.claims.jobs:
        return []
    keys = set(claims)
    keys |= {order[2] for name in queues for orders in state.claims.of.get(name, {}).values() for order in orders}
    return sorted((state.entries[key] for key in keys), key=_age)


def _age(entry: Entry) -> tuple[datetime, Order]:
    return (LATEST if entry.claim is None else entry.claim.since), entry.order


def _is_held(state: SchedulerState, victim: Victim) -> bool:
    """It still has its place."""
    entry = state.entries.get(victim.key)
    if entry is None or entry.pending:
        return False
    return entry.attempt == victim.attempt and entry.job.uid == victim.uid


def _is_possible(state: SchedulerState, entry: Entry) -> bool:
    """Its room will be free once all victims there, whatever claim they are stopped for, and the pods on their way out
    have gone."""
    table, victims = state.nodes, state.victims
    for name, workers in entry.workers_on.items():
        held, others = table.claims[name], table.others.get(name, {})
        gone = [key for key in held if key != entry.key and key in victims]
        pods = [one for one, taken in others.items() if taken.terminating or one.ours]
        if not _would_take(table, name, entry.held, workers, [entry.key, *gone], pods, _kept(state, name, gone)):
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


def _fits(state: SchedulerState, entry: Entry, aside: Collection[Key]) -> bool:
    """Its room is free on each of its nodes, were it not for those, it among them."""
    table = state.nodes
    for name, workers in entry.workers_on.items():
        if not _would_take(table, name, entry.held, workers, [key for key in table.claims[name] if key in aside]):
            return False
    return True


def _would_take(
    table: NodeTable,
    name: str,
    request: Request,
    workers: int,
    jobs: Collection[Key],
    pods: Collection[Holder] = (),
    kept: Sequence[gpu_groups.Claim] = (),
) -> bool:
    """So many workers are let onto the node and fit there once these jobs and pods have left it, but for what is
    `kept` of the jobs'."""
    slot = table.slots.get(name)
    if slot is None or not table.doors[request.nodes].open[slot]:
        return False
    held, others = table.claims.get(name, {}), table.others.get(name, {})
    gpus, cpu, memory = int(table.free_gpu[slot]), int(table.free_cpu[slot]), int(table.free_mem[slot])
    extended = {resource: int(table.extended[resource].free[slot]) for resource, _ in request.extended}
    changes = [held[key] for key in jobs]
    if pods:
        changes += [others[one].claim for one in pods]
    if kept:
        changes += [gpu_groups.Claim(-one.workers, one.request) for one in kept]
    for count, of in changes:
        _, gpus_each, cpu_each, memory_each, _, _, extended_each, *_ = of
        gpus, cpu, memory = gpus + count * gpus_each, cpu + count * cpu_each, memory + count * memory_each
        for resource, each in extended_each:
            if resource in extended:
                extended[resource] += count * each
    if not table.gpus.is_any(request.filter):
        stay: list[gpu_groups.Claim] = []
        if slot in table.gpus.mixed:  # else it makes no difference who stays
            stay += kept
            stay += [claim for key, claim in held.items() if key not in jobs]
            stay += [taken.claim for one, taken in others.items() if one not in pods]
        gpus = min(gpus, table.gpus.room_beside(slot, stay, request.filter))
    wanted = request.times(workers)
    if (wanted.gpus and gpus < wanted.gpus) or (wanted.cpu and cpu < wanted.cpu):
        return False
    if wanted.memory and memory < wanted.memory:
        return False
    return all(extended[resource] >= workers * count for resource, count in request.extended)
