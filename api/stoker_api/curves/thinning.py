"""A curve of any length in at most `MOST_POINTS` points that still looks like it. Pure; called by `file.py`.

Points are gathered in buckets of equally many; of each the lowest and the highest stay, so no peak is ever lost. Once
the points are too many, each four become two and buckets twice as large. The first and the newest point of the curve
stay; that of an attempt that is over counts like any other.

Cost: constant per point, amortised: at most one of `halved` for each half of MOST_POINTS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_POINTS = 2000
OPEN_POINTS = 3
"""What stays of the bucket that is not full yet: its lowest, its highest, its newest."""
_FIRST_BUCKET = 4


class Point(NamedTuple):
    attempt: int
    step: int
    at: float
    """Unix seconds."""
    value: float


class Tail(NamedTuple):
    """The end of a curve, to which points are added."""

    bucket: int = 1
    """Points per bucket."""
    filled: int = 0
    """So many points have come into the open bucket."""
    open: tuple[Point, ...] = ()
    """What stays of them so far, at most OPEN_POINTS, in the order they came."""


def added(tail: Tail, point: Point) -> tuple[tuple[Point, ...], Tail]:
    """The points that are settled by it, in order, and the new end, which has the point itself."""
    settled: tuple[Point, ...] = ()
    before, filled = tail.open, tail.filled
    if before and before[-1].attempt != point.attempt:
        settled, before, filled = before, (), 0
    elif filled >= tail.bucket:
        settled, before, filled = tuple(before[place] for place in _extremes(before)), (), 0
    kept = (*before, point)
    places = {*_extremes(kept), len(kept) - 1}
    return settled, Tail(tail.bucket, filled + 1, tuple(kept[place] for place in sorted(places)))


def is_full(settled: int, most: int = MOST_POINTS) -> bool:
    """Whether so many settled points are to be halved now: the next one may settle all that is open."""
    return settled + 2 * OPEN_POINTS > most


def halved(points: Sequence[Point], bucket: int) -> tuple[list[Point], int]:
    """About half of the settled points, and the new size of a bucket."""
    kept = list(points[:1])
    for begin in range(1, len(points), 4):
        four = points[begin : begin + 4]
        kept += (four[place] for place in _extremes(four))
    return kept, _FIRST_BUCKET if bucket == 1 else 2 * bucket


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """At most `most` of the points (at least 2), thinned the same way; the newest stays."""
    most = max(2, most)
    if len(points) <= most:
        return points
    kept, newest = list(points[1:-1]), points[-1]
    groups = (most - 2) // 2
    found = [points[0]]
    for number in range(groups):
        group = kept[number * len(kept) // groups : (number + 1) * len(kept) // groups]
        if group:
            found += (group[place] for place in _extremes(group))
    return [*found, newest]


def _extremes(points: Sequence[Point]) -> list[int]:
    """Where the lowest and the highest are, of equal ones the first; in order, each once."""
    values = [point.value for point in points]
    return sorted({values.index(min(values)), values.index(max(values))})
