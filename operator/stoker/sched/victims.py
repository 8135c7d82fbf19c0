"""The cheapest set of running jobs to stop so that one that waits can start.

Pure: columns and victims in, victims out. Cost is GPU-seconds of work lost. Called by `preempt`, which says who may be
stopped and tries the answer out before it is used.

Up to `EXACT` candidates that matter the answer is a cheapest set. Beyond that it is greedy: worker by worker on the
node where one more costs least, then whatever the queue's limit is still short of; and what turns out not to be needed
is put back, the dearest first, so that no victim of the answer could be spared. For a job of one worker the cheapest
nodes that greed finds are solved exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Column
from .entries import Entry
from .nodes import NodeTable
from .place import Keep, fitting, free_room
from .request import Request

EXACT = 10
"""Candidates, of which every subset is looked at."""
_NODES_EXACT = 4
Amounts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running job that may be stopped."""

    entry: Entry
    cost: float
    """Units: GPU-seconds."""
    gives: tuple[int, ...]
    """What its end gives back to each limit that is short."""


def cheapest(
    table: NodeTable,
    request: Request,
    avoid: Collection[str],
    keep: Keep | None,
    candidates: Sequence[Candidate],
    short: Sequence[int],
    closed: Collection[int] = (),
) -> tuple[Candidate, ...] | None:
    """The jobs to stop so that the request fits beside what is kept, and each limit gets back what it is short of.

    None: not even all of them would do. `closed`: slots on which nothing that is freed counts. On a node with GPUs of
    several types the answer is hopeful: which of them a job holds is not known here.
    """
    problem = _Problem(table, request, avoid, keep, sorted(candidates, key=_rank), short, closed)
    every = np.ones(len(problem.candidates), dtype=np.int64)
    if not problem.solved_by(every):
        return None
    if len(every) <= EXACT:
        return problem.named(problem.best_of(np.arange(len(every))))
    found = problem.greedy()
    if request.workers == 1 and not any(short):
        found = min([found, *problem.best_on_single_nodes()], key=problem.cost)
    return problem.named(found)


def _rank(one: Candidate) -> tuple[float, Any]:
    return one.cost, one.entry.key


class _Problem:
    """Shapes: V candidates that matter, S slots on which they hold something, R resources that the request needs."""

    def __init__(
        self,
        table: NodeTable,
        request: Request,
        avoid: Collection[str],
        keep: Keep | None,
        candidates: Sequence[Candidate],
        short: Sequence[int],
        closed: Collection[int],
    ) -> None:
        room = free_room(table, request, keep)
        self.workers, wanted = request.workers, room.wanted(request)
        self.needs = np.array([need for need, _ in wanted], dtype=np.int64)
        self.short = np.array(short, dtype=np.int64)
        fits: Column = fitting(table, request, avoid, room)
        is_open = table.open_for(request.nodes).copy()
        is_open[[table.slots[name] for name in avoid if name in table.slots]] = False
        is_open[list(closed)] = False
        if request.gpus:  # a node of other GPUs than are asked for has none to give
            is_open &= table.rest_for(request.filter) > 0
        self.candidates = [
            one
            for one in candidates
            if any(one.gives) or any(is_open[table.slots[name]] for name in one.entry.workers_on if name in table.slots)
        ]
        self.holds: list[list[tuple[int, Amounts]]] = []
        index: dict[int, int] = {}
        for one in self.candidates:
            held = []
            for name, workers in one.entry.workers_on.items():
                slot = table.slots.get(name)
                if slot is not None and is_open[slot]:
                    held.append((index.setdefault(slot, len(index)), workers * _amounts(one.entry.request, request)))
            self.holds.append(held)
        slots = list(index)
        self.there = int(fits.sum() - fits[slots].sum())
        """Workers that fit where no candidate is."""
        self.free = np.array([[int(column[slot]) for _, column in wanted] for slot in slots], dtype=np.int64)
        self.free = self.free.reshape(len(slots), len(wanted))
        self.gives = np.array([one.gives for one in self.candidates], dtype=np.int64)
        self.gives = self.gives.reshape(len(self.candidates), len(self.short))
        self.costs = np.array([one.cost for one in self.candidates])

    def named(self, chosen: NDArray[np.int64]) -> tuple[Candidate, ...]:
        return tuple(self.candidates[i] for i in np.flatnonzero(chosen))

    def cost(self, chosen: NDArray[np.int64]) -> float:
        return float(self.costs[chosen > 0].sum())

    def fits(self, free: Amounts) -> Amounts:
        """Workers per slot. Shape: (…, S, R) → (…, S)."""
        fit: Amounts = np.clip((free // self.needs).min(axis=-1, initial=self.workers), 0, self.workers)
        return fit

    def freed(self, chosen: NDArray[np.int64]) -> Amounts:
        free = self.free.copy()
        for i in np.flatnonzero(chosen):
            for slot, amounts in self.holds[i]:
                free[slot] += amounts
        return free

    def solved_by(self, chosen: NDArray[np.int64]) -> bool:
        fit = self.there + int(self.fits(self.freed(chosen)).sum()) >= self.workers
        return fit and bool((chosen @ self.gives >= self.short).all())

    def best_of(self, among: NDArray[np.intp]) -> NDArray[np.int64]:
        """The cheapest solution that uses these candidates only, which must hold one. Cost: 2^candidates."""
        count = len(among)
        subsets = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        held = np.zeros((count, *self.free.shape), dtype=np.int64)
        for row, i in enumerate(among):
            for slot, amounts in self.holds[i]:
                held[row, slot] += amounts
        free = self.free + np.tensordot(subsets, held, axes=1)
        solved = self.there + self.fits(free).sum(axis=-1) >= self.workers
        solved &= (subsets @ self.gives[among] >= self.short).all(axis=-1)
        costs = np.where(solved, subsets @ self.costs[among], np.inf)
        # Of equally cheap ones the smallest set; of those, the one that keeps the dearest.
        best = min(np.flatnonzero(costs <= costs.min() + 1e-9), key=lambda row: (int(subsets[row].sum()), int(row)))
        chosen = np.zeros(len(self.candidates), dtype=np.int64)
        chosen[among] = subsets[best]
        return chosen

    def greedy(self) -> NDArray[np.int64]:
        chosen = np.zeros(len(self.candidates), dtype=np.int64)
        on_slot: dict[int, list[int]] = {}
        for i, held in enumerate(self.holds):  # cheapest first
            for slot, _ in held:
                on_slot.setdefault(slot, []).append(i)
        free = self.free.copy()
        prices: dict[int, tuple[float, list[int]]] = {slot: self._price(slot, on_slot[slot], free) for slot in on_slot}
        while self.there + int(self.fits(free).sum()) < self.workers:
            slot = min(prices, key=lambda slot: (prices[slot][0], slot))
            changed = set()
            for i in prices[slot][1]:
                chosen[i] = 1
                for other, amounts in self.holds[i]:
                    free[other] += amounts
                    changed.add(other)
            for other in changed:
                prices[other] = self._price(other, [i for i in on_slot[other] if not chosen[i]], free)
        while (missing := np.maximum(self.short - chosen @ self.gives, 0)).any():
            useful = np.minimum(self.gives, missing) / np.maximum(self.short, 1)
            worth = useful.sum(axis=1) * (chosen == 0)
            chosen[int(np.argmin(np.where(worth > 0, self.costs / np.maximum(worth, 1e-12), np.inf)))] = 1
        return self._spared(chosen)

    def _price(self, slot: int, candidates: list[int], free: Amounts) -> tuple[float, list[int]]:
        """What one more worker there costs, and its victims; infinite: no more fit there."""
        row, before, taken, cost = free[slot].copy(), int(self.fits(free[slot])), [], 0.0
        for i in candidates:
            row += sum((amounts for other, amounts in self.holds[i] if other == slot), np.zeros_like(row))
            taken.append(i)
            cost += self.costs[i]
            if int(self.fits(row)) > before:
                return cost, taken
        return float("inf"), []

    def _spared(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Without those that are not needed, the dearest tried first."""
        free, fit = self.freed(chosen), self.fits(self.freed(chosen))
        given = chosen @ self.gives
        for i in reversed(np.flatnonzero(chosen)):
            if (given - self.gives[i] < self.short).any():
                continue
            touched = dict(self.holds[i])
            less = {slot: int(self.fits(free[slot] - amounts)) for slot, amounts in touched.items()}
            lost = sum(int(fit[slot]) - count for slot, count in less.items())
            if self.there + int(fit.sum()) - lost < self.workers:
                continue
            chosen[i], given = 0, given - self.gives[i]
            for slot, amounts in touched.items():
                free[slot] -= amounts
                fit[slot] = less[slot]
        return chosen

    def best_on_single_nodes(self) -> list[NDArray[np.int64]]:
        """For one worker: on each of the nodes that look cheapest, the cheapest set."""
        on_slot: dict[int, list[int]] = {}
        for i, held in enumerate(self.holds):
            for slot, _ in held:
                on_slot.setdefault(slot, []).append(i)
        prices = sorted((self._price(slot, on_slot[slot], self.free)[0], slot) for slot in on_slot)
        found = []
        for price, slot in prices[:_NODES_EXACT]:
            among = np.array(on_slot[slot][:EXACT], dtype=np.intp)
            chosen = np.zeros(len(self.candidates), dtype=np.int64)
            chosen[among] = 1
            if price < float("inf") and self.solved_by(chosen):
                found.append(self.best_of(among))
        return found


def _amounts(held: Request, wanted: Request) -> Amounts:
    """What a worker of `held` gives back of the resources that `wanted` needs, in the order of `Room.wanted`."""
    extended = dict(held.extended)
    found = [held.gpus] if wanted.gpus else []
    found += [held.cpu] if wanted.cpu else []
    found += [held.memory] if wanted.memory else []
    return np.array([*found, *(extended.get(name, 0) for name, _ in wanted.extended)], dtype=np.int64)
