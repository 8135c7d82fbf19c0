"""The cheapest set of running jobs to stop so that one that waits can start.

Pure: columns and candidates in, victims out. Cost is GPU-seconds of work lost. Called by `preempt`, which says who may
be stopped and where what is found is used.

Up to `EXACT` candidates that matter the answer is a cheapest set. Beyond that it is greedy: worker by worker on the
node where one more costs least, then whatever the queue's limit is still short of; and what turns out not to be needed
is put back, the dearest first, so that no victim of the answer could be spared. For a job of one worker the cheapest
nodes that greed finds are solved exactly; `victim_series` goes on from there for the next job that asks for the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import Column, Mask
from .entries import Entry
from .nodes import NodeTable
from .place import Room, fitting
from .request import Request
from .running import Floats, Held, RunningJobs

EXACT = 10
"""Candidates, of which every subset is looked at."""
NODES_EXACT = 4
Amounts = NDArray[np.int64]


class Candidates(NamedTuple):
    """Running jobs that may be stopped, cheapest first. Shapes: V of them, K limits that are short."""

    jobs: RunningJobs
    rows: Column
    costs: Floats
    """Units: GPU-seconds."""
    gives: Amounts
    """What each one's end gives back to each limit that is short. Shape: (V, K)."""
    held: Held
    """Of all running jobs."""


class Problem:
    """Shapes: V candidates that matter, S slots on which they hold something, R resources that the request needs."""

    def __init__(
        self,
        table: NodeTable,
        request: Request,
        avoid: Collection[str],
        room: Room,
        found: Candidates,
        short: Sequence[int] = (),
        closed: Collection[int] = (),
        domain: Mask | None = None,
    ) -> None:
        """`room`: what is free besides. `short`: what each limit is short of. `closed`: slots on which nothing that is
        freed counts. `domain`: the only slots that count at all. On a node with GPUs of several types the answer is
        hopeful: which of them a job holds is not known here."""
        wanted = room.wanted(request)
        self.workers = request.workers
        self.needs = [need for need, _ in wanted]
        self.short = np.array(short, dtype=np.int64)
        fits = fitting(table, request, avoid, room)
        is_open = table.open_for(request.nodes).copy()
        is_open[[table.slots[name] for name in avoid if name in table.slots]] = False
        is_open[list(closed)] = False
        if domain is not None:
            fits, is_open = np.where(domain, fits, 0), is_open & domain
        if request.gpus:  # a node of other GPUs than are asked for has none to give
            is_open &= table.rest_for(request.filter) > 0
        place_of = np.full(len(found.jobs.jobs), -1, dtype=np.int64)
        place_of[found.rows] = np.arange(len(found.rows))
        row, slot, workers = found.held
        counts = (place_of[row] >= 0) & is_open[slot]
        row, slot, workers = row[counts], slot[counts], workers[counts]
        matters: Mask = np.asarray(found.gives.any(axis=1))
        matters[place_of[row]] = True
        number = np.cumsum(matters) - 1
        self.rows, self.costs, self.gives = found.rows[matters], found.costs[matters], found.gives[matters]
        self._jobs = found.jobs.jobs
        self.holder = number[place_of[row]]
        """Per holding: the candidate; `on`: the slot's place in `slots`; `amounts`: what the request needs of it."""
        self.slots, self.on = np.unique(slot, return_inverse=True)
        self.amounts = workers[:, None] * _amounts(found.jobs, row, request)
        self._fits = fits
        self.there = int(fits.sum() - fits[self.slots].sum())
        """Workers that fit where no candidate is."""
        self.free = np.array([column[self.slots] for _, column in wanted], dtype=np.int64).reshape(len(wanted), -1).T
        if not len(wanted):
            self.free = np.zeros((len(self.slots), 0), dtype=np.int64)

    @cached_property
    def entries(self) -> list[Entry]:
        """The candidates. Made when one is needed: of most problems that have no solution none is."""
        return [one for i in self.rows if (one := self._jobs[i]) is not None]

    def solution(self) -> tuple[float, NDArray[np.int64]]:
        """What the cheapest set costs, and the set; of a problem that is solvable."""
        if len(self.rows) <= EXACT:
            found = self.best_of(np.arange(len(self.rows)))
        else:
            found = self._greedy()
            if self.workers == 1 and not self.short.any():
                found = min([found, *self._best_on_single_nodes()], key=self._cost)
        return self._cost(found), found

    @cached_property
    def is_solvable(self) -> bool:
        return self._solved_by(np.ones(len(self.rows), dtype=np.int64))

    @property
    def most(self) -> Column:
        """Workers that fit on each slot of the table once all candidates have gone."""
        most = self._fits.copy()
        most[self.slots] = self.fits(self._freed(np.ones(len(self.rows), dtype=np.int64)))
        return most

    def named(self, chosen: NDArray[np.int64]) -> tuple[Entry, ...]:
        return tuple(self.entries[i] for i in np.flatnonzero(chosen))

    def fits(self, free: Amounts) -> Amounts:
        """Workers per slot. Shape: (…, S, R) → (…, S)."""
        fit: Amounts = np.clip(
            (free // np.array(self.needs, dtype=np.int64)).min(axis=-1, initial=self.workers), 0, self.workers
        )
        return fit

    def best_of(self, among: NDArray[np.intp]) -> NDArray[np.int64]:
        """The cheapest solution that uses these candidates only, which must hold one. Cost: 2^candidates."""
        count = len(among)
        subsets = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        held = np.zeros((count, *self.free.shape), dtype=np.int64)
        for at, i in enumerate(among):
            for slot, amounts in self.holds[i]:
                held[at, slot] += amounts
        touched = held.any(axis=(0, 2))
        free = self.free[touched] + np.tensordot(subsets, held[:, touched], axes=1)
        rest = self.there + int(self.fits(self.free[~touched]).sum())
        solved = rest + self.fits(free).sum(axis=-1) >= self.workers
        solved &= (subsets @ self.gives[among] >= self.short).all(axis=-1)
        costs = np.where(solved, subsets @ self.costs[among], np.inf)
        # Of equally cheap ones the smallest set; of those, the one that keeps the dearest.
        best = min(np.flatnonzero(costs <= costs.min() + 1e-9), key=lambda row: (int(subsets[row].sum()), int(row)))
        chosen = np.zeros(len(self.rows), dtype=np.int64)
        chosen[among] = subsets[best]
        return chosen

    @cached_property
    def holds(self) -> list[list[tuple[int, list[int]]]]:
        """Candidate → (place of the slot, amounts)."""
        found: list[list[tuple[int, list[int]]]] = [[] for _ in self.rows]
        for i, slot, amounts in zip(self.holder.tolist(), self.on.tolist(), self.amounts.tolist(), strict=True):
            found[i].append((slot, amounts))
        return found

    @cached_property
    def on_slot(self) -> list[list[tuple[int, list[int]]]]:
        """Place of the slot → (candidate, amounts), cheapest first."""
        found: list[list[tuple[int, list[int]]]] = [[] for _ in self.slots]
        for i, held in enumerate(self.holds):
            for slot, amounts in held:
                found[slot].append((i, amounts))
        return found

    @cached_property
    def _prices(self) -> list[float]:
        """As `costs`: of one after another, Python's floats cost less than numpy's."""
        found: list[float] = self.costs.tolist()
        return found

    def price(self, candidates: Sequence[tuple[int, list[int]]], free: Sequence[int]) -> tuple[float, int]:
        """What one more worker on that slot costs, and how many of the candidates are stopped; infinite: none fits."""
        needs, cost = self.needs, 0.0
        before = max(min((have // need for have, need in zip(free, needs, strict=True)), default=self.workers), 0)
        if before < self.workers:
            targets, row = [(before + 1) * need for need in needs], list(free)
            for count, (i, amounts) in enumerate(candidates, 1):
                row = [have + more for have, more in zip(row, amounts, strict=True)]
                cost += self._prices[i]
                if all(have >= target for have, target in zip(row, targets, strict=True)):
                    return cost, count
        return float("inf"), 0

    def _cost(self, chosen: NDArray[np.int64]) -> float:
        return float(self.costs[chosen > 0].sum())

    def _freed(self, chosen: NDArray[np.int64]) -> Amounts:
        free = self.free.copy()
        which = chosen[self.holder] > 0
        np.add.at(free, self.on[which], self.amounts[which])
        return free

    def _solved_by(self, chosen: NDArray[np.int64]) -> bool:
        fit = self.there + int(self.fits(self._freed(chosen)).sum()) >= self.workers
        return fit and bool((chosen @ self.gives >= self.short).all())

    def _greedy(self) -> NDArray[np.int64]:
        chosen = np.zeros(len(self.rows), dtype=np.int64)
        free, on_slot = self.free.copy(), [list(one) for one in self.on_slot]
        prices = [(*self.price(on_slot[slot], free[slot].tolist()), slot) for slot in range(len(on_slot))]
        queue = [(price, slot, count, 0) for price, count, slot in prices]
        heapify(queue)
        turned = [0] * len(on_slot)
        missing = self.workers - self.there - int(self.fits(free).sum())
        while missing > 0:
            _, slot, count, turn = heappop(queue)
            if turn != turned[slot]:
                continue
            changed: dict[int, int] = {}
            for i, _ in on_slot[slot][:count]:
                chosen[i] = 1
                for other, amounts in self.holds[i]:
                    changed.setdefault(other, int(self.fits(free[other])))
                    free[other] += amounts
            for other, before in changed.items():
                missing -= int(self.fits(free[other])) - before
                on_slot[other] = [one for one in on_slot[other] if not chosen[one[0]]]
                turned[other] += 1
                price, count = self.price(on_slot[other], free[other].tolist())
                heappush(queue, (price, other, count, turned[other]))
        while (lacking := np.maximum(self.short - chosen @ self.gives, 0)).any():
            useful = np.minimum(self.gives, lacking) / np.maximum(self.short, 1)
            worth = useful.sum(axis=1) * (chosen == 0)
            chosen[int(np.argmin(np.where(worth > 0, self.costs / np.maximum(worth, 1e-12), np.inf)))] = 1
        return self._spared(chosen)

    def _spared(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Without those that are not needed, the dearest tried first."""
        free = self._freed(chosen)
        fit, given = self.fits(free), chosen @ self.gives
        total = self.there + int(fit.sum())
        for i in reversed(np.flatnonzero(chosen).tolist()):
            if (given - self.gives[i] < self.short).any():
                continue
            less = {slot: int(self.fits(free[slot] - amounts)) for slot, amounts in self.holds[i]}
            lost = sum(int(fit[slot]) - count for slot, count in less.items())
            if total - lost < self.workers:
                continue
            chosen[i], given, total = 0, given - self.gives[i], total - lost
            for slot, amounts in self.holds[i]:
                free[slot] -= amounts
                fit[slot] = less[slot]
        return chosen

    def _best_on_single_nodes(self) -> list[NDArray[np.int64]]:
        """For one worker: on each of the nodes that look cheapest, the cheapest set."""
        free = self.free.tolist()
        prices = sorted((self.price(self.on_slot[slot], free[slot])[0], slot) for slot in range(len(free)))
        return [
            self.best_of(np.array([i for i, _ in self.on_slot[slot][:EXACT]], dtype=np.intp))
            for price, slot in prices[:NODES_EXACT]
            if price < float("inf") and self.price(self.on_slot[slot][:EXACT], free[slot])[1]
        ]


def cheapest_of(problems: Iterable[Problem]) -> tuple[Entry, ...] | None:
    """The jobs to stop for the problem whose solution costs least, the first of those. None: none has a solution."""
    solved = [(one.solution(), one) for one in problems if one.is_solvable]
    if not solved:
        return None
    (_, chosen), problem = min(solved, key=lambda one: one[0][0])
    return problem.named(chosen)


def _amounts(jobs: RunningJobs, row: Column, wanted: Request) -> Amounts:
    """What a worker of each row gives back of the resources that `wanted` needs, in the order of `Room.wanted`."""
    columns = [jobs.gpus_of(wanted.filter.resource)[row]] if wanted.gpus else []
    columns += [jobs.cpu[row]] if wanted.cpu else []
    columns += [jobs.memory[row]] if wanted.memory else []
    for name, _ in wanted.extended:
        entries = (jobs.jobs[i] for i in row)
        columns.append(np.array([dict(one.request.extended).get(name, 0) for one in entries if one is not None]))
    return np.array(columns, dtype=np.int64).reshape(len(columns), len(row)).T
