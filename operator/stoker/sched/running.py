"""The running jobs that may be stopped for others, as columns: what each holds where, and what stopping it loses.

Owns which jobs these are and what that costs. Rows follow from the state's entries; of a change only the job is noted,
and its row made anew when the columns are next read. Called by `state` (changes) and `preempt` (reading).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.spec.job import CHECKPOINTS_CONDITION, Phase, TrainingJobStatus
from stoker.spec.meta import Key
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.outcome import Intent

from .columns import Column
from .entries import Entry
from .journal import Journal

Floats = NDArray[np.float64]

_LEAST_RESTART_S = 30.0
_CORE = 0.01
"""What a core counts, in GPUs."""
_FLOATS = ("queued_s", "began_s", "saved_s", "restart_s", "attained_s")
_INTS = ("queue", "gpus", "cpu", "memory", "urgency", "workers", "slot")
_PRODUCTS = ("all_gpus", "all_cpu", "all_memory", "weight")
_FEW = 32
"""Rows that are put in order one by one."""
_NO_ROWS: Column = np.zeros(0, dtype=np.int64)


class Held(NamedTuple):
    """What the jobs hold, one entry per job and node. Shape: (holdings,)."""

    row: Column
    slot: Column
    workers: Column


class RunningJobs:
    """Shape: one row per job; a row that is no job's has queue -1. Cost: a change O(log jobs) when it is looked at."""

    def __init__(
        self, journal: Journal, entries: Mapping[Key, Entry], victims: Mapping[Key, Key], slots: Mapping[str, int]
    ) -> None:
        """`victims`: the jobs that are stopped for a claim already. `slots`: of the nodes."""
        self._journal, self._entries, self._victims, self._slots = journal, entries, victims, slots
        self._forget()

    def _forget(self) -> None:
        self._known = False
        """The columns have been asked for: until then no change is noted."""
        self._moved: set[Key] = set()
        self._rows: dict[Key, int] = {}
        self._spare: list[int] = []
        self._ids: dict[str, int] = {}
        self._parts: dict[int, str] = {}
        """Rows of jobs whose GPUs have another name than nvidia.com/gpu → that name."""
        self._spread: dict[int, None] = {}
        """Rows of jobs that are on several nodes, or on one that is not known."""
        self._by_key: list[tuple[Key, int]] = []
        self._sorted: Column | None = None
        self._by_queue: tuple[Column, Column] | None = None
        """The rows by their queues' numbers, each queue's in the order of their keys; and where each queue's begin."""
        self.came = 0
        """How often rows have been added. Until then the others keep their order in whatever they are sorted by."""
        self.jobs: list[Entry | None] = []
        self.queue = self.gpus = self.cpu = self.memory = self.urgency = _NO_ROWS
        """Queue's number; per worker: GPUs, thousandths of a core, bytes; -priority."""
        self.all_gpus = self.all_cpu = self.all_memory = self.workers = self.slot = _NO_ROWS
        """Of all its workers; how many; its node's slot (-1: see `_spread`)."""
        self.queued_s = self.began_s = self.saved_s = self.restart_s = self.weight = self.attained_s = np.zeros(0)
        """When it was queued, when it began (infinite: not yet) and last saved; to start again; GPUs that idle
        meanwhile; GPU-seconds had in former attempts."""

    # -- changes

    def note(self, keys: Collection[Key]) -> None:
        """Something of the jobs has changed. An undo notes it too."""
        if self._known:
            self._moved.update(keys)
            self._journal.note(self._moved.update, keys)

    # -- reading

    def refresh(self) -> None:
        """To be called before the columns are read."""
        if not self._known:
            self._known = True
            self._journal.note(self._forget)
            moved: Collection[Key] = self._entries
        else:
            moved = self._moved
        come, floats, ints = list[Entry](), array("d"), array("q")
        for key in moved:
            row = self._rows.pop(key, None)
            if row is not None:
                self._drop(key, row)
            entry = self._entries.get(key)
            if entry is not None and entry.workers_on and key not in self._victims and may_be_stopped(entry):
                come.append(entry)
                floats.extend(_floats(entry))
                ints.extend(self._ints(entry))
        if come:
            self._put(come, floats, ints)
        if moved:
            self._by_queue = None
        self._moved.clear()

    def of(self, queue: str) -> Column:
        """The queue's rows, in the order of their keys."""
        number = self._ids.get(queue)
        if number is None:
            return _NO_ROWS
        rows, begin = self._grouped
        return rows[begin[number] : begin[number + 1]]

    @property
    def rows(self) -> Column:
        """All of them, in the order of their keys."""
        if self._sorted is None:
            self._sorted = np.array([row for _, row in self._by_key], dtype=np.int64)
        return self._sorted

    @property
    def queues(self) -> list[str]:
        """Those that have, or had, rows, by their numbers."""
        return list(self._ids)

    @property
    def _grouped(self) -> tuple[Column, Column]:
        if self._by_queue is None:
            rows = self.rows[np.argsort(self.queue[self.rows], kind="stable")]
            self._by_queue = rows, np.searchsorted(self.queue[rows], np.arange(len(self._ids) + 1))
        return self._by_queue

    def costs(self, now_s: float) -> Floats:
        """Of stopping each. Units: GPU-seconds; a core counts as a hundredth of a GPU."""
        costs: Floats = (np.maximum(now_s - self.saved_s, 0.0) + self.restart_s) * self.weight
        return costs

    @property
    def totals(self) -> tuple[Column, Column, Column]:
        """What each holds, in the order of Totals."""
        return self.all_gpus, self.all_cpu, self.all_memory

    def gpus_of(self, resource: str) -> Column:
        """GPUs per worker, of those that are offered by that name."""
        if not self._parts and resource == GPU_RESOURCE:
            return self.gpus
        found = self.gpus.copy() if resource == GPU_RESOURCE else np.zeros_like(self.gpus)
        for row, one in self._parts.items():
            found[row] = self.gpus[row] if one == resource else 0
        return found

    def held(self) -> Held:
        """On known nodes. Of jobs that have changed since `refresh`: as they are now."""
        moved = dict.fromkeys(self._rows[key] for key in self._moved if key in self._rows)
        counts = self.slot >= 0
        counts[list(moved)] = False
        ones = np.flatnonzero(counts & (self.queue >= 0))
        others = [
            (row, self._slots[name], workers)
            for row in {**self._spread, **moved}
            if (entry := self.jobs[row]) is not None
            for name, workers in entry.workers_on.items()
            if name in self._slots
        ]
        row, slot, workers = np.array(others, dtype=np.int64).reshape(len(others), 3).T
        return Held(
            np.concatenate([ones, row]),
            np.concatenate([self.slot[ones], slot]),
            np.concatenate([self.workers[ones], workers]),
        )

    # -- inside

    def _drop(self, key: Key, row: int) -> None:
        self.jobs[row], self.queue[row], self._sorted = None, -1, None
        self._parts.pop(row, None)
        self._spread.pop(row, None)
        self._spare.append(row)
        del self._by_key[bisect_left(self._by_key, (key, row))]

    def _put(self, come: list[Entry], floats: array[float], ints: array[int]) -> None:
        """`floats`, `ints`: theirs, one job after another."""
        if len(self._spare) < len(come):
            self._grow(len(come))
        rows = [self._spare.pop() for _ in come]
        for row, entry in zip(rows, come, strict=True):
            self._rows[entry.key], self.jobs[row] = row, entry
            if entry.request.filter.resource != GPU_RESOURCE:
                self._parts[row] = entry.request.filter.resource
        self._sorted = None
        self.came += 1
        places = [(entry.key, row) for row, entry in zip(rows, come, strict=True)]
        if len(places) < _FEW:
            for place in places:
                insort(self._by_key, place)
        else:
            self._by_key += places
            self._by_key.sort()  # O(n) where nearly all of it is sorted
        at = np.array(rows)
        columns = dict(zip(_FLOATS, np.array(floats).reshape(len(come), -1).T, strict=True))
        columns |= zip(_INTS, np.array(ints).reshape(len(come), -1).T, strict=True)
        for name, column in columns.items():
            getattr(self, name)[at] = column
        gpus, cpu, memory, workers, slot = (columns[name] for name in ("gpus", "cpu", "memory", "workers", "slot"))
        self.all_gpus[at], self.all_cpu[at], self.all_memory[at] = gpus * workers, cpu * workers, memory * workers
        self.weight[at] = self.all_gpus[at] + _CORE * self.all_cpu[at] / 1000
        self._spread |= dict.fromkeys(at[slot < 0].tolist())

    def _ints(self, entry: Entry) -> tuple[int, ...]:
        """In the order of `_INTS`."""
        request, on = entry.request, entry.workers_on
        queue = self._ids.setdefault(entry.queue.name, len(self._ids))
        slot = self._slots.get(next(iter(on)), -1) if len(on) == 1 else -1  # see `_spread`
        return (queue, *request[1:4], -entry.job.spec.priority, sum(on.values()), slot)

    def _grow(self, least: int) -> None:
        old, more = len(self.jobs), max(8, len(self.jobs) // 2, least)
        for name in (*_FLOATS, *_INTS, *_PRODUCTS):
            column = getattr(self, name)
            fill = np.full(more, -1 if name == "queue" else 0, dtype=column.dtype)
            setattr(self, name, np.concatenate([column, fill]))
        self.jobs += [None] * more
        self._spare += range(old + more - 1, old - 1, -1)


def may_be_stopped(entry: Entry) -> bool:
    """As far as the job itself goes."""
    return may_be_resized(entry) and entry.job.spec.preemptible


def may_be_resized(entry: Entry) -> bool:
    """As far as its attempt goes."""
    if entry.pending or entry.assumed or entry.unrecorded or entry.claim is not None:
        return False
    job = entry.job
    status, spec = job.status, job.spec
    return (
        (status.phase is Phase.RUNNING or status.phase is Phase.STARTING)
        and status.intent is Intent.NONE
        and not spec.suspend
        and not spec.cancel
        and job.metadata.deletion_timestamp is None
    )


def _floats(entry: Entry) -> tuple[float, ...]:
    """In the order of `_FLOATS`."""
    status = entry.job.status
    began_s = np.inf if status.started_at is None else status.started_at.timestamp()
    return (entry.queued_at.timestamp(), began_s, *loss_of(entry), status.attained_gpu_seconds)


def loss_of(entry: Entry) -> tuple[float, float]:
    """Since when (as a timestamp) work would be lost if it was stopped, and the seconds to start again besides."""
    status = entry.job.status
    started_at, progress = status.started_at, status.progress
    if status.held is not None:
        return np.inf, 0.0
    if started_at is None:
        return np.inf, _LEAST_RESTART_S
    since, saved = started_at.timestamp(), None if progress is None else progress.checkpoint
    if saved is not None and saved.at is not None and not _loses_checkpoints(status):
        since = max(since, saved.at)
    began = status.placed_at or started_at
    return since, max((started_at - began).total_seconds(), _LEAST_RESTART_S)


def _loses_checkpoints(status: TrainingJobStatus) -> bool:
    return any(one.type == CHECKPOINTS_CONDITION and one.status == "False" for one in status.conditions)
