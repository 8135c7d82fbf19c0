"""How metrics of a job look: tables with a small curve for people, CSV for spreadsheets. Fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from .output import DASH, Column, values
from .usage_text import no_formula

WIDTH = 24
"""Characters of a curve."""
_LEVELS = "▁▂▃▄▅▆▇█"
_COLUMNS = "metric attempt steps times values"


def number(value: float) -> str:
    return f"{value:.5g}"


def _range(steps: Sequence[int]) -> str:
    return f"{min(steps)}-{max(steps)}" if steps else DASH


def _of(pick: Any) -> Any:
    return lambda numbers: number(pick(numbers)) if numbers else DASH


def sparkline(steps: Sequence[int], numbers: Sequence[float]) -> str:
    """The curve over its steps, in WIDTH characters at most; of the values in one character the newest counts."""
    if not numbers:
        return ""
    first, last = min(steps), max(steps)
    width = min(WIDTH, len(numbers))
    newest: list[float | None] = [None] * width
    for place, (step, value) in enumerate(zip(steps, numbers, strict=True)):
        share = (step - first) / (last - first) if last > first else place / len(numbers)
        newest[min(width - 1, int(share * width))] = value
    shown = [value for value in newest if value is not None]
    low, high = min(shown), max(shown)
    drawn, level = "", _LEVELS[0]
    for found in newest:
        if found is not None:
            # Halves: the distance between two floats may be more than a float holds.
            share = (found / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.0
            level = _LEVELS[min(len(_LEVELS) - 1, int(share * len(_LEVELS)))]
        drawn += level
    return drawn


CURVES = (
    Column("METRIC", "metric", cut=True),
    Column("ATTEMPT", "attempt", right=True, drops=3),
    Column("STEPS", "steps", _range),
    Column("FIRST", "values", _of(lambda numbers: numbers[0]), right=True, drops=4),
    Column("LOWEST", "values", _of(min), right=True, drops=2),
    Column("HIGHEST", "values", _of(max), right=True, drops=2),
    Column("NEWEST", "values", _of(lambda numbers: numbers[-1]), right=True),
    Column("CURVE", "steps values", sparkline, drops=1),
)
"""A row for each metric and attempt."""
POINTS = (
    Column("ATTEMPT", right=True),
    Column("STEP", right=True),
    Column("TIME"),
    Column("VALUE", right=True),
)


def point_rows(curves: Sequence[Any]) -> list[list[str]]:
    """A row for each point, as POINTS has them."""
    return [
        [str(attempt), str(step), f"{_time(at, ' ')}Z", number(value)]
        for _, attempt, step, at, value in _points(curves)
    ]


def curves_csv(curves: Sequence[Any]) -> str:
    """A row for each point, with all digits."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("metric", "attempt", "step", "time", "value"))
    for metric, attempt, step, at, value in _points(curves):
        writer.writerow((no_formula(metric), attempt, step, f"{_time(at, 'T')}Z", repr(float(value))))
    return out.getvalue()


def _points(curves: Sequence[Any]) -> list[tuple[str, int, int, float, float]]:
    found = []
    for curve in curves:
        metric, attempt, *columns = values(curve, _COLUMNS)
        found += [(metric, attempt, *point) for point in zip(*columns, strict=True)]
    return found


def _time(at: float, gap: str) -> str:
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(gap, "seconds")
