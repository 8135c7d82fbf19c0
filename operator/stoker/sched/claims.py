"""Claims: room that is kept for a job while the jobs stopped for it save and end.

Owns when a claim has become a start, and when it is given up. A claim is counted like a placement (`state`), so what is
free on its nodes is negative until the victims' pods are gone, and no other job is placed there. All that decides
follows from objects: the claim in its job's status, the victims' attempts, the pods. Called by `decide`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta

from stoker.spec.job import Claim, Placed, Victim
from stoker.spec.meta import Key
from stoker.spec.quantity import parse_duration

from .entries import LATEST, Entry, Order
from .place import free_room, place, placed
from .request import NOTHING, Request, Totals
from .reservations import Kept
from .state import SchedulerState

PATIENCE_S = 300.0
"""A claim is given up so long after the last of its victims ended (or it was decided), their grace to save aside."""


def ready(state: SchedulerState, now: datetime) -> Iterator[tuple[Entry, tuple[Placed, ...]]]:
    """The claims that have become starts, and where: their room is there, or other room."""
    for entry in _touched(state, state.freed_nodes, state.freed_queues):
        claim = entry.claim
        if claim is None:
            continue
        gone = not any(_is_held(state, victim) for victim in claim.victims)
        # Other claims wait for victims of their own: once its own have gone, they don't count.
        aside = state.claims if gone else {entry.key: None}
        if _has_room(entry, state, aside) and _fits(state, entry, aside):
            yield entry, claim.placement
    if state.freed_nodes:
        yield from _elsewhere(state, now)


def _elsewhere(state: SchedulerState, now: datetime) -> Iterator[tuple[Entry, tuple[Placed, ...]]]:
    """Claims whose jobs fit beside all claims and what is kept for those ahead."""
    vain: set[Request] = set()
    for entry in sorted((state.entries[key] for key in state.claims), key=lambda one: one.order):
        if entry.request in vain or not _has_room(entry, state, {entry.key: None}):
            continue
        ahead = (one for one in state.plan if one.order[2] in state.entries and one.binds(entry.order, entry.queue))
        spread = place(state.nodes, entry.request, entry.avoided(now), Kept(state, ahead).nodes)
        if spread is None:
            vain.add(entry.request)
        else:
            yield entry, placed(state.nodes, spread)


def _has_room(entry: Entry, state: SchedulerState, aside: Collection[Key]) -> bool:
    """Within its queue's limits, were it not for those, it among them."""
    spared: dict[str, Totals] = {}
    for one in (state.entries[key] for key in aside):
        for queue in one.queue.path:
            have = spared.get(queue.name, NOTHING)
            spared[queue.name] = Totals(*(a - b for a, b in zip(have, one.request.totals, strict=True)))
    return entry.queue.has_room(entry.request.totals, spared)


def end_void(state: SchedulerState) -> dict[Key, int]:
    """End the claims whose room others have taken. Returns: job → how often that has happened to it in a row."""
    found: dict[Key, int] = {}
    for entry in _touched(state, state.freed_nodes | state.filled_nodes, ()):
        claim = entry.claim
        if claim is not None and not _is_possible(state, entry):
            found[entry.key] = claim.replans + 1
            state.set_claim(entry, None)
    return found


def end_late(state: SchedulerState, now: datetime) -> None:
    """End the claims whose victims don't end."""
    for key in list(state.claims):
        entry = state.entries[key]
        if entry.claim is not None and given_up_at(state, entry.claim) <= now:
            state.set_claim(entry, None)


def given_up_at(state: SchedulerState, claim: Claim) -> datetime:
    progress, grace_s = claim.since, 0.0
    for victim in claim.victims:
        entry = state.entries.get(victim.key)
        if entry is None or entry.job.uid != victim.uid:
            continue
        ended = next((one.ended_at for one in entry.job.status.attempts if one.number == victim.attempt), None)
        if ended is None:
            grace_s = max(grace_s, parse_duration(entry.job.spec.checkpoint.grace))
        else:
            progress = max(progress, ended)
    return progress + timedelta(seconds=PATIENCE_S + grace_s)


def _touched(state: SchedulerState, nodes: Iterable[str], queues: Iterable[str]) -> list[Entry]:
    """In the order in which they were decided."""
    if not state.claims:
        return []
    keys = {key for name in nodes for key in state.nodes.claims.get(name, ())}
    keys |= {key for name in queues if name in state.queues for key in state.queues[name].holding}
    return sorted((state.entries[key] for key in keys if key in state.claims), key=_age)


def _age(entry: Entry) -> tuple[datetime, Order]:
    return (LATEST if entry.claim is None else entry.claim.since), entry.order


def _is_held(state: SchedulerState, victim: Victim) -> bool:
    """It still has its place."""
    entry = state.entries.get(victim.key)
    return entry is not None and (entry.job.uid, entry.attempt, entry.pending) == (victim.uid, victim.attempt, False)


def _is_possible(state: SchedulerState, entry: Entry) -> bool:
    """Its room will be free once the victims of the claims there, and the pods on their way out, have gone."""
    table = state.nodes
    with state.what_if():
        for name in entry.workers_on:
            for key in [key for key in table.claims[name] if state.victims.get(key) in table.claims[name]]:
                table.unclaim(name, key)
            for holder in [one for one, taken in table.others.get(name, {}).items() if taken.terminating or one.ours]:
                table.give_back(name, holder)
        return _fits(state, entry, {entry.key: None})


def _fits(state: SchedulerState, entry: Entry, aside: Collection[Key]) -> bool:
    """Its room is free on each of its nodes, were it not for those, it among them."""
    table, request = state.nodes, entry.request
    with state.what_if():
        for name, workers in entry.workers_on.items():
            for key in [key for key in table.claims[name] if key in aside]:
                table.unclaim(name, key)
            slot = table.slots.get(name)
            if slot is None or not table.open_for(request.nodes)[slot]:
                return False
            if any(column[slot] < workers * need for need, column in free_room(table, request, None).wanted(request)):
                return False
    return True
