"""A step function of time, of which exact integrals and bounds are known. Pure. Times are unix seconds."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence

Steps = Iterable[tuple[float, float]]


class Course:
    """0 before its first step (`steps`: moment → value from then on, in order)."""

    def __init__(self, steps: Steps = ()) -> None:
        self.times: list[float] = []
        self.values: list[float] = []
        self._sums: list[float] = []
        for at, value in steps:
            if self.times and at <= self.times[-1]:
                self.values[-1] = value
                continue
            if self.times:
                self._sums.append(self._sums[-1] + self.values[-1] * (at - self.times[-1]))
            else:
                self._sums.append(0.0)
            self.times.append(at)
            self.values.append(value)

    def at(self, moment: float) -> float:
        index = bisect.bisect_right(self.times, moment) - 1
        return self.values[index] if index >= 0 else 0.0

    def integral(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def mean(self, begin: float, end: float) -> float:
        return self.integral(begin, end) / (end - begin)

    def bounds(self, begin: float, end: float) -> tuple[float, float]:
        """Lowest and highest value in the time."""
        first = bisect.bisect_right(self.times, begin)
        found = [self.at(begin), *self.values[first : bisect.bisect_right(self.times, end)]]
        return min(found), max(found)

    def _until(self, moment: float) -> float:
        index = bisect.bisect_right(self.times, moment) - 1
        return self._sums[index] + self.values[index] * (moment - self.times[index]) if index >= 0 else 0.0


def combined(courses: Sequence[Course], how: Callable[[list[float]], float] = sum) -> Course:
    """Of all of them at each moment. Cost: the number of steps times the number of courses."""
    moments = sorted(set(itertools.chain.from_iterable(one.times for one in courses)))
    return Course((moment, how([one.at(moment) for one in courses])) for moment in moments)


def product(one: Course, other: Course) -> Course:
    return combined([one, other], lambda values: values[0] * values[1])


def while_(*spans: tuple[float, float]) -> Course:
    """1 in the spans (begin, end), which may overlap: then 2."""
    changes: dict[float, float] = {}
    for begin, end in spans:
        if end > begin:
            changes[begin] = changes.get(begin, 0.0) + 1
            changes[end] = changes.get(end, 0.0) - 1
    running = itertools.accumulate(changes[at] for at in sorted(changes))
    return Course(zip(sorted(changes), running, strict=True))
