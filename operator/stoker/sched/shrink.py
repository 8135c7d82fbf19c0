"""Elastic jobs that go on with fewer workers so that another job can start: which, and where they go on.

Owns that choice, tried out in a what-if: the cheapest first, each no smaller than its least, and as large as still lets
the other start. Where they make room: on all nodes of use to it, those with fewest of their workers first; if that does
not do, a job of one worker has each of `_TARGETS` such nodes tried for itself. Called by `preempt`, before any job is
stopped whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import numpy as np

from stoker.spec.job import Placed

from .columns import Mask
from .elastic import on_nodes
from .entries import Entry
from .state import SchedulerState

Keeps = dict[Entry, tuple[Placed, ...]]
"""Job that makes room → where it goes on; empty: it is stopped whole."""
_TARGETS = 16


class Shrinking:
    """In a what-if, which the caller opens and takes back."""

    def __init__(self, state: SchedulerState, now: datetime, fits: Callable[[], object]) -> None:
        """`fits`: the other job starts as things are."""
        self._state, self._now, self._fits = state, now, fits
        self._orders: dict[Entry, list[str]] = {}
        self.keeps: Keeps = {}

    def make_room(self, jobs: Sequence[Entry], useful: Mask, workers: int) -> bool:
        """Shrink them until the other job, of so many workers, starts. False: it does not though all are shrunk.
        `jobs`: elastic ones that may be stopped, cheapest first. `useful`: the slots that would take workers of the
        other job without them."""
        aims = [useful]
        if workers == 1 and useful.sum() > 1:
            for slot in np.flatnonzero(useful)[:_TARGETS]:
                aims.append(np.zeros_like(useful))
                aims[-1][slot] = True
        for aim in aims if jobs else ():
            self._restore()
            done, more = 0, 1
            while done < len(jobs):
                self._shrink(jobs[done : done + more], aim)
                done, more = done + more, 2 * more
                if self._fits():
                    return True
        return False

    def shrink_all(self, jobs: Iterable[Entry], useful: Mask) -> None:
        """To their least, and no others."""
        self._restore()
        self._shrink(jobs, useful)

    def _restore(self) -> None:
        for one in self.keeps:
            self._state.move(one, one.placement)
        self.keeps = {}

    def _shrink(self, jobs: Iterable[Entry], aim: Mask) -> None:
        for one in jobs:
            self._orders[one] = self._order(one, aim)
            if len(self._orders[one]) >= _least(one):
                self._resize(one, _least(one))

    def spare(self, stopped: Sequence[Entry] = ()) -> None:
        """The other job starts: give back to each what is not needed, the dearest first. `stopped`: those that are
        stopped whole."""
        for one in stopped:
            self.keeps.pop(one, None)
        for one in reversed(list(self.keeps)):
            self._state.move(one, one.placement)
            if self._fits():
                del self.keeps[one]
                continue
            enough, too_many = _least(one), min(len(one.placement), len(self._orders[one]) + 1)
            while too_many - enough > 1:
                workers = (enough + too_many) // 2
                self._resize(one, workers)
                if self._fits():
                    enough = workers
                else:
                    too_many = workers
            self._resize(one, enough)

    def _resize(self, one: Entry, workers: int) -> None:
        counts: dict[str, int] = {}
        for name in self._orders[one][:workers]:
            counts[name] = counts.get(name, 0) + 1
        self.keeps[one] = on_nodes(counts)
        self._state.move(one, self.keeps[one])

    def _order(self, one: Entry, aim: Mask) -> list[str]:
        """Its workers' nodes, those first where they are kept longest: not aimed at, then with most of them. Not where
        it could not start again."""
        table, avoided = self._state.nodes, one.avoided(self._now)
        is_open = table.open_for(one.request.nodes)
        found = [
            (bool(aim[slot]), -workers, name)
            for name, workers in one.workers_on.items()
            if (slot := table.slots.get(name)) is not None and is_open[slot] and name not in avoided
        ]
        return [name for _, workers, name in sorted(found) for _ in range(-workers)]


def may_shrink(entry: Entry) -> bool:
    return entry.job.spec.elastic is not None and len(entry.placement) > _least(entry)


def _least(entry: Entry) -> int:
    return entry.job.spec.least_workers
