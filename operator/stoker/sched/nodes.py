"""The nodes as columns: what each has, what is free, and which GPUs a request's filter may count on.

Owns the struct-of-arrays over nodes and the claims on them; never decides. Called by `state` (changes), `place` and
`explain` (reading). A slot is a node's index in every column; slots of forgotten nodes are reused and never `ready`.

GPUs of one node may differ, and the node agent picks the uuids: of a running job we know its filter, not its GPUs. The
rule: a request may count on those matching GPUs that stay free *however* the agent picked for the jobs already there.
With claims i (filter S_i, g_i GPUs) the most GPUs of a filter R they can hold is a maximum flow from claims to the
types in R; `room` = matching - that flow. A maximum flow onto R's types always extends to an assignment of all
claims (augmenting paths keep matched GPUs matched), so the bound is reached by some pick: not one GPU is given up
needlessly, and no start can meet a node whose fitting GPUs are gone. On nodes with one type it is simply what is free.
A GPU that became unavailable while a job of ours holds it counts as missing and as held until that job ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.spec.meta import Key
from stoker.spec.node import GPUNode

from .journal import Journal
from .request import ANY_GPU, GpuFilter, Request

Column = NDArray[np.int64]  # slot -> number

_COLUMNS = ("usable", "total", "free_gpu", "cap_cpu", "free_cpu", "cap_mem", "free_mem")
_EXACT_TYPES = 8  # the flow's minimum cut is searched over 2**types subsets


class GpuGroup(NamedTuple):
    """GPUs of one type on one node."""

    model: str  # lower case
    memory: int
    usable: int
    total: int


class Claim(NamedTuple):
    """What one job holds on one node."""

    workers: int
    request: Request

    @property
    def gpus(self) -> int:
        return self.workers * self.request.gpus


@dataclass(slots=True)
class FilterColumn:
    """One filter's view of the nodes. Invariant: a request may use min(free_gpu, room) of a node."""

    cap: Column
    """Usable matching GPUs of the empty node."""
    room: Column
    users: int = 0


class NodeTable:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.slots: dict[str, int] = {}
        self.objects: dict[str, GPUNode] = {}
        self.claims: dict[str, dict[Key, Claim]] = {}
        """Node -> job -> what it holds; also for nodes that are not known (yet)."""
        self.columns: dict[GpuFilter, FilterColumn] = {}
        self._groups: dict[int, tuple[GpuGroup, ...]] = {}
        self._spare: list[int] = []
        self._ranks: Column | None = None
        self.names: list[str] = []
        self.ready: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.usable = self.total = self.free_gpu = np.zeros(0, dtype=np.int64)
        self.cap_cpu = self.free_cpu = self.cap_mem = self.free_mem = np.zeros(0, dtype=np.int64)

    # -- reading

    def free_for(self, wanted: GpuFilter) -> Column:
        """GPUs that a request with this filter may count on, per slot. The filter must be in use (`acquire`)."""
        return self.free_gpu if wanted == ANY_GPU else np.minimum(self.free_gpu, self.columns[wanted].room)

    def cap_for(self, wanted: GpuFilter) -> Column:
        """The same of empty nodes."""
        return self.usable if wanted == ANY_GPU else self.columns[wanted].cap

    def whole_for(self, wanted: GpuFilter) -> Column:
        """Matching GPUs per slot, the unavailable ones too. Cost: O(nodes), for answers to people."""
        if wanted == ANY_GPU:
            return self.total
        whole = np.zeros_like(self.total)
        for slot, groups in self._groups.items():
            whole[slot] = sum(group.total for group in groups if wanted.matches(group.model, group.memory))
        return whole

    @property
    def ranks(self) -> Column:
        """The slots' places in the order of names: ties are broken by name, not by who was observed first."""
        if self._ranks is None:
            self._ranks = np.zeros(len(self.ready), dtype=np.int64)
            for rank, name in enumerate(sorted(self.slots)):
                self._ranks[self.slots[name]] = rank
        return self._ranks

    def is_mixed(self, slot: int) -> bool:
        return len(self._groups.get(slot, ())) > 1

    def overlap(self, slot: int, one: GpuFilter, other: GpuFilter) -> bool:
        """Some GPU of the node would do for both."""
        return any(
            one.matches(group.model, group.memory) and other.matches(group.model, group.memory)
            for group in self._groups.get(slot, ())
        )

    # -- changes

    def put(self, node: GPUNode) -> int | None:
        """Take in a node; its slot, or None if nothing that counts has changed."""
        name, status = node.metadata.name, node.status
        known = self.objects.get(name)
        self._journal.put(self.objects, name, node)
        if known is not None and known.status == status:
            return None
        slot = self.slots.get(name)
        if slot is None:
            slot = self._new_slot(name)
        groups = _group(node)
        held = list(self.claims.get(name, {}).values())
        usable = sum(group.usable for group in groups)
        cells = {
            "usable": usable,
            "total": sum(group.total for group in groups),
            "free_gpu": usable - sum(claim.gpus for claim in held),
            "cap_cpu": status.cpu_milli,
            "free_cpu": status.cpu_milli - sum(claim.workers * claim.request.cpu for claim in held),
            "cap_mem": status.memory_bytes,
            "free_mem": status.memory_bytes - sum(claim.workers * claim.request.memory for claim in held),
        }
        for column, value in cells.items():
            self._journal.cell(getattr(self, column), slot, value)
        self._journal.cell(self.ready, slot, status.ready)
        self._journal.put(self._groups, slot, groups)
        for wanted, view in self.columns.items():
            self._fill(view, wanted, slot)
        return slot

    def drop(self, name: str) -> None:
        slot = self.slots.get(name)
        if slot is None:
            return
        self._journal.drop(self.objects, name)
        self._journal.drop(self.slots, name)
        self._journal.drop(self._groups, slot)
        self._spare.append(slot)
        self._journal.note(self._spare.pop)
        self._journal.set(self, "_ranks", None)
        self._rename(slot, "")
        for column in (*(getattr(self, name) for name in _COLUMNS), self.ready):
            self._journal.cell(column, slot, 0)
        for view in self.columns.values():
            self._journal.cell(view.cap, slot, 0)
            self._journal.cell(view.room, slot, 0)

    def claim(self, name: str, key: Key, claim: Claim) -> None:
        if name not in self.claims:
            self._journal.put(self.claims, name, {})
        self._journal.put(self.claims[name], key, claim)
        self._shift(name, claim, -1)

    def unclaim(self, name: str, key: Key) -> None:
        claim = self.claims[name][key]
        self._journal.drop(self.claims[name], key)
        if not self.claims[name]:
            self._journal.drop(self.claims, name)
        self._shift(name, claim, 1)

    def acquire(self, wanted: GpuFilter) -> None:
        """Keep a column for this filter until as many `release`s."""
        if wanted == ANY_GPU:
            return
        view = self.columns.get(wanted)
        if view is None:
            view = FilterColumn(np.zeros_like(self.usable), np.zeros_like(self.usable))
            for slot in self.slots.values():
                self._fill(view, wanted, slot)
            self._journal.put(self.columns, wanted, view)
        self._journal.set(view, "users", view.users + 1)

    def release(self, wanted: GpuFilter) -> None:
        if wanted == ANY_GPU:
            return
        view = self.columns[wanted]
        self._journal.set(view, "users", view.users - 1)
        if view.users == 0:
            self._journal.drop(self.columns, wanted)

    # -- inside

    def _shift(self, name: str, claim: Claim, sign: int) -> None:
        slot = self.slots.get(name)
        if slot is None:
            return
        gpus, cpu, memory = claim.request.times(sign * claim.workers)
        cell = self._journal.cell
        cell(self.free_cpu, slot, self.free_cpu[slot] + cpu)
        cell(self.free_mem, slot, self.free_mem[slot] + memory)
        if gpus:
            cell(self.free_gpu, slot, self.free_gpu[slot] + gpus)
            if self.is_mixed(slot):
                for wanted, view in self.columns.items():
                    self._fill(view, wanted, slot)

    def _fill(self, view: FilterColumn, wanted: GpuFilter, slot: int) -> None:
        groups = self._groups.get(slot, ())
        cap = room = sum(group.usable for group in groups if wanted.matches(group.model, group.memory))
        if 0 < cap < self.usable[slot]:
            room -= worst_held(groups, self.claims.get(self.names[slot], {}).values(), wanted)
        self._journal.cell(view.cap, slot, cap)
        self._journal.cell(view.room, slot, room)

    def _new_slot(self, name: str) -> int:
        if not self._spare:
            self._grow()
        slot = self._spare.pop()
        self._journal.note(self._spare.append, slot)
        self._journal.set(self, "_ranks", None)
        self._rename(slot, name)
        self._journal.put(self.slots, name, slot)
        return slot

    def _rename(self, slot: int, name: str) -> None:
        self._journal.note(self.names.__setitem__, slot, self.names[slot])
        self.names[slot] = name

    def _grow(self) -> None:
        """Columns are replaced, never resized in place: an undo finds the old ones untouched."""
        old = len(self.ready)
        more = max(8, old // 2)
        for owner, column in [(self, name) for name in (*_COLUMNS, "ready")] + [
            (view, name) for view in self.columns.values() for name in ("cap", "room")
        ]:
            array = getattr(owner, column)
            self._journal.set(owner, column, np.concatenate([array, np.zeros(more, dtype=array.dtype)]))
        self._journal.set(self, "names", self.names + [""] * more)
        self._journal.set(self, "_spare", list(range(old + more - 1, old - 1, -1)))


def worst_held(groups: tuple[GpuGroup, ...], claims: Iterable[Claim], wanted: GpuFilter) -> int:
    """The most GPUs matching `wanted` that `claims` may hold on a node with these groups: a flow's minimum cut."""
    types = [group for group in groups if wanted.matches(group.model, group.memory)]
    reach: dict[int, int] = {}  # set of types (bits) -> GPUs whose holders may have picked among them
    for claim in claims:
        own = claim.request.filter
        bits = sum(1 << i for i, group in enumerate(types) if own.matches(group.model, group.memory))
        if not bits and not any(own.matches(group.model, group.memory) for group in groups):
            bits = (1 << len(types)) - 1  # the node has changed under the job: it may hold anything
        if bits:
            reach[bits] = reach.get(bits, 0) + claim.gpus
    every = (1 << len(types)) - 1
    cuts = range(every + 1) if len(types) <= _EXACT_TYPES else (0, every)
    return min(
        sum(group.usable for i, group in enumerate(types) if cut >> i & 1)
        + sum(gpus for bits, gpus in reach.items() if bits & ~cut)
        for cut in cuts
    )


def _group(node: GPUNode) -> tuple[GpuGroup, ...]:
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for gpu in node.status.gpus:
        usable, total = counts.get((gpu.model.lower(), gpu.memory_bytes), (0, 0))
        counts[gpu.model.lower(), gpu.memory_bytes] = (usable + (not gpu.unavailable), total + 1)
    return tuple(GpuGroup(model, memory, *count) for (model, memory), count in sorted(counts.items()))
