"""Why nodes that are there are of no use to a request: closed to it, away, or held by pods that no job accounts for.

Owns the counting. Reads the columns, changes nothing. Called by `capacity_reasons`.
Cost: O(nodes that are closed, or where such pods are).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from stoker.sched.columns import Column, ForeignClaim, Holder, Mask
from stoker.sched.eligible import NodeFilter
from stoker.sched.nodes import NodeTable
from stoker.sched.place import without
from stoker.sched.request import Request
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import CORDONED, UNKNOWN_MODEL, Gpu, GPUNode

from . import sentences


def obstacles(table: NodeTable, request: Request, avoid: Collection[str] = ()) -> list[str]:
    """All of them, were there no jobs: closed nodes, unusable GPUs, resources no node offers, lasting pods, blame."""
    if not table.slots:
        return ["no node is known"]
    eligible = table.open_for(request.nodes)
    found = list(closed(table, request.nodes))
    found += _unusable(table, request, np.flatnonzero(eligible).tolist())
    usable = without(table, eligible, avoid)
    for resource, need, rest in _lasting(table, request):
        found += held_outside(table, request, usable, resource, need, rest, lasting_only=True)
    if avoid:
        found.append(sentences.avoided(sorted(avoid)))
    return found or [sentences.all_on_one()]


def closed(table: NodeTable, wanted: NodeFilter) -> Iterator[str]:
    """The nodes that take none of the filter's workers, each listed once: by labels, then absence, then taints."""
    eligible = table.open_for(wanted)
    lacking: list[str] = []
    cordoned: list[str] = []
    lost: list[str] = []
    away: list[str] = []
    tainted: dict[str, list[str]] = {}
    for name in sorted(name for name, slot in table.slots.items() if not eligible[slot]):
        node = table.objects[name]
        if wanted.lacking(node.metadata.labels):
            lacking.append(name)
        elif node.status.lost_since is not None:
            lost.append(name)
        elif not node.status.ready:
            (cordoned if node.status.message == CORDONED else away).append(name)
        elif (taint := wanted.repelling(node.status.taints)) is not None:
            value = f"={taint.value}" if taint.value else ""
            tainted.setdefault(f"{taint.key}{value}:{taint.effect}", []).append(name)
    if lacking:
        yield sentences.lack_labels(len(lacking), len(table.slots), wanted.labels)
    if cordoned:
        yield sentences.cordoned(cordoned)
    if lost:
        first = table.objects[lost[0]].status
        yield sentences.lost(lost, first.lost_since, first.message)
    if away:
        yield sentences.not_ready(away, table.objects[away[0]].status.message)
    for taint_text, names in sorted(tainted.items()):
        yield sentences.repel(len(names), taint_text, wanted.runtime)


def held_outside(
    table: NodeTable,
    request: Request,
    usable: Mask,
    resource: str,
    need: int,
    there: Column,
    *,
    lasting_only: bool = False,
) -> Iterator[str]:
    """Which foreign pods hold so much of a resource that, without them, more workers would fit; at most 3 names."""
    held: dict[bool, dict[int, int]] = {False: {}, True: {}}  # ours -> slot -> amount
    pods: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for slot in shared_slots(table, usable):
        taken: dict[Holder, int] = {}
        for holder, one in table.others[table.names[slot]].items():
            some = taken_of(table, slot, one, resource, request)
            if some and not (lasting_only and one.terminating):
                taken[holder] = some
        if not taken:
            continue
        if (int(there[slot]) + sum(taken.values())) // need <= max(int(there[slot]), 0) // need:
            continue
        for holder, some in taken.items():
            held[holder.ours][slot] = held[holder.ours].get(slot, 0) + some
            pods[holder.ours][str(holder.key)] += some
    for ours in (False, True):
        if not held[ours]:
            continue
        some, whole = sum(held[ours].values()), sum(capacity_of(table, resource, request)(slot) for slot in held[ours])
        names = [name for name, _ in sorted(pods[ours].items(), key=lambda item: (-item[1], item[0]))]
        yield sentences.outside(names, ours, resource, some, whole, [table.names[slot] for slot in held[ours]])


def shared_slots(table: NodeTable, usable: Mask) -> list[int]:
    """Those of the slots where foreign pods hold room, by the nodes' names."""
    slots = (table.slots.get(name) for name in sorted(table.others))
    return [slot for slot in slots if slot is not None and usable[slot]]


def taken_of(table: NodeTable, slot: int, taken: ForeignClaim, resource: str, wanted: Request) -> int:
    """Of GPUs: those that would do for the request."""
    request = taken.claim.request
    if resource == "gpus":
        return request.gpus and sum(
            gpus for own, gpus in taken.claim.kinds if table.gpus.may_hold(slot, own, wanted.filter)
        )
    if resource == "cpu":
        return request.cpu
    return request.memory if resource == "memory" else dict(request.extended).get(resource, 0)


def capacity_of(table: NodeTable, resource: str, wanted: Request) -> Callable[[int], int]:
    """Slot -> what the node has of a resource that can be used."""
    if resource == "gpus":
        return lambda slot: sum(one.usable for one in table.gpus.groups.get(slot, ()) if one.suits(wanted.filter))
    if resource in ("cpu", "memory"):
        column = table.cap_cpu if resource == "cpu" else table.cap_mem
        return lambda slot: int(column[slot])
    return lambda slot: table.objects[table.names[slot]].status.extended.get(resource, 0)


def biggest_first(table: NodeTable, slot: int, resource: str, wanted: Request) -> list[tuple[Holder, ForeignClaim]]:
    """Those beside the jobs that hold some of a resource on a node."""
    here = [
        (-some, holder, taken)
        for holder, taken in table.others.get(table.names[slot], {}).items()
        if (some := taken_of(table, slot, taken, resource, wanted))
    ]
    return [(holder, taken) for _, holder, taken in sorted(here, key=lambda item: item[:2])]


def _lasting(table: NodeTable, request: Request) -> Iterator[tuple[str, int, Column]]:
    """(resource, need per worker, what is there beside lasting holders)."""
    fixed = (
        ("gpus", request.gpus, table.rest_for(request.filter)),
        ("cpu", request.cpu, table.rest_cpu),
        ("memory", request.memory, table.rest_mem),
    )
    yield from (item for item in fixed if item[1])
    yield from ((name, need, table.extended[name].rest) for name, need in request.extended)


def _unusable(table: NodeTable, request: Request, slots: list[int]) -> Iterator[str]:
    """What the open nodes lack: GPUs that can't be leased or are of unknown model, extended resources."""
    resource = request.filter.resource
    if request.gpus:
        short = [slot for slot in slots if table.total[slot] > table.usable[slot]]
        gone = Counter(
            (gpu.unavailable, table.names[slot])
            for slot in short
            for gpu in _gpus(table, [slot], resource)
            if gpu.unavailable
        )
        if gone:
            yield sentences.gpus_unusable(gone)
    if request.gpus and not table.gpus.is_any(request.filter):
        gpus = list(_gpus(table, slots, resource))
        if not gpus and resource != GPU_RESOURCE:
            yield sentences.offered_nowhere(resource)
        wanted = request.filter
        unknown = sum(gpu.model == UNKNOWN_MODEL for gpu in gpus)
        if unknown and (wanted.models or wanted.min_memory or wanted.min_capability or wanted.type):
            yield sentences.gpus_of_unknown_model(unknown)
        unable = sum(not gpu.compute_capability and gpu.model != UNKNOWN_MODEL for gpu in gpus)
        if request.filter.min_capability and unable:
            yield sentences.gpus_of_unknown_capability(unable)
        limitless = sum(not gpu.power_limit_watts for gpu in gpus)
        if request.filter.max_power and limitless:
            yield sentences.gpus_of_unknown_power(limitless)
    for name, _ in request.extended:
        if not any(_node(table, slot).status.extended.get(name) for slot in slots):
            yield sentences.offered_nowhere(name)


def _gpus(table: NodeTable, slots: Iterable[int], resource: str) -> Iterator[Gpu]:
    return (gpu for slot in slots for gpu in _node(table, slot).status.gpus if gpu.resource == resource)


def _node(table: NodeTable, slot: int) -> GPUNode:
    return table.objects[table.names[slot]]
