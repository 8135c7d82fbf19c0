"""What the victims of claims will leave behind: per node and per queue.

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
        """When it is asked for: mostly it is not again."""
        for entry, gone, sign in self._uncounted:
            self._count(entry, gone, sign)
        self._uncounted.clear()

    def _count(self, entry: Entry, workers_on: Mapping[str, int], sign: int) -> None:
        request = entry.request
        for name, workers in workers_on.items():
            slot = self._table.slots.get(name)
            if slot is None:
                continue
            gpus, cpu, memory = request.times(sign * workers)
            self.gpu[slot] += gpus
            self.cpu[slot] += cpu
            self.memory[slot] += memory
            for resource, count in request.extended:
                column = self._extended.setdefault(resource, np.zeros_like(self.gpu))
                column[slot] += sign * workers * count
        gone = request.times(sign * sum(workers_on.values()))
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
