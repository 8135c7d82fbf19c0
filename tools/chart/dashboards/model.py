"""What a dashboard is made of: plain data, in Grafana's terms. Owns no JSON (`grafana`) and no PromQL (`queries`).

Units are Grafana's: percentunit (0..1), watt, kwatth, celsius, bytes, Bps, hertz, s, h, short, none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["timeseries", "stat", "bargauge", "table", "state-timeline"]
Steps = tuple[tuple[float, str], ...]
"""From this value on, this colour. Below the first: green, or what `base` says."""

NOTHING = "–"
"""For what there may be none of, where it can't be known whether there is none or nothing is collected."""

CURRENCY = "currency:"
"""Of money: the chart puts the installation's own behind it (`api.currency`); without one numbers stand alone."""

BAD_ABOVE_ZERO: Steps = ((1, "red"),)
WARN_ABOVE_ZERO: Steps = ((1, "orange"),)
NOT_REPORTED = "N/A"
"""For what some GPUs or installations never show. A panel that is empty only when nothing is collected has no such
text: Grafana then shows `No data`."""


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""
    """Never a uuid: `{{node}}/{{gpu}}`."""
    dashed: bool = False
    """A limit or a total, drawn as a dashed line without a fill."""


@dataclass(frozen=True)
class Column:
    """A number in a table: one query, joined with the others by their labels."""

    title: str
    expr: str
    unit: str = "short"
    steps: Steps = ()
    base: str = "green"
    decimals: int | None = None
    look: Literal["auto", "color-background", "gauge"] = "auto"
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Panel:
    kind: Kind
    title: str
    text: str
    """What it shows, and what to make of it."""
    unit: str = "short"
    queries: tuple[Query, ...] = ()
    width: int = 8
    height: int = 8
    low: float | None = 0
    high: float | None = None
    decimals: int | None = None
    stack: bool = False
    bars: bool = False
    steps: Steps = ()
    base: str = "green"
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Value → (text, colour)."""
    none: str = ""
    """Message where there is no value; see NOT_REPORTED."""
    by_name: bool = False
    """A stat that shows the series' name instead of its value."""
    columns: tuple[Column, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of a table: label → heading, in order; other labels are not shown."""
    sort: str = ""
    """Heading of the column by which a table is sorted, the largest first."""
    colors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of a table: heading of a label → its value → the cell's colour."""
    most: int = 0
    """Rows of a table at most; 0: all."""


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it, from left to right, in lines of 24 columns."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False
    """Only the heading is shown until it is clicked."""


@dataclass(frozen=True)
class Variable:
    """Values of `label` that series of `series` have. `every`: also all of them, series without the label included."""

    name: str
    title: str
    series: str
    label: str
    every: bool = True
    multi: bool = True
    listed: bool = False
    """All means: those that were found, not anything."""


@dataclass(frozen=True)
class Annotation:
    title: str
    expr: str
    text: str
    color: str


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()
    since: str = "now-6h"


def series(title: str, text: str, unit: str, *queries: Query, width: int = 8, **more: object) -> Panel:
    return _panel("timeseries", title, text, unit, queries, width, more)


def stat(title: str, text: str, unit: str, *queries: Query, width: int = 3, height: int = 4, **more: object) -> Panel:
    return _panel("stat", title, text, unit, queries, width, {"height": height, **more})


def bars(title: str, text: str, unit: str, *queries: Query, width: int = 8, **more: object) -> Panel:
    return _panel("bargauge", title, text, unit, queries, width, more)


def table(title: str, text: str, labels: Mapping[str, str], *columns: Column, width: int = 24, **more: object) -> Panel:
    return _panel("table", title, text, "short", (), width, {"labels": labels, "columns": columns, **more})


def timeline(title: str, text: str, query: Query, states: Mapping[int, tuple[str, str]], **more: object) -> Panel:
    return _panel("state-timeline", title, text, "none", (query,), 24, {"states": states, **more})


def _panel(
    kind: Kind, title: str, text: str, unit: str, queries: tuple[Query, ...], width: int, more: Mapping[str, object]
) -> Panel:
    return Panel(kind=kind, title=title, text=text, unit=unit, queries=queries, width=width, **more)  # type: ignore[arg-type]
