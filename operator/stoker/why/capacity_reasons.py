"""What is short on the nodes for one gang, and what no set of empty nodes could ever hold.

Owns the arithmetic of "short by". Reads the columns, changes nothing. Called by `blockers` and
`explain`. Cost: O(nodes) in numpy; the holding jobs are named for at most _NAMED_NODES nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from stoker.sched.columns import Column
from stoker.sched.nodes import NodeTable
from stoker.sched.place import capacity, fitting, free_room, without
from stoker.sched.request import Request
from stoker.sched.state import SchedulerState
from stoker.sched.topology import likeliest
from stoker.spec.meta import Key
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import Gpu, capability_number
from stoker.spec.reasons import MOST_JOBS, Code, Reason

from . import sentences
from .phrases import numbers
from .unusable_nodes import held_outside, obstacles

_NAMED_NODES = 64


def shortages(state: SchedulerState, request: Request, avoid: Collection[str] = ()) -> list[Reason]:
    """Why the gang finds no room right now: at least one blocker, given that `place` found none."""
    table = state.nodes
    could = capacity(table, request, avoid)
    if not request.near.required or table.is_one_place:
        return _shortages(state, request, avoid, could)
    now = np.minimum(fitting(table, request, avoid, free_room(table, request, None)), could)
    could = likeliest(table, request.near, request.workers, could, now)
    where = _domain(table, request, could)
    found = _shortages(state, request, avoid, could)
    return [one.model_copy(update={"message": f"{where}: {one.message}"}) for one in found]


def _domain(table: NodeTable, request: Request, could: Column) -> str:
    """As a message begins."""
    level, slots = request.near.required, np.flatnonzero(could)
    if level not in table.levels:
        return sentences.within(level, None, list(table.levels))
    likeliest_one = table.objects[table.names[int(slots[0])]].metadata.labels[level] if len(slots) else None
    return sentences.within(level, likeliest_one)


def _shortages(state: SchedulerState, request: Request, avoid: Collection[str], could: Column) -> list[Reason]:
    table = state.nodes
    if int(could.sum()) < request.workers:
        return [_too_few_nodes(table, request, avoid, could)]
    found = []
    base = could
    if request.gpus:
        free = table.free_for(request.filter)
        fits = np.minimum(could, np.maximum(free, 0) // request.gpus)
        if int(fits.sum()) < request.workers:
            found.append(_short_gpus(state, request, avoid, could, fits, free))
        else:
            base = fits  # cores and memory are looked for where the GPUs are
    for resource, need, free in (
        ("cpu", request.cpu, table.free_cpu),
        ("memory", request.memory, table.free_mem),
        *((name, count, table.extended[name].free) for name, count in request.extended),
    ):
        if need:
            fits = np.minimum(base, np.maximum(free, 0) // need)
            if int(fits.sum()) < request.workers:
                found.append(_short_of(table, request, avoid, (resource, need, free), base, fits))
    return found or [Reason(code=Code.NO_CAPACITY, message=sentences.scattered(request))]


def never_on_nodes(table: NodeTable, request: Request) -> list[Reason]:
    """What no known set of nodes could hold, empty of pods, all ready, open and every GPU usable. No nodes: nothing.

    Cordons, taints, labels, other people's pods, slices of GPUs and extended resources rule nothing out: they come and
    go.
    """
    if not table.slots:
        return []
    whole = table.whole_for(request.filter)
    slots = np.array(sorted(table.slots.values()))
    fits = np.full(len(slots), request.workers)
    columns = (
        ("gpus", request.gpus if request.filter.resource == GPU_RESOURCE else 0, whole[slots]),
        ("cpu", request.cpu, table.cap_cpu[slots]),
        ("memory", request.memory, table.cap_mem[slots]),
    )
    for _, need, have in columns:
        if need:
            fits = np.minimum(fits, have // need)
    in_one = request.near.required if request.near.required in table.levels else ""
    if in_one:
        of_slot = np.zeros_like(table.total)
        of_slot[slots] = fits
        fits = likeliest(table, request.near, request.workers, of_slot, of_slot)[slots]
    if int(fits.sum()) >= request.workers:
        return []
    if columns[0][1] and not whole.any() and not table.gpus.is_any(request.filter):
        there = sorted({_kind_of(gpu, request) for gpu in _gpus(table)})
        return [
            _never(
                sentences.no_such_gpu(request, there, any(gpu.part for gpu in _gpus(table))),
                "gpus",
                request.totals.gpus,
                0,
            )
        ]
    found = []
    for resource, need, have in columns:
        most = int(have.max())
        if need > most:
            node = table.names[int(slots[int(have.argmax())])]
            message = sentences.above_largest(request, resource, need, node, most)
            found.append(_never(message, resource, need, most, node))
    if found:
        return found
    holds = int(fits.sum())
    resource, need = _main(request)
    return [_never(sentences.above_all(request, in_one, holds), resource, request.workers * need, holds * need)]


def _kind_of(gpu: Gpu, request: Request) -> str:
    return f"{gpu.model} ({gpu.compute_capability or 'unknown'})" if request.filter.min_capability else gpu.model


def _kinds_that_do(table: NodeTable, request: Request) -> list[str]:
    kinds = {(gpu.model, gpu.memory_bytes, gpu.compute_capability, gpu.power_limit_watts): gpu for gpu in _gpus(table)}
    return sorted(
        {
            _kind_of(gpu, request)
            for (model, memory, capability, power), gpu in kinds.items()
            if request.filter.matches(model.lower(), memory, capability_number(capability), power)
        }
    )


def _gpus(table: NodeTable) -> Iterator[Gpu]:
    for node in table.objects.values():
        yield from node.status.gpus


def _never(message: str, resource: str, wanted: int, available: int, *nodes: str) -> Reason:
    return Reason(code=Code.NEVER_FITS, message=message, **numbers(resource, wanted, available), nodes=nodes)


def _too_few_nodes(table: NodeTable, request: Request, avoid: Collection[str], could: Column) -> Reason:
    holds = int(could.sum())
    resource, need = _main(request)
    message = sentences.too_few_usable(request, holds, obstacles(table, request, avoid))
    if not need:
        return Reason(code=Code.NO_CAPACITY, message=message)
    return Reason(code=Code.NO_CAPACITY, message=message, **numbers(resource, request.workers * need, holds * need))


def _short_gpus(
    state: SchedulerState, request: Request, avoid: Collection[str], could: Column, fits: Column, free: Column
) -> Reason:
    table, wanted = state.nodes, request.totals.gpus
    short = _missing(request.workers, request.gpus, could, fits, free)
    slots = np.flatnonzero(could)
    there = {table.names[slot]: int(free[slot]) for slot in slots if free[slot] > 0}
    held = _holders(table, request, slots)
    usable = without(table, table.open_for(request.nodes), avoid)
    outside = held_outside(table, request, usable, "gpus", request.gpus, free)
    idle, mine = np.maximum(table.free_gpu, 0)[usable], np.maximum(free, 0)[usable]
    message = sentences.short_of_gpus(
        request,
        short,
        there,
        [(key.name, gpus) for key, gpus in held if not state.entries[key].pending],
        [(key.name, gpus) for key, gpus in held if state.entries[key].pending],
        list(outside),
        0 if request.near.required else int(mine.sum()) - sum(there.values()),
        0 if table.gpus.is_any(request.filter) else int(np.maximum(idle - mine, 0).sum()),
        _kinds_that_do(table, request) if request.filter.min_capability else (),
    )
    most_free = sorted(there, key=lambda name: (-there[name], name))
    return Reason(
        code=Code.NO_CAPACITY,
        message=message,
        **numbers("gpus", wanted, wanted - short),
        nodes=tuple(most_free[:MOST_JOBS]),
        jobs=tuple(str(key) for key, _ in held[:MOST_JOBS]),
    )


def _short_of(
    table: NodeTable,
    request: Request,
    avoid: Collection[str],
    what: tuple[str, int, Column],
    could: Column,
    fits: Column,
) -> Reason:
    """`what`: the resource, the need per worker, what is free of it."""
    resource, need, free = what
    wanted = request.workers * need
    short = _missing(request.workers, need, could, fits, free)
    slots = np.flatnonzero(could)
    best = int(slots[free[slots].argmax()])
    name, most = table.names[best], max(int(free[best]), 0)
    outside = held_outside(table, request, without(table, table.open_for(request.nodes), avoid), resource, need, free)
    return Reason(
        code=Code.NO_CAPACITY,
        message=sentences.short_of(request, resource, need, short, name, most, list(outside)),
        **numbers(resource, wanted, wanted - short),
        nodes=(name,),
    )


def _missing(workers: int, need: int, could: Column, fits: Column, free: Column) -> int:
    """The least that must get free, in the best places, for all workers to fit."""
    slots = np.flatnonzero(could > fits)
    more = could[slots] - fits[slots]
    first = (fits[slots] + 1) * need - free[slots]  # one worker more on this node; each further one costs `need`
    missing = workers - int(fits.sum())
    cheap = first <= need
    costs = np.sort(first[cheap])[:missing]
    rest = max(missing - int(more[cheap].sum()), 0)
    # Where more is held than there is, that comes first: the least of it for nodes that take the rest together.
    debt = np.concatenate([[0], np.full(rest, np.iinfo(np.int64).max // 2)])  # workers -> debts
    for extra, room in zip((first - need)[~cheap].tolist(), more[~cheap].tolist(), strict=True):
        debt = np.minimum(debt, debt[np.maximum(np.arange(rest + 1) - room, 0)] + extra)
    return int(costs.sum()) + (missing - len(costs)) * need + int(debt[rest])


def _holders(table: NodeTable, request: Request, slots: NDArray[np.intp]) -> list[tuple[Key, int]]:
    """Jobs and their GPUs there that may be such as are asked for, the most first; none for too many nodes."""
    held: Counter[Key] = Counter()
    if len(slots) > _NAMED_NODES:
        return []
    for slot in slots.tolist():
        is_mixed = slot in table.gpus.mixed
        for key, claim in table.claims.get(table.names[slot], {}).items():
            own = claim.request.filter
            if claim.gpus and (not is_mixed or table.gpus.may_hold(slot, own, request.filter)):
                held[key] += claim.gpus
    return sorted(held.items(), key=lambda item: (-item[1], item[0].name, item[0]))


def _main(request: Request) -> tuple[str, int]:
    """What people think of the request as, and how much of it a worker needs. 0 if it asks for nothing at all."""
    if request.gpus:
        return "gpus", request.gpus
    return ("cpu", request.cpu) if request.cpu else ("memory", request.memory)
