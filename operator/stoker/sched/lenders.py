"""What each part of the queue tree holds beyond its guarantee: the running jobs that it can be made to give back.

Owns which these are: of each queue the cheapest, as long as it holds more than its guarantee without those before; and
of what the children of a queue can give back the cheapest again, as long as that is so of their parent. Worked out
for all queues at once, level by level from below. Called by `stoppable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .columns import Column, Mask
from .leaving import Leaving
from .queue_state import QueueState
from .state import SchedulerState


class Asked(NamedTuple):
    """What is asked back."""

    kinds: tuple[int, ...]
    """Of Totals: of any of these."""
    gpu_type: str
    """Only by those that hold GPUs of the type, and by what is counted for it; empty: of whatever type."""


class Lent(NamedTuple):
    """The jobs that parts of one level of the tree (0: the top) can be made to give back."""

    rows: Column
    part: Column
    """Which part each is in: its number."""
    above: Column
    """The number of what that part is a child of; -1: of nothing."""


class Lenders:
    """Beside those that leave already."""

    def __init__(self, state: SchedulerState, leaving: Leaving, rank: Column) -> None:
        """`rank`: of the rows of `RunningJobs`, the cheapest first."""
        self._state, self._leaving, self._rank = state, leaving, rank
        self._numbers: dict[str, int] = {}
        self._parts: list[QueueState] = []
        paths = [self._path(name) for name in state.running.queues]
        depth = max(map(len, paths), default=0)
        self._above = np.full((depth, len(paths)), -1, dtype=np.int64)
        """Level, queue's number among the running → the number of the part that it is in, or is."""
        for at, path in enumerate(paths):
            self._above[: len(path), at] = path
        self._lent: dict[Asked, list[Lent]] = {}

    def to(self, queue: QueueState, above: QueueState | None, asked: Asked) -> Column:
        """What the other children of `above` can be made to give back, to one of which the queue is, or belongs."""
        level = 0 if above is None else len(above.path)
        lent = self._of(asked)
        if level >= len(lent):
            return np.zeros(0, dtype=np.int64)
        rows, part, over = lent[level]
        own = self._numbers.get(queue.path[-1 - level].name, -1)
        common = -1 if above is None else self._numbers.get(above.name, -2)
        found: Column = rows[(over == common) & (part != own)]
        return found

    def is_below(self, rows: Column, queue: QueueState) -> Mask:
        """Which of them are of the queue, or of one below it."""
        level, number = len(queue.path) - 1, self._numbers.get(queue.name, -1)
        if number < 0 or level >= len(self._above):
            return np.zeros(len(rows), dtype=np.bool_)
        found: Mask = self._above[level, self._state.running.queue[rows]] == number
        return found

    def forget(self) -> None:
        """What is held has changed."""
        self._lent.clear()

    def _path(self, name: str) -> list[int]:
        """From the top."""
        queue = self._state.queues.get(name)
        found = []
        for one in reversed(queue.path if queue is not None else ()):
            if one.name not in self._numbers:
                self._numbers[one.name] = len(self._parts)
                self._parts.append(one)
            found.append(self._numbers[one.name])
        return found

    def _of(self, asked: Asked) -> list[Lent]:
        known = self._lent.get(asked)
        if known is None:
            known = self._lent[asked] = list(self._levels(asked))[::-1]
        return known

    def _levels(self, asked: Asked) -> Iterator[Lent]:
        """The lowest level first."""
        jobs = self._state.running
        rows = jobs.rows
        if asked.gpu_type:
            typed = [(one := jobs.jobs[row]) is not None and one.gpu_type == asked.gpu_type for row in rows]
            rows = rows[np.array(typed, dtype=np.bool_)]
        rows = rows[np.argsort(self._rank[rows])]
        for level in range(len(self._above) - 1, -1, -1):
            part = self._above[level, jobs.queue[rows]]
            order = np.argsort(part, kind="stable")
            rows, part = rows[order], part[order]  # of each part the cheapest first
            if 0 in asked.kinds and not asked.gpu_type:
                beyond = self._beyond_types(rows, part)
                rows, part = rows[beyond], part[beyond]
            numbers, begin, counts = np.unique(part, return_index=True, return_counts=True)
            lends: Mask = np.zeros(len(rows), dtype=np.bool_)
            for kind in asked.kinds:
                spare = np.array([self._spare(number, kind, asked.gpu_type) for number in numbers.tolist()])
                given = np.cumsum(jobs.totals[kind][rows])
                before = given - jobs.totals[kind][rows]
                lends |= before - np.repeat(before[begin], counts) < np.repeat(spare, counts)
            lends |= part < 0
            first = _until_one_fails(lends, begin, counts)
            rows, part = rows[first], part[first]
            inner = part >= 0
            above = self._above[level - 1, jobs.queue[rows]] if level else np.full(len(rows), -1)
            yield Lent(rows[inner], part[inner], above[inner])
            rows = rows[np.argsort(self._rank[rows])]

    def _beyond_types(self, rows: Column, part: Column) -> Mask:
        """Which of them are not on GPUs of a type of which their part holds no more than is guaranteed to it, without
        those before."""
        jobs = self._state.running
        found: Mask = np.ones(len(rows), dtype=np.bool_)
        for number in np.unique(part[part >= 0]).tolist():
            queue = self._parts[number]
            left = {name: self._spare(number, 0, name) for name, account in queue.typed.items() if account.guarantee[0]}
            for at in np.flatnonzero(part == number) if left else ():
                entry = jobs.jobs[rows[at]]
                if entry is not None and entry.gpu_type in left:
                    found[at] = left[entry.gpu_type] > 0
                    left[entry.gpu_type] -= int(jobs.totals[0][rows[at]])
        return found

    def _spare(self, number: int, kind: int, gpu_type: str) -> float:
        """What the part holds beyond its guarantee."""
        queue = self._parts[number] if number >= 0 else None
        account = queue.typed.get(gpu_type) if queue is not None and gpu_type else queue
        if queue is None or account is None:
            return np.inf
        return queue.borrowed(account, kind, self._leaving.queues)


def _until_one_fails(lends: Mask, begin: Column, counts: Column) -> Mask:
    """Of each part those before the first that does not lend."""
    fails = np.cumsum(~lends)
    before: Column = (fails - ~lends)[begin]
    found: Mask = fails == np.repeat(before, counts)
    return found
