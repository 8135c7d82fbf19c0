"""Victims for many jobs that ask for the same: one search, from which each next job takes the next cheapest.

Pure. Called by `preempt`, with a `victims.Problem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import add, ge, sub

from stoker.spec.job import Placed

from . import victims
from .entries import Entry
from .place import Spread
from .request import Request

Chosen = tuple[Spread, Sequence[tuple[Entry, tuple[Placed, ...]]]]
"""Where a job goes, and the jobs that are stopped for it, each with the places that it keeps."""
Priced = tuple[float, int, int, tuple[int, ...]]
"""What the cheapest costs; the place and its turn; which candidates are stopped."""


class VictimSeries:
    """The victims for one job of one worker after another that ask for the same and of which no limit is short.

    Cost: O(candidates) once; then O(candidates of a node) each.
    """

    def __init__(self, problem: victims.Problem, request: Request) -> None:
        """`request`: what each of them asks for, nothing extended."""
        self._problem = problem
        self._wants = [at for at, amount in enumerate(request.times(1)) if amount]
        self._each: dict[Request, list[int]] = {}
        """Request → what a worker of it holds of what is asked for here."""
        self._on = [list(one) for one in problem.on_slot]
        self._free: list[list[int]] = problem.free.tolist()
        self._slots: list[int] = problem.slots.tolist()
        self._at = {slot: place for place, slot in enumerate(self._slots)}
        self._prices: list[float] = problem.costs.tolist()
        self._turns = [0] * len(self._on)
        self._best: dict[tuple[int, int], Priced] = {}
        """(Place, turn) → the cheapest there, where it was worked out."""
        self._several: set[int] = set()
        """Places where what looks cheapest is more than one job, so that it may not be."""
        self._fits = problem.there > 0
        prices = (self._priced(place) for place in range(len(self._on)))
        self._queue = [one for one in prices if one is not None]
        heapify(self._queue)

    def take(self, most: int) -> list[Chosen]:
        """Where each of so many next jobs goes, and what is stopped for it: from now on that counts. Shorter: the next
        goes nowhere, or needs no further victim."""
        found: list[Chosen] = []
        while len(found) < most and (best := self._cheapest()) is not None:
            _, place, _, stopped = best
            problem, places = self._problem, {place}
            self._free[place] = list(map(sub, self._free[place], problem.needs))
            for i in stopped:
                for other, amounts in problem.holds[i]:
                    places.add(other)
                    self._on[other].remove((i, amounts))
                    self._free[other] = list(map(add, self._free[other], amounts))
            self._turn(places)
            found.append((((self._slots[place], 1),), [(problem.entries[i], ()) for i in stopped]))
        return found

    def _cheapest(self) -> Priced | None:
        """The place, which has no price then until its next turn."""
        looked: list[Priced] = []
        while not self._fits and self._queue and len(looked) < victims.NODES_EXACT:
            found = heappop(self._queue)
            _, place, turn, stopped = found
            if turn == self._turns[place]:
                if not self._several:
                    return found
                if len(stopped) > 1:
                    found = self._best.get((place, turn)) or self._solved(place, turn)
                    self._best[place, turn] = found
                looked.append(found)
        best = min(looked, default=None)
        for one in looked:
            if one is not best:
                heappush(self._queue, one)
        return best

    def took(self, job: Entry, slots: Mapping[str, int]) -> None:
        """A job that was none of the series has started: what it holds is to be had no more."""
        places: set[int] = set()
        amounts = self._each.get(job.request) or self._wanted(job.request)
        for name, workers in job.workers_on.items():
            place = self._at.get(slots.get(name, -1))
            if place is not None:
                places.add(place)
                pairs = zip(self._free[place], amounts, strict=True)
                self._free[place] = [have - workers * each for have, each in pairs]
        self._turn(places)

    def _turn(self, places: Iterable[int]) -> None:
        """What is free there, or who, is another now."""
        for place in places:
            self._turns[place] += 1
            found = self._priced(place)
            if found is not None:
                heappush(self._queue, found)

    def _wanted(self, request: Request) -> list[int]:
        amounts = request.times(1)
        found = self._each[request] = [amounts[at] for at in self._wants]
        return found

    def _priced(self, place: int) -> Priced | None:
        """The first candidates there that make room; None: not even all of them do, or none is needed."""
        free, needs, price = self._free[place], self._problem.needs, 0.0
        stopped: list[int] = []
        self._several.discard(place)
        if all(map(ge, free, needs)):
            self._fits = True
            return None
        for i, amounts in self._on[place]:
            free = list(map(add, free, amounts))
            price += self._prices[i]
            stopped.append(i)
            if all(map(ge, free, needs)):
                if len(stopped) > 1:
                    self._several.add(place)
                return price, place, self._turns[place], tuple(stopped)
        return None

    def _solved(self, place: int, turn: int) -> Priced:
        """The cheapest set of the first candidates there; of equally cheap ones the smallest that keeps the dearest."""
        among = self._on[place][: max(victims.EXACT, 1)]
        _, count = self._problem.price(among, self._free[place])
        if not count:  # greed needs more of them than are looked at
            among, count = self._on[place], self._problem.price(self._on[place], self._free[place])[1]
            stopped = among[:count]
            for one in reversed(list(stopped)):
                rest = [other for other in stopped if other is not one]
                if self._do(place, rest):
                    stopped = rest
            return sum(float(self._problem.costs[i]) for i, _ in stopped), place, turn, tuple(i for i, _ in stopped)
        if len(among) == count and not any(self._do(place, among[:at] + among[at + 1 :]) for at in range(count)):
            return sum(float(self._problem.costs[i]) for i, _ in among), place, turn, tuple(i for i, _ in among)
        costs = self._problem.costs
        best: tuple[float, int, int] | None = None
        for subset in range(1, 2 ** len(among)):
            chosen = [one for at, one in enumerate(among) if subset >> at & 1]
            cost = round(sum(float(costs[i]) for i, _ in chosen), 6)
            if (best is None or (cost, len(chosen), subset) < best) and self._do(place, chosen):
                best = cost, len(chosen), subset
        assert best is not None
        return best[0], place, turn, tuple(i for at, (i, _) in enumerate(among) if best[2] >> at & 1)

    def _do(self, place: int, chosen: Sequence[tuple[int, list[int]]]) -> bool:
        return all(
            have + sum(amounts[at] for _, amounts in chosen) >= need
            for at, (have, need) in enumerate(zip(self._free[place], self._problem.needs, strict=True))
        )
