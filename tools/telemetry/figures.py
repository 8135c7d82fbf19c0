"""What a panel has to show: a figure with bounds at each moment. Pure.

Bounds come from what lies between the truth and Prometheus: the exporter's poll (1 s), the scrape, and the half second
in which a worker's begin is seen. So a value has to lie within what the truth was in the last `SLOP_S`; where the truth
did not change meanwhile, that is one value, and `FINE` of it is all that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .course import Course

SLOP_S, EARLY_S = 5.0, 1.5
"""How old what is shown may be; how much later the run's own records may have seen it."""
FINE = 0.01
POLL_S = 3.0
Bounds = tuple[float, float, float]
"""Lowest, expected, highest."""


@dataclass(frozen=True)
class Figure:
    at: Callable[[float], Bounds]
    needed: Callable[[float], bool] = lambda _: True
    """Whether a point has to be there at this moment."""
    whole: float = 0.03
    """Of a graph: how far its mean may be from the expected mean, as a share."""


def exactly(value: float, tolerance: float = 0.0, share: float = FINE) -> Figure:
    wide = tolerance + share * abs(value)
    return Figure(lambda _: (value - wide, value, value + wide))


def between(low: float, expected: float, high: float) -> Figure:
    return Figure(lambda _: (low, expected, high))


def gauge(
    course: Course,
    there: Course | None = None,
    *,
    share: float = FINE,
    wide: float = 0.0,
    moments: Sequence[float] = (),
) -> Figure:
    """there: 1 while it is told at all. moments: when a job changed; there it may be one more, or one less, for an
    instant that the run's own looks missed.
    """

    def at(moment: float) -> Bounds:
        low, high = course.bounds(moment - SLOP_S, moment + EARLY_S)
        near = sum(moment - SLOP_S <= one <= moment + EARLY_S for one in moments)
        give = wide + share * max(abs(low), abs(high)) + near
        return low - give, course.at(moment - 1.5), high + give

    return Figure(at, _there(there))


def rate(course: Course, window_s: float, there: Course | None = None, *, wide: float = 0.0) -> Figure:
    """Of a counter that is the course's integral and that each poll moves on: a window has one or two more or less."""
    share = POLL_S / (window_s - POLL_S)

    def at(moment: float) -> Bounds:
        mean = course.mean(moment - window_s - 1.5, moment - 1.5)
        low, high = course.bounds(moment - window_s - SLOP_S, moment + EARLY_S)
        # Both ends of the window may be moved by as much as that, and what lies between is extrapolated.
        give = wide + share * abs(mean) + (high - low) * min(1.0, 2 * SLOP_S / window_s)
        return max(mean - give, min(low, mean) * (1 - share)), mean, min(mean + give, high * (1 + share) + wide + FINE)

    return Figure(at, _there(there))


def counted(points: Sequence[tuple[float, float]], window_s: float, scale: float = 1.0) -> Figure:
    """Rate of a counter of which the values were read now and then: (moment, value)."""
    read = Course(points)
    first = next((at for at, value in points if value), 0.0)
    last = points[-1][0] if points else 0.0

    def rise(begin: float, end: float) -> float:
        return max(0.0, read.at(end) - read.at(begin)) * scale / window_s

    def at(moment: float) -> Bounds:
        slop = SLOP_S - 1
        low = rise(moment - window_s + slop, moment - slop) if window_s > 2 * slop else 0.0
        high = rise(moment - window_s - slop, moment + slop)
        if moment < first + window_s + SLOP_S:
            low = 0.0  # a series that begins above 0: its first value is no rise
        return 0.6 * low, rise(moment - window_s, moment), 2.0 * high + 1e-9

    return Figure(at, lambda moment: first + 2 * window_s < moment < last, whole=0.15)


def _there(course: Course | None) -> Callable[[float], bool]:
    if course is None:
        return lambda _: True
    return lambda moment: course.bounds(moment - SLOP_S - 3, moment + EARLY_S)[0] > 0


def quantile(share: float, values: Sequence[float], bounds: Sequence[float]) -> float:
    """As Prometheus tells it of a histogram with these bounds (in order, +Inf last)."""
    counts = [sum(value <= bound for value in values) for bound in bounds]
    rank = share * counts[-1]
    index = next(i for i, count in enumerate(counts) if count >= rank and count)
    if bounds[index] == float("inf"):
        return bounds[index - 1]
    begin, before = (bounds[index - 1], counts[index - 1]) if index else (0.0, 0)
    return begin + (bounds[index] - begin) * (rank - before) / max(1, counts[index] - before)
