"""What nodes have free that a pass of `decide` looks at: the needs that a worker is to be within, to find room there.

Owns these rows of (GPUs, cores, memory), worked out per kind of lanes as they are asked for. Called by `wake` and
`decide`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import Column
from .place import Keep
from .request import ANY_GPU
from .reservations import Kept
from .state import SchedulerState
from .waiters import Kind, Needs, is_within

_FEW = 64
_ROWS = 16


class Look(NamedTuple):
    """Which room a pass looks at."""

    freed: bool
    """What got free since the last decide."""
    kept: bool
    """What reservations keep, or did."""


class FreedNodes:
    def __init__(self, state: SchedulerState, look: Look) -> None:
        changes = state.changes
        self.queues = changes.freed_queues if look.freed else set()
        names = changes.freed_nodes if look.freed else set()
        self.held = frozenset(changes.kept_queues if look.kept else ())
        """Queues for whose lanes all nodes are looked at."""
        self._some = _Nodes(state, names | changes.kept_nodes if look.kept else names)
        self._all = _Nodes(state, state.nodes.slots if self.held else ())

    def started(self) -> None:
        """A job took something."""
        self._some.started()
        self._all.started()

    def in_vain(self) -> None:
        """A job found less than what the rows say."""
        self._some.clear()
        self._all.clear()

    def rows(self, kind: Kind, queue: str) -> Rows:
        """For the queue's lanes: on the nodes that got free or are kept, or if it is held on all."""
        return (self._all if queue in self.held else self._some).rows(kind)


class _Nodes:
    def __init__(self, state: SchedulerState, names: Collection[str]) -> None:
        self.table = state.nodes
        slots = self.table.slots
        self.slots = np.array([slots[name] for name in names if name in slots], dtype=np.intp)
        self.some = len(self.slots) > 0
        self._rows: dict[Kind, Rows] = {}

    def started(self) -> None:
        if len(self.slots) <= _FEW:
            self.clear()

    def clear(self) -> None:
        for rows in self._rows.values():
            rows.clear()

    def rows(self, kind: Kind) -> Rows:
        found = self._rows.get(kind)
        if found is None:
            if kind.filter is not None and kind.filter != ANY_GPU and self.table.gpus.is_any(kind.filter):
                found = self.rows(kind._replace(filter=ANY_GPU))
            else:
                found = Rows(self, kind)
            self._rows[kind] = found
        return found


class Rows:
    """A worker of the kind that is within none of them fits on no such node."""

    def __init__(self, nodes: _Nodes, kind: Kind) -> None:
        self._nodes, self._kind = nodes, kind
        self._found: dict[tuple[Kept | None, int], list[Needs]] = {}
        self._free: dict[int, Needs] | None = None
        """Slot → what is free there, where that is known and they are few."""
        self.at_first = self.beside()
        """As the pass began."""

    def clear(self) -> None:
        self._found.clear()
        self._free = None

    def beside(self, kept: Kept | None = None) -> list[Needs]:
        of = kept, 0 if kept is None else kept.count
        found = self._found.get(of)
        if found is None:
            found = self._found[of] = self._work_out(None if kept is None else kept.nodes) if self._nodes.some else []
        return found

    def _work_out(self, keep: Keep | None) -> list[Needs]:
        if keep is not None and not self._kind.extended:
            everywhere, free = self.beside(), self._free
            if free is not None:
                taken = free.keys() & keep.slots
                if not taken:
                    return everywhere
                rows = {row if slot not in taken else self._left(keep, slot, row) for slot, row in free.items()}
                return _largest([row for row in rows if row[0] > 0 or self._kind.filter is None])
        slots, columns = self._columns(keep)
        if not len(slots):
            return []
        if len(slots) <= _FEW:
            found = list(zip(*(column.tolist() for column in columns), strict=True))
            rows = set(found)
            if len(rows) <= _ROWS:
                self._free = dict(zip(slots.tolist(), found, strict=True)) if keep is None else self._free
                return _largest(rows)
        gpu, cpu, memory = columns
        return [(int(count), int(cpu[gpu == count].max()), int(memory[gpu == count].max())) for count in np.unique(gpu)]

    def _columns(self, keep: Keep | None) -> tuple[NDArray[np.intp], list[Column]]:
        """Slots where such workers may go, and what is free there."""
        table, slots, kind = self._nodes.table, self._nodes.slots, self._kind
        slots = slots[table.open_for(kind.nodes)[slots]]
        for resource, count in kind.extended:
            free = table.extended[resource].free
            slots = slots[(free if keep is None else keep.leave(resource, free))[slots] >= count]
        if kind.filter is not None:
            gpus = table.free_for(kind.filter) if keep is None else keep.most_for(kind.filter)
            slots = slots[gpus[slots] > 0]
        else:
            gpus = table.free_gpu
        if kind.avoid:
            slots = slots[[table.names[slot] not in kind.avoid for slot in slots]]
        columns = [gpus[slots], table.free_cpu[slots], table.free_mem[slots]]
        if keep is not None:
            columns[1:] = columns[1] - keep.cpu[slots], columns[2] - keep.memory[slots]
        return slots, columns

    def _left(self, keep: Keep, slot: int, row: Needs) -> Needs:
        """As `_columns`, of one slot."""
        gpus, cpu, memory = keep.of(slot)
        if self._kind.filter is None or slot in self._nodes.table.gpus.mixed:
            gpus = 0
        return row[0] - gpus, row[1] - cpu, row[2] - memory


def _largest(rows: Collection[Needs]) -> list[Needs]:
    return [one for one in rows if not any(one != other and is_within(one, other) for other in rows)]
