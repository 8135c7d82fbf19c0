"""What the victims of claims will leave behind, per node and per queue; and pods of deleted jobs, in their queues.

Owns these sums, made anew for each pass of `decide` that preempts. Called by `preempt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.spec.job import Placed

from .columns import Column
from .entries import Entry, given_up
from .place import Keep, Room, free_room
from .request import NOTHING, Request, Totals
from .state import SchedulerState


class Leaving:
    """Shape: one entry per slot. GPUs of one node are taken to be of one type: see `NodeGpus.mixed`."""

    def __init__(self, state: SchedulerState) -> None:
        self._table = state.nodes
        self.gpu, self.cpu, self.memory = (np.zeros_like(state.nodes.usable) for _ in range(3))
        self._extended: dict[str, Column] = {}
        self._queues: dict[str, Totals] = {}
        for account, amounts in state.deleted_jobs.charged():
            self._queues[account.name] = self._queues.get(account.name, NOTHING).plus(amounts, -1)
        self._uncounted: list[tuple[Entry, Mapping[str, int], int]] = []
        for key in state.victims:
            entry, victim = state.entries.get(key), state.claims.keeps.get(key)
            if entry is None or entry.pending or (victim is not None and entry.attempt != victim.attempt):
                continue
            self.add(entry, keeps=() if victim is None else victim.keeps)

    def add(self, entry: Entry, sign: int = 1, keeps: Sequence[Placed] = ()) -> None:
        """`keeps`: where it goes on."""
        self._uncounted.append((entry, given_up(entry, keeps), sign))

    @property
    def queues(self) -> dict[str, Totals]:
        """Account → what will be held no more; negative, to be added to what is kept of its limit."""
        self._count_all()
        return self._queues

    def _count_all(self) -> None:
        """When it is asked for: mostly it is not again. Jobs of one queue that ask for the same count together."""
        alike: dict[tuple[int, str, str], tuple[Entry, dict[str, int]]] = {}
        for entry, gone, sign in self._uncounted:
            kind = id(entry.request), entry.queue.name, entry.gpu_type
            if kind not in alike:
                alike[kind] = entry, {}
            there = alike[kind][1]
            for name, workers in gone.items():
                there[name] = there.get(name, 0) + sign * workers
        for entry, there in alike.values():
            self._count(entry, there)
        self._uncounted.clear()

    def _count(self, entry: Entry, workers_on: Mapping[str, int]) -> None:
        request, known = entry.request, [name for name in workers_on if name in self._table.slots]
        slots = np.array([self._table.slots[name] for name in known], dtype=np.int64)
        workers = np.array([workers_on[name] for name in known], dtype=np.int64)
        self.gpu[slots] += request.gpus * workers
        self.cpu[slots] += request.cpu * workers
        self.memory[slots] += request.memory * workers
        for resource, count in request.extended:
            self._extended.setdefault(resource, np.zeros_like(self.gpu))[slots] += count * workers
        gone = request.times(sum(workers_on.values()))
        for account in entry.accounts:
            self._queues[account.name] = self._queues.get(account.name, NOTHING).plus(gone, -1)

    def room(self, request: Request, keep: Keep | None) -> Room:
        """What is free once they have gone, less what is kept for others."""
        self._count_all()
        room, table = free_room(table=self._table, request=request, keep=keep), self._table
        gpu = room.gpu + self.gpu
        if not table.gpus.is_any(request.filter):
            fitting = table.view(request.filter).room
            gpu = np.minimum(gpu, fitting if keep is None else fitting - keep.gpu)
        extended = tuple(
            column + self._extended[name] if name in self._extended else column
            for (name, _), column in zip(request.extended, room.extended, strict=True)
        )
        return Room(gpu, room.cpu + self.cpu, room.memory + self.memory, extended)
