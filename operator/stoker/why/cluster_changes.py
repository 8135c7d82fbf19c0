"""Changes of the cluster that would make room for a waiting job: foreign pods removed, nodes ready again.

Owns which changes are tried, with as few pods and nodes as possible. Changes nothing itself: `counterfactuals` applies
each in a what-if and decides. Cost: O(nodes) and the foreign pods on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import numpy as np

from stoker.sched.columns import Holder
from stoker.sched.entries import Entry
from stoker.sched.nodes import NodeTable
from stoker.sched.place import Room, fitting, free_room, without
from stoker.sched.request import Request
from stoker.sched.state import SchedulerState
from stoker.sched.topology import likeliest
from stoker.spec.node import CORDONED, GPUNode
from stoker.spec.reasons import Change

from .unusable_nodes import biggest_first, shared_slots, taken_of

_MOST = 3
"""Changes of more pods or nodes than this are not suggested."""

_OWN_TAINTS = "node.kubernetes.io/"  # set and taken away by the cluster as the node's state changes

Remedy = tuple[Callable[[], None], Change, tuple[str, ...], tuple[str, ...]]
"""(what it does to the state, which change that is, the names of what is changed, the nodes)."""


def remedies(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[Remedy]:
    if not entry.admitted:
        return
    table, request, avoid = state.nodes, entry.request, entry.avoided(now)
    free = free_room(table, request, None)
    fits = fitting(table, request, avoid, free)
    short = request.workers - int(likeliest(table, request.near, request.workers, fits, fits).sum())
    if short <= 0:
        return
    yield from _without_pods(state, request, avoid, free, short)
    yield from _with_nodes(state, request, avoid, free, short)


def _without_pods(
    state: SchedulerState, request: Request, avoid: frozenset[str], free: Room, short: int
) -> Iterator[Remedy]:
    table = state.nodes
    resource = "gpus" if request.gpus else "cpu" if request.cpu else "memory"
    options: list[tuple[int, int, str, list[Holder]]] = []
    for slot in shared_slots(table, without(table, table.open_for(request.nodes), avoid)):
        more, pods = _in_the_way(table, slot, request, free, resource)
        if pods:
            options.append((len(pods), -more, table.names[slot], pods))
    chosen: list[tuple[int, int, str, list[Holder]]] = []
    for option in sorted(options):
        if short > 0:
            chosen.append(option)
            short += option[1]
    for option in tuple(chosen):
        if short <= option[1]:
            chosen.remove(option)
            short -= option[1]
    holders = [holder for *_, pods in chosen for holder in pods]
    if short > 0 or not holders or len(holders) > _MOST:
        return
    names = tuple(sorted(str(holder.key) for holder in holders))
    yield partial(_remove, state, holders), Change.DELETE_PODS, names, tuple(name for *_, name, _ in chosen)


def _in_the_way(table: NodeTable, slot: int, request: Request, free: Room, resource: str) -> tuple[int, list[Holder]]:
    """How many workers more fit on the node without certain pods: the fewest that keep out one. No pods: none does."""
    pods = biggest_first(table, slot, resource, request)
    if not pods:
        return 0, []
    names = ("gpus", "cpu", "memory", *(name for name, _ in request.extended))
    needs = (request.gpus, request.cpu, request.memory, *(count for _, count in request.extended))
    there = [int(column[slot]) for column in (*free[:3], *free.extended)]
    have = min(max(some, 0) // need for some, need in zip(there, needs, strict=True) if need)
    found: list[Holder] = []
    for holder, taken in pods:
        found.append(holder)
        there = [some + taken_of(table, slot, taken, name, request) for some, name in zip(there, names, strict=True)]
        fits = min(some // need for some, need in zip(there, needs, strict=True) if need)
        if fits > have:
            return fits - have, found
    return 0, []


def _with_nodes(
    state: SchedulerState, request: Request, avoid: frozenset[str], free: Room, short: int
) -> Iterator[Remedy]:
    """Nodes that are cordoned or away and would do, those with most room first."""
    table = state.nodes
    options: list[tuple[int, str, GPUNode]] = []
    for slot in np.flatnonzero(~table.ready).tolist():
        name = table.names[slot]
        if not name or name in avoid:
            continue
        back = _restored(table.objects[name])
        if not request.nodes.admits(back):
            continue
        fits = min((int(column[slot]) // need for need, column in free.wanted(request)), default=request.workers)
        if fits > 0:
            options.append((-fits, name, back))
    chosen: list[GPUNode] = []
    for fits, _, back in sorted(options, key=lambda option: option[:2]):
        if short <= 0:
            break
        short += fits
        chosen.append(back)
    if short > 0 or not chosen or len(chosen) > _MOST:
        return
    names = tuple(node.metadata.name for node in chosen)
    cordoned = all(table.objects[name].status.message == CORDONED for name in names)
    yield partial(_give_back, state, chosen), Change.UNCORDON if cordoned else Change.RESTORE_NODES, names, names


def _restored(node: GPUNode) -> GPUNode:
    taints = tuple(taint for taint in node.status.taints if not taint.key.startswith(_OWN_TAINTS))
    status = node.status.model_copy(update={"ready": True, "message": "", "lost_since": None, "taints": taints})
    return node.model_copy(update={"status": status})


def _remove(state: SchedulerState, holders: list[Holder]) -> None:
    for holder in holders:
        if holder.ours:
            state.forget_pod(holder.key)
        else:
            state.forget_other(holder.key)


def _give_back(state: SchedulerState, nodes: list[GPUNode]) -> None:
    for node in nodes:
        state.observe_node(node)
