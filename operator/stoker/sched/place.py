"""Where a request goes: best fit over the columns, and what a reservation keeps free for a gang that waits.

Owns the search; changes nothing but the Keep it is given. Called by `decide` and `explain`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.spec.job import Placed

from .columns import Column, Mask, within
from .expected_ends import ExpectedEnds
from .gpu_groups import Claim
from .nodes import NodeTable
from .request import GpuFilter, Request
from .topology import crowding, likeliest, narrowed

Spread = tuple[tuple[int, int], ...]
"""(slot, workers) of one gang."""
_NOW, _KEPT, _SOONEST = (rule << 28 for rule in range(3))
"""By which a reservation chooses a node, the first before all others; the last with seconds besides."""
_NONE = (0, 0, 0)


class Room(NamedTuple):
    """What there is for a request, per slot."""

    gpu: Column
    cpu: Column
    memory: Column
    extended: tuple[Column, ...]
    """In the order of the request's."""

    def wanted(self, request: Request) -> list[tuple[int, Column]]:
        """(need per worker, what there is) of all that the request asks for."""
        found = [(request.gpus, self.gpu)] if request.gpus else []
        if request.cpu:
            found.append((request.cpu, self.cpu))
        if request.memory:
            found.append((request.memory, self.memory))
        if request.extended:
            found += [(count, column) for (_, count), column in zip(request.extended, self.extended, strict=True)]
        return found


class Keep:
    """What reservations keep free of the nodes. Shape: one entry per slot."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._kept: dict[int, tuple[int, int, int]] = {}
        self._columns: tuple[Column, Column, Column] | None = None
        """The same, once they were asked for."""
        self._extended: dict[str, Column] = {}
        self._mixed: dict[int, list[Claim]] = {}  # slot with GPUs that differ -> what is kept there

    def add(self, slot: int, workers: int, request: Request) -> None:
        had = self._kept.get(slot, _NONE)
        kept = had[0] + workers * request.gpus, had[1] + workers * request.cpu, had[2] + workers * request.memory
        self._kept[slot] = kept
        if self._columns is not None:
            for column, now in zip(self._columns, kept, strict=True):
                column[slot] = now
        for resource, count in request.extended:
            self._extended.setdefault(resource, np.zeros_like(self.gpu))[slot] += workers * count
        if request.gpus and slot in self._table.gpus.mixed:
            self._mixed.setdefault(slot, []).append(Claim(workers, request))

    @property
    def slots(self) -> KeysView[int]:
        """Where something is kept."""
        return self._kept.keys()

    def of(self, slot: int) -> tuple[int, int, int]:
        """GPUs, cores and memory that are kept there."""
        return self._kept.get(slot, _NONE)

    @property
    def gpu(self) -> Column:
        return self._all[0]

    @property
    def cpu(self) -> Column:
        return self._all[1]

    @property
    def memory(self) -> Column:
        return self._all[2]

    @property
    def _all(self) -> tuple[Column, Column, Column]:
        if self._columns is None:
            gpu, cpu, memory = np.zeros((3, len(self._table.ready)), dtype=np.int64)
            for slot, kept in self._kept.items():
                gpu[slot], cpu[slot], memory[slot] = kept
            self._columns = gpu, cpu, memory
        return self._columns

    def leave(self, resource: str, there: Column) -> Column:
        """Of an extended resource."""
        kept = self._extended.get(resource)
        return there if kept is None else there - kept

    def free_for(self, wanted: GpuFilter) -> Column:
        """NodeTable.free_for less what is kept.

        Of a mixed node, a request that can't get kept GPUs loses nothing, and one that might get them only what
        its holders don't need: the agent may pick either kind for it.
        """
        before = self._table.free_for(wanted)
        free = before - self.gpu
        for slot, claims in self._mixed.items():
            free[slot] = min([int(before[slot]), *self._left(slot, claims, wanted)])
        return free

    def most_for(self, wanted: GpuFilter) -> Column:
        """No less than `free_for` has, for these GPUs or those of one type among them."""
        before = self._table.free_for(wanted)
        free = before - self.gpu
        mixed = list(self._mixed)
        free[mixed] = before[mixed]
        return free

    def _left(self, slot: int, claims: list[Claim], wanted: GpuFilter) -> Iterator[int]:
        table = self._table
        for kept in {claim.request.filter for claim in claims}:
            if table.gpus.overlap(slot, wanted, kept):
                held = sum(claim.gpus for claim in claims if table.gpus.overlap(slot, kept, claim.request.filter))
                yield int(table.free_for(kept)[slot]) - held


def place(
    table: NodeTable,
    request: Request,
    avoid: Collection[str] = (),
    keep: Keep | None = None,
    room: Room | None = None,
) -> Spread | None:
    """The best fit for the whole gang right now, or with `room` once so much is there; None: there is none.

    As few nodes as can be; among those the fullest that still fit (fewest free GPUs, then those of the fullest domain
    of the topology, then free cores, then name), so that whole nodes and domains stay whole. Cost: O(nodes) in numpy,
    `tools/bench/sched.py`.
    """
    free = free_room(table, request, keep) if room is None else room
    if request.workers == 1:
        return _place_one(table, request, avoid, free)
    fits = narrowed(table, request.near, request.workers, fitting(table, request, avoid, free))
    slots = np.flatnonzero(fits)
    counts = fits[slots]
    if int(counts.sum()) < request.workers:
        return None
    tight = tightness(table, slots)
    order = np.lexsort((tight, -counts))
    slots, counts, tight = slots[order], counts[order], tight[order]
    before = np.cumsum(counts) - counts  # workers on the nodes ahead
    last = int(np.searchsorted(before, request.workers, side="left")) - 1
    spread = [(int(slot), int(count)) for slot, count in zip(slots[:last], counts[:last], strict=True)]
    rest = request.workers - int(before[last])
    # The last node takes the rest: not the next largest, but the fullest on which the rest fits.
    fine = np.flatnonzero(counts[last:] >= rest) + last
    spread.append((int(slots[fine[tight[fine].argmin()]]), rest))
    return tuple(spread)


def _place_one(table: NodeTable, request: Request, avoid: Collection[str], free: Room) -> Spread | None:
    slots = _slots_for_one(request, without(table, table.open_for(request.nodes), avoid), free)
    if not len(slots):
        return None
    best = 0 if len(slots) == 1 else tightness(table, slots).argmin()
    return ((int(slots[best]), 1),)


def fits_somewhere(table: NodeTable, request: Request, avoid: Collection[str] = ()) -> bool:
    """`place` finds room now. Cost: less, for one worker."""
    if request.workers > 1:
        return place(table, request, avoid) is not None
    is_open = without(table, table.open_for(request.nodes), avoid)
    return len(_slots_for_one(request, is_open, free_room(table, request, None))) > 0


def free_room(table: NodeTable, request: Request, keep: Keep | None) -> Room:
    """What is free now, less what is kept for others."""
    extended = tuple([table.extended[name].free for name, _ in request.extended]) if request.extended else ()
    if keep is None:
        return Room(table.free_for(request.filter), table.free_cpu, table.free_mem, extended)
    return Room(
        keep.free_for(request.filter),
        table.free_cpu - keep.cpu,
        table.free_mem - keep.memory,
        tuple(keep.leave(name, free) for (name, _), free in zip(request.extended, extended, strict=True)),
    )


def fitting(table: NodeTable, request: Request, avoid: Collection[str], room: Room) -> Column:
    """Workers of the request (at most all) that each slot takes, with so much room."""
    is_open = without(table, table.open_for(request.nodes), avoid)
    if request.workers == 1:
        return _one_fits(request, is_open, room).astype(np.int64)
    fits = np.where(is_open, request.workers, 0)
    for need, column in room.wanted(request):
        np.minimum(fits, column // need, out=fits)
    return np.maximum(fits, 0)


def _one_fits(request: Request, is_open: Mask, room: Room) -> Mask:
    # A need of zero is met even where accounting is negative (a node that shrank under its jobs).
    for need, column in room.wanted(request):
        is_open = is_open & (column >= need)
    return is_open


def _slots_for_one(request: Request, is_open: Mask, room: Room) -> NDArray[np.intp]:
    """Where `_one_fits`. Cost: less where that is nowhere, or on few."""
    slots: NDArray[np.intp] | None = None
    for need, column in room.wanted(request):
        slots = (is_open & (column >= need)).nonzero()[0] if slots is None else slots[column[slots] >= need]
        if not len(slots):
            break
    return is_open.nonzero()[0] if slots is None else slots


def capacity(table: NodeTable, request: Request, avoid: Collection[str] = (), keep: Keep | None = None) -> Column:
    """Workers that each slot would take were no job there (less what is kept for others).

    Pods outside Stoker count unless they are terminating: they may stay forever.
    """
    return fitting(table, request, avoid, _room_of_rest(table, request, keep))


def _room_of_rest(table: NodeTable, request: Request, keep: Keep | None) -> Room:
    room = Room(
        table.rest_for(request.filter),
        table.rest_cpu,
        table.rest_mem,
        tuple([table.extended[name].rest for name, _ in request.extended]) if request.extended else (),
    )
    if keep is None:
        return room
    return Room(
        room.gpu - keep.gpu,
        room.cpu - keep.cpu,
        room.memory - keep.memory,
        tuple(keep.leave(name, rest) for (name, _), rest in zip(request.extended, room.extended, strict=True)),
    )


class Wanted(NamedTuple):
    """What `reserve` looks for room for."""

    request: Request
    avoid: Collection[str]
    stay: tuple[str, ...]
    """The nodes that are kept for it already."""


class Reserved(NamedTuple):
    spread: Spread
    start_s: float
    """Until it is expected to start."""
    idle_s: float
    """GPU-seconds that are expected to be idle until then."""
    settled: bool
    """As a Reservation's."""


def reserve(table: NodeTable, wanted: Wanted, keep: Keep | None, ends: ExpectedEnds, now_s: float) -> Reserved | None:
    """The nodes to keep free, beside `keep`, for a gang that waits; None if it could not run there.

    Chosen worker by worker: first where one fits now, then where nodes are kept for the gang already, then where room
    gets free soonest; among equals with most GPUs free. Chosen anew each time. That is stable enough to end the wait:
    jobs behind take nothing of the chosen nodes, and what the best set has free never shrinks by the first two rules.
    """
    request = wanted.request
    if request.workers == 1 and not request.near.required:
        return _reserve_one(table, wanted, keep, ends, now_s)
    could = capacity(table, request, wanted.avoid, keep)
    free = free_room(table, request, keep)
    now = fitting(table, request, wanted.avoid, free)
    kept: Mask | None = None
    if wanted.stay or request.near.required:
        kept = np.zeros(len(could), dtype=np.bool_)
        kept[[table.slots[name] for name in wanted.stay if name in table.slots]] = True
    # A gang that has nodes already stays in their domain while that could hold it.
    if kept is not None and request.near.required:
        if int(could.sum()) < request.workers:
            return None
        most = now + 2 * request.workers * (kept & (could > 0))
        could = likeliest(table, request.near, request.workers, could, most)
    now = np.minimum(now, could)
    at = could.nonzero()[0]
    counts = could[at]
    at = np.repeat(at, counts)  # one entry per worker that a slot could take
    nth = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    if len(at) < request.workers:
        return None
    there = free.gpu[at]
    waits = ends.waits(at, (nth + 1) * request.gpus - there, now_s)
    there = within(there if request.gpus else free.cpu[at] // 1000, 0, 255)
    # Layout: 2 bits of rule, 28 of seconds, 8 of what is free, 18 of rank, 7 of worker: the smallest are the best.
    rule = np.minimum(waits, 2**28 - 1).astype(np.int64) | _SOONEST
    if kept is not None:
        rule[kept[at]] = _KEPT
    rule[nth < now[at]] = _NOW
    worth = (rule << 33) | ((255 - there) << 25) | (table.ranks[at] << 7) | np.minimum(nth, 127)
    best = np.argpartition(worth, request.workers - 1)[: request.workers]
    nth = nth[best]
    found, workers = np.unique(at[best], return_counts=True)
    spread = tuple(zip(found.tolist(), workers.tolist(), strict=True))
    start_s = float(np.where(rule[best] == _NOW, 0.0, waits[best]).max())
    idle_s = 0.0
    if start_s and request.gpus and not wanted.stay:  # who has nodes already is not asked again
        at = at[best]
        short = ((nth * request.gpus + 1 - free.gpu[at])[:, None] + np.arange(request.gpus)).ravel()
        each = waits[best] if request.gpus == 1 else ends.waits(at.repeat(request.gpus), short, now_s)
        ready = np.where(short > 0, each, 0.0)
        idle_s = float(np.maximum(start_s - ready, 0.0).sum())
    return Reserved(spread, start_s, idle_s, np.count_nonzero(rule < _SOONEST) == request.workers)


def _reserve_one(
    table: NodeTable, wanted: Wanted, keep: Keep | None, ends: ExpectedEnds, now_s: float
) -> Reserved | None:
    """As `reserve` of a single worker. Cost: half."""
    request, gpus = wanted.request, wanted.request.gpus
    is_open = without(table, table.open_for(request.nodes), wanted.avoid)
    could = _one_fits(request, is_open, _room_of_rest(table, request, keep))
    free = free_room(table, request, keep)
    at = _slots_for_one(request, could, free)
    fits_now, settled, waits = bool(len(at)), len(at) < 2, None
    if not fits_now and wanted.stay:
        at = np.array([table.slots[name] for name in wanted.stay if name in table.slots], dtype=np.intp)
        at = at[could[at]]
    if not len(at):
        at, settled = could.nonzero()[0], False
        if not len(at):
            return None
        waits = ends.waits(at, gpus - free.gpu[at], now_s)
    # Layout: as in `reserve`.
    there = free.gpu[at] if gpus else free.cpu[at] // 1000
    worth = ((255 - within(there, 0, 255)) << 18) | table.ranks[at]
    if waits is not None:
        worth |= np.minimum(waits, 2**28 - 1).astype(np.int64) << 26
    best = int(worth.argmin())
    slot, start_s, idle_s = int(at[best]), 0.0, 0.0
    if not fits_now:
        short = gpus - int(free.gpu[slot])
        start_s = float(ends.waits(at[best : best + 1], np.array([short]), now_s)[0] if waits is None else waits[best])
        if start_s and gpus > 1 and not wanted.stay:  # a single one idles only from then on
            nth = np.arange(short - gpus + 1, short + 1)
            ready = np.where(nth > 0, ends.waits(np.full(gpus, slot), nth, now_s), 0.0)
            idle_s = float(np.maximum(start_s - ready, 0.0).sum())
    return Reserved(((slot, 1),), start_s, idle_s, settled)


def fits_one(table: NodeTable, request: Request, slot: int, keep: Keep | None) -> bool:
    """A worker may find room there now, beside what is kept."""
    _, gpus, cpu, memory, *_ = request
    kept = _NONE if keep is None else keep.of(slot)
    if (gpus and table.free_gpu[slot] - kept[0] < gpus) or (cpu and table.free_cpu[slot] - kept[1] < cpu):
        return False
    if memory and table.free_mem[slot] - kept[2] < memory:
        return False
    if not gpus or table.gpus.is_any(request.filter):
        return True
    return bool(table.view(request.filter).room[slot] - kept[0] >= gpus)


def could_on(table: NodeTable, request: Request, slot: int, keep: Keep | None) -> int:
    """As `capacity` of one slot that is open to the request."""
    gpus, cpu, memory = _NONE if keep is None else keep.of(slot)
    most = [request.workers]
    most += [(int(table.rest_for(request.filter)[slot]) - gpus) // request.gpus] if request.gpus else []
    most += [(int(table.rest_cpu[slot]) - cpu) // request.cpu] if request.cpu else []
    most += [(int(table.rest_mem[slot]) - memory) // request.memory] if request.memory else []
    for name, count in request.extended:
        rest = table.extended[name].rest
        most.append(int((rest if keep is None else keep.leave(name, rest))[slot]) // count)
    return max(min(most), 0)


def without(table: NodeTable, mask: Mask, avoid: Collection[str]) -> Mask:
    if not avoid:
        return mask
    slots = [table.slots[name] for name in avoid if name in table.slots]
    if slots:
        mask = mask.copy()
        mask[slots] = False
    return mask


def tightness(table: NodeTable, slots: NDArray[np.intp]) -> Column:
    """Small = full. All distinct. Layout: 20 bits of free GPUs, 24 of free thousandths of a core, 18 of rank; with a
    topology 12 of free GPUs, 16 of the domain's, 16 of free tenths of a core, 18 of rank."""
    if table.levels:
        gpus, cores = within(table.free_gpu[slots], 0, 2**12 - 1), within(table.free_cpu[slots] // 100, 0, 2**16 - 1)
        domain = within(crowding(table)[slots], 0, 2**16 - 1)
        in_domains: Column = (gpus << 50) | (domain << 34) | (cores << 18) | table.ranks[slots]
        return in_domains
    gpus = within(table.free_gpu[slots], 0, 2**20 - 1)
    cores = within(table.free_cpu[slots], 0, 2**24 - 1)
    tight: Column = (gpus << 42) | (cores << 18) | table.ranks[slots]
    return tight


def placed(table: NodeTable, spread: Spread) -> tuple[Placed, ...]:
    """Workers in order, node by node. Neighbouring ranks share a node."""
    nodes = [table.names[slot] for slot, workers in spread for _ in range(workers)]
    return tuple([_placed(i, node) for i, node in enumerate(nodes)])


@lru_cache(maxsize=2**14)
def _placed(worker: int, node: str) -> Placed:
    """Those of one place share one object."""
    return Placed(worker=worker, node=node)
