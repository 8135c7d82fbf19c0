"""What nodes have free that a pass of `decide` looks at: the needs that a worker is to be within, to find room there.

Owns these rows of (GPUs, cores, memory), worked out per kind of lanes as they are asked for. Called by `wake` and
`decide`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

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

    def rows(self, kind: Kind) -> tuple[Rows, Rows]:
        """On the nodes that got free or are kept; on all, if some queue is held."""
        return self._some.rows(kind), self._all.rows(kind)


class _Nodes:
    def __init__(self, state: SchedulerState, names: Collection[str]) -> None:
        self.table = state.nodes
        slots = self.table.slots
        self.slots = np.array([slots[name] for name in names if name in slots], dtype=np.intp)
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
            found = self._rows[kind] = Rows(self, kind)
        return found


class Rows:
    """A worker of the kind that is within none of them fits on no such node."""

    def __init__(self, nodes: _Nodes, kind: Kind) -> None:
        self._nodes, self._kind = nodes, kind
        self._found: dict[tuple[Kept | None, int], list[Needs]] = {}

    def clear(self) -> None:
        self._found.clear()

    def beside(self, kept: Kept | None = None) -> list[Needs]:
        of = kept, 0 if kept is None else kept.count
        found = self._found.get(of)
        if found is None:
            found = self._found[of] = self._work_out(kept) if len(self._nodes.slots) else []
        return found

    def _work_out(self, kept: Kept | None) -> list[Needs]:
        table, slots, kind = self._nodes.table, self._nodes.slots, self._kind
        keep = None if kept is None else kept.nodes
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
        if not len(slots):
            return []
        columns = [gpus[slots], table.free_cpu[slots], table.free_mem[slots]]
        if keep is not None:
            columns[1:] = columns[1] - keep.cpu[slots], columns[2] - keep.memory[slots]
        rows = set(zip(*(column.tolist() for column in columns), strict=True)) if len(slots) <= _FEW else set()
        if len(rows) in range(1, _ROWS + 1):
            return [one for one in rows if not any(one != other and is_within(one, other) for other in rows)]
        gpu, cpu, memory = columns
        return [(int(count), int(cpu[gpu == count].max()), int(memory[gpu == count].max())) for count in np.unique(gpu)]
