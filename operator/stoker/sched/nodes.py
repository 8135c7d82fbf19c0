"""The nodes as columns: what each has, what is free, and what a class of requests may count on there.

Owns the struct-of-arrays over nodes, the claims of jobs and what other holders take; never decides. Called by `state`
and `foreign_pods` (changes), `place` and `stoker.why` (reading). A slot is a node's index in every column; slots of
forgotten nodes are reused and admit no worker.

`cap` is the empty node's, `rest` that less what lasting holders outside the jobs take, `free` what is free now. A GPU
that became unavailable while it is in use counts as missing and as held until that use ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np

from stoker.spec.gpu_types import SHIPPED, GpuTypes
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode

from .columns import Column, EligibleNodes, ExtendedView, ForeignClaim, GpuView, Holder, Mask, View
from .eligible import NodeFilter
from .gpu_groups import Claim
from .journal import Journal, K
from .node_domains import NodeDomains
from .node_gpus import NodeGpus
from .request import WHOLE_GPUS, GpuFilter, Request, Totals

V = TypeVar("V", GpuView, ExtendedView, EligibleNodes)

_COLUMNS = (
    *("usable", "total", "rest_gpu", "free_gpu"),
    *("cap_cpu", "rest_cpu", "free_cpu"),
    *("cap_mem", "rest_mem", "free_mem"),
)


class NodeTable:
    def __init__(self, journal: Journal, levels: Sequence[str] | None = None, types: GpuTypes = SHIPPED) -> None:
        """`levels`: the topology's, as keys of node labels, outermost first; None: all nodes are close together."""
        self._journal = journal
        self.levels = tuple(levels or ())
        self.is_one_place = levels is None
        self._domains = NodeDomains(journal, self.levels)
        self.gpus = NodeGpus(journal, types)
        self.slots: dict[str, int] = {}
        self.objects: dict[str, GPUNode] = {}
        self.claims: dict[str, dict[Key, Claim]] = {}
        """Node -> job -> what it holds; also for nodes that are not known (yet)."""
        self.others: dict[str, dict[Holder, ForeignClaim]] = {}
        """Node -> the pods besides jobs that hold room there; as `claims`."""
        self.columns: dict[GpuFilter, GpuView] = {}
        self.extended: dict[str, ExtendedView] = {}
        self.eligible: dict[NodeFilter, EligibleNodes] = {}
        self.moved: set[int] = set()
        """Slots whose holders changed since `expected_ends` looked. An undo adds to it too."""
        self._narrowed: dict[GpuFilter, tuple[GpuFilter, ...]] = {}
        """Filter → the same for one type only, of those in `columns`."""
        self._spare: list[int] = []
        self._ranks: Column | None = None
        self._capacity: Totals | None = None
        self.names: list[str] = []
        self.ready: Mask = np.zeros(0, dtype=np.bool_)
        self.usable = self.total = self.rest_gpu = self.free_gpu = np.zeros(0, dtype=np.int64)
        self.cap_cpu = self.rest_cpu = self.free_cpu = np.zeros(0, dtype=np.int64)
        self.cap_mem = self.rest_mem = self.free_mem = np.zeros(0, dtype=np.int64)

    # -- reading. A filter, a resource must be in use (`acquire`); a filter's narrower ones of one type then are too.

    def open_for(self, wanted: NodeFilter) -> Mask:
        """Slots where the workers may go at all."""
        return self.eligible[wanted].open

    def free_for(self, wanted: GpuFilter) -> Column:
        """GPUs that a request with this filter may count on, per slot."""
        return self.free_gpu if self.gpus.is_any(wanted) else np.minimum(self.free_gpu, self.view(wanted).room)

    def rest_for(self, wanted: GpuFilter) -> Column:
        """The same without jobs and without terminating pods."""
        return self.rest_gpu if self.gpus.is_any(wanted) else np.minimum(self.rest_gpu, self.view(wanted).rest)

    def view(self, wanted: GpuFilter) -> GpuView:
        """What types of GPUs leave to a request with this filter, for which not every GPU will do."""
        found = self.columns.get(wanted)
        if found is None:
            size, broad = len(self.ready), wanted._replace(type="")
            found = self._add(self.columns, wanted, GpuView(_zeros(size), _zeros(size)), self._fill_gpus)
            if broad != wanted:
                self._journal.put(self._narrowed, broad, (*self._narrowed.get(broad, ()), wanted))
        return found

    def type_at(self, names: Iterable[str], wanted: GpuFilter) -> str:
        """What type the GPUs are of that a request with this filter gets on those nodes; empty: they may differ."""
        return self.gpus.type_on((self.slots[name] for name in names if name in self.slots), wanted)

    def domain_of(self, level: str) -> Column:
        """Each slot's domain of the level; 0: in none, as all are of a level that is not the topology's."""
        view = self._domains.views.get(level)
        return np.full(len(self.ready), int(self.is_one_place)) if view is None else view.ids

    def whole_for(self, wanted: GpuFilter) -> Column:
        """GPUs per slot that match or may turn out to, unavailable ones too. Cost: O(nodes), for answers to people."""
        if self.gpus.is_any(wanted):
            return self.total
        whole = np.zeros_like(self.total)
        for slot, groups in self.gpus.groups.items():
            whole[slot] = sum(one.total for one in groups if one.may_suit(wanted))
        return whole

    @property
    def ranks(self) -> Column:
        """The slots' places in the order of names: ties are broken by name, not by who was observed first."""
        if self._ranks is None:
            self._ranks = np.zeros(len(self.ready), dtype=np.int64)
            for rank, name in enumerate(sorted(self.slots)):
                self._ranks[self.slots[name]] = rank
        return self._ranks

    @property
    def capacity(self) -> Totals:
        """Of all nodes."""
        if self._capacity is None:
            self._capacity = Totals(int(self.usable.sum()), int(self.cap_cpu.sum()), int(self.cap_mem.sum()))
        return self._capacity

    def is_alive(self, name: str) -> bool:
        """It is known, and its kubelet reports."""
        node = self.objects.get(name)
        return node is not None and node.status.lost_since is None

    # -- changes

    def put(self, node: GPUNode) -> int | None:
        """Take in a node; its slot, or None if nothing that counts has changed."""
        name, status = node.metadata.name, node.status
        known = self.objects.get(name)
        self._journal.put(self.objects, name, node)
        if known is not None and known.status == status and known.metadata.labels == node.metadata.labels:
            return None
        slot = self.slots.get(name)
        if slot is None:
            slot = self._new_slot(name)
        self._journal.set(self, "_capacity", None)
        usable, total = self.gpus.put(slot, node)
        caps = (usable, status.cpu_milli, status.memory_bytes)
        self._journal.cell(self.total, slot, total)
        for (cap, rest, free), amount in zip(self._triples(), caps, strict=True):
            for column in (cap, rest, free):
                self._journal.cell(column, slot, amount)
        self._journal.cell(self.ready, slot, status.ready)
        for claim, lasting in self._held(name):
            self._count(slot, claim, -1, lasting)
        for wanted, gpus in self.columns.items():
            self._fill_gpus(gpus, wanted, slot)
        for resource, extended in self.extended.items():
            self._fill_extended(extended, resource, slot)
        for nodes, view in self.eligible.items():
            self._fill_eligible(view, nodes, slot)
        self._domains.put(slot, node.metadata.labels)
        return slot

    def drop(self, name: str) -> None:
        slot = self.slots.get(name)
        if slot is None:
            return
        self._journal.drop(self.objects, name)
        self._journal.drop(self.slots, name)
        self.gpus.drop(slot)
        self._spare.append(slot)
        self._journal.note(self._spare.pop)
        self._journal.set(self, "_ranks", None)
        self._journal.set(self, "_capacity", None)
        self._rename(slot, "")
        self._domains.drop(slot)
        for owner, column in self._arrays():
            self._journal.cell(getattr(owner, column), slot, 0)

    def claim(self, held: Request, there: Iterable[tuple[str, Key, int]]) -> None:
        """`there`: (node, job, how many workers of that kind the job has there)."""
        one, counts = Claim(1, held), dict[str, int]()
        for name, key, workers in there:
            claims = self.claims.get(name)
            if claims is None:
                claims = {}
                self._journal.put(self.claims, name, claims)
            self._journal.put(claims, key, one if workers == 1 else Claim(workers, held))
            counts[name] = counts.get(name, 0) + workers
        for name, workers in counts.items():
            self._shift(name, Claim(workers, held), -1, lasting=False)

    def unclaim(self, name: str, key: Key) -> None:
        claim = self.claims[name][key]
        self._journal.drop(self.claims[name], key)
        if not self.claims[name]:
            self._journal.drop(self.claims, name)
        self._shift(name, claim, 1, lasting=False)

    def take(self, name: str, holder: Holder, taken: ForeignClaim) -> None:
        if name not in self.others:
            self._journal.put(self.others, name, {})
        self._journal.put(self.others[name], holder, taken)
        self._shift(name, taken.claim, -1, lasting=not taken.terminating)

    def give_back(self, name: str, holder: Holder) -> None:
        taken = self.others[name][holder]
        self._journal.drop(self.others[name], holder)
        if not self.others[name]:
            self._journal.drop(self.others, name)
        self._shift(name, taken.claim, 1, lasting=not taken.terminating)

    def acquire(self, request: Request) -> None:
        """Keep columns for requests like this one until as many `release`s."""
        size = len(self.ready)
        if request.filter not in WHOLE_GPUS:  # those have columns from when they need them
            self._use(self.columns, request.filter, lambda: GpuView(_zeros(size), _zeros(size)), self._fill_gpus)
        self._use(
            self.eligible, request.nodes, lambda: EligibleNodes(np.zeros(size, dtype=np.bool_)), self._fill_eligible
        )
        for name, _ in request.extended:
            self._use(self.extended, name, lambda: ExtendedView(_zeros(size), _zeros(size)), self._fill_extended)

    def release(self, request: Request) -> None:
        if request.filter not in WHOLE_GPUS:
            self._leave(self.columns, request.filter)
            if request.filter not in self.columns:
                for narrowed in self._narrowed.get(request.filter, ()):
                    self._journal.drop(self.columns, narrowed)
                self._journal.drop(self._narrowed, request.filter)
        self._leave(self.eligible, request.nodes)
        for name, _ in request.extended:
            self._leave(self.extended, name)

    def mark_moved(self, name: str) -> None:
        slot = self.slots.get(name)
        if slot is not None:
            self._mark_moved(slot)

    # -- inside

    def _use(self, views: dict[K, V], wanted: K, make: Callable[[], V], fill: Callable[[V, K, int], None]) -> None:
        view = views.get(wanted)
        if view is None:
            view = self._add(views, wanted, make(), fill)
        self._journal.set(view, "users", view.users + 1)

    def _add(self, views: dict[K, V], wanted: K, view: V, fill: Callable[[V, K, int], None]) -> V:
        for slot in self.slots.values():
            fill(view, wanted, slot)
        self._journal.put(views, wanted, view)
        return view

    def _leave(self, views: dict[K, V], wanted: K) -> None:
        view = views[wanted]
        self._journal.set(view, "users", view.users - 1)
        if view.users == 0:
            self._journal.drop(views, wanted)

    def _held(self, name: str) -> Iterator[tuple[Claim, bool]]:
        """(what is held on the node, whether it lasts)."""
        for claim in self.claims.get(name, {}).values():
            yield claim, False
        for taken in self.others.get(name, {}).values():
            yield taken.claim, not taken.terminating

    def _triples(self) -> tuple[tuple[Column, Column, Column], ...]:
        """(cap, rest, free) of GPUs, cores and memory."""
        return (
            (self.usable, self.rest_gpu, self.free_gpu),
            (self.cap_cpu, self.rest_cpu, self.free_cpu),
            (self.cap_mem, self.rest_mem, self.free_mem),
        )

    def _shift(self, name: str, claim: Claim, sign: int, *, lasting: bool) -> None:
        slot = self.slots.get(name)
        if slot is None:
            return
        self._mark_moved(slot)
        self._count(slot, claim, sign, lasting)
        for resource, count in claim.request.extended:
            view = self.extended.get(resource)
            if view is not None:
                amount = sign * claim.workers * count
                self._journal.cell(view.free, slot, view.free[slot] + amount)
                if lasting:
                    self._journal.cell(view.rest, slot, view.rest[slot] + amount)
        if slot in self.gpus.mixed and claim.gpus:
            for wanted, gpus in self.columns.items():
                self._fill_gpus(gpus, wanted, slot)

    def _mark_moved(self, slot: int) -> None:
        self.moved.add(slot)
        self._journal.note(self.moved.add, slot)

    def _count(self, slot: int, claim: Claim, sign: int, lasting: bool) -> None:
        gpus, cpu, memory = claim.request.times(sign * claim.workers)
        cell = self._journal.cell
        cell(self.free_cpu, slot, self.free_cpu[slot] + cpu)
        cell(self.free_mem, slot, self.free_mem[slot] + memory)
        if gpus:
            cell(self.free_gpu, slot, self.free_gpu[slot] + gpus)
        if lasting:
            cell(self.rest_cpu, slot, self.rest_cpu[slot] + cpu)
            cell(self.rest_mem, slot, self.rest_mem[slot] + memory)
            cell(self.rest_gpu, slot, self.rest_gpu[slot] + gpus)

    def _fill_gpus(self, view: GpuView, wanted: GpuFilter, slot: int) -> None:
        name = self.names[slot]
        taken = self.others.get(name, {}).values()
        rest = self.gpus.room_beside(slot, (one.claim for one in taken if not one.terminating), wanted)
        held = chain(self.claims.get(name, {}).values(), (one.claim for one in taken))
        for column, value in ((view.rest, rest), (view.room, self.gpus.room_beside(slot, held, wanted))):
            self._journal.cell(column, slot, value)

    def _fill_extended(self, view: ExtendedView, resource: str, slot: int) -> None:
        name = self.names[slot]
        rest = free = self.objects[name].status.extended.get(resource, 0)
        for claim, lasting in self._held(name):
            amount = claim.workers * dict(claim.request.extended).get(resource, 0)
            free -= amount
            rest -= amount if lasting else 0
        self._journal.cell(view.rest, slot, rest)
        self._journal.cell(view.free, slot, free)

    def _fill_eligible(self, view: EligibleNodes, nodes: NodeFilter, slot: int) -> None:
        node = self.objects[self.names[slot]]
        self._journal.cell(view.open, slot, node.status.ready and nodes.admits(node))

    def _new_slot(self, name: str) -> int:
        if not self._spare:
            self._grow()
        slot = self._spare.pop()
        self._journal.note(self._spare.append, slot)
        self._journal.set(self, "_ranks", None)
        self._rename(slot, name)
        self._journal.put(self.slots, name, slot)
        self.mark_moved(name)
        return slot

    def _rename(self, slot: int, name: str) -> None:
        self._journal.note(self.names.__setitem__, slot, self.names[slot])
        self.names[slot] = name

    def _arrays(self) -> Iterator[tuple[NodeTable | View, str]]:
        """(owner, attribute) of every column."""
        yield from ((self, name) for name in (*_COLUMNS, "ready"))
        views = (self.columns, self.extended, self.eligible, self._domains.views)
        for view in chain[View](*(one.values() for one in views)):
            yield from ((view, name) for name in view.arrays)

    def _grow(self) -> None:
        """Columns are replaced, never resized in place: an undo finds the old ones untouched."""
        old = len(self.ready)
        more = max(8, old // 2)
        for owner, name in self._arrays():
            array = getattr(owner, name)
            self._journal.set(owner, name, np.concatenate([array, np.zeros(more, dtype=array.dtype)]))
        self._journal.set(self, "names", self.names + [""] * more)
        self._journal.set(self, "_spare", list(range(old + more - 1, old - 1, -1)))


def _zeros(size: int) -> Column:
    return np.zeros(size, dtype=np.int64)
