"""Sums over hours and jobs, as the file holds them: by user, queue, project, job, model, day, hour.

Owns the statements that read. Simulated GPUs are never summed with real ones. Runs in the store's reading thread;
called by `routes/usage.py`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from stoker_api.usage.amounts import DAY_S, HOUR_S

from .amounts import Amounts
from .hints import JobAmounts
from .prices import Prices

MOST_ROWS = 10_000
_MOST_JOBS = 2000
"""So many of a queue's jobs, those with the most GPU-hours, are looked at for hints."""


class By(StrEnum):
    USER = "user"
    QUEUE = "queue"
    PROJECT = "project"
    JOB = "job"
    MODEL = "model"
    DAY = "day"
    HOUR = "hour"


_COLUMNS = {
    By.USER: ("j.user",),
    By.QUEUE: ("j.queue",),
    By.PROJECT: ("j.project",),
    By.JOB: ("j.project", "j.name", "j.uid"),
    By.MODEL: ("h.model",),
    By.DAY: ("h.hour / 86400 * 86400",),
    By.HOUR: ("h.hour",),
}
_NAMES = {By.JOB: ("project", "job", "jobUid")}
_TIMES = (By.DAY, By.HOUR)


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Whole hours from `since` to before `until`. None: any."""

    since: datetime
    until: datetime
    projects: Collection[str] | None
    """The caller's."""
    queue: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Sum:
    """One row. `names`: what it is the sum of."""

    names: dict[str, str]
    simulated: bool
    jobs: int
    amounts: Amounts
    cost: float | None
    """Of the GPUs that have a price; None: of none."""
    unpriced_s: float
    """GPU-seconds of real GPUs without a price."""


def sums(
    reader: sqlite3.Connection, wanted: UsageFilter, by: Sequence[By], prices: Prices, limit: int
) -> tuple[list[Sum], list[Sum], bool]:
    """The rows (in time, then the most GPU time first), all of them as one, and whether there are more rows."""
    reader.create_function("price", 1, prices.of, deterministic=True)
    reader.execute("BEGIN")  # both of one state
    try:
        rows = _sums(reader, wanted, by, limit + 1)
        totals = _sums(reader, wanted, (), 2)
    finally:
        reader.execute("ROLLBACK")
    return rows[:limit], totals, len(rows) > limit


def jobs_of(reader: sqlite3.Connection, wanted: UsageFilter) -> list[JobAmounts]:
    """What each job has had in the window, real GPUs only."""
    source, values = _source(wanted, whole_days=True)
    where, more = _where(wanted)
    found = reader.execute(
        f"SELECT max(h.memory_peak_bytes), max(h.memory_total_bytes), {_ADDED} FROM {source} h"
        f" JOIN jobs j ON j.id = h.job WHERE {where} AND NOT h.simulated"
        f" GROUP BY h.job ORDER BY sum(h.allocated_s) DESC LIMIT {_MOST_JOBS}",
        (*values, *more),
    )
    rows = [(peak, total, Amounts._make(amounts)) for peak, total, *amounts in found]
    return [JobAmounts(amounts, amounts.seen_s, peak, total) for peak, total, amounts in rows]


def projects(reader: sqlite3.Connection) -> set[str]:
    return {project for (project,) in reader.execute("SELECT DISTINCT project FROM jobs")}


_ADDED = ", ".join(f"sum(h.{name})" for name in Amounts._fields)


def _sums(reader: sqlite3.Connection, wanted: UsageFilter, by: Sequence[By], limit: int) -> list[Sum]:
    columns: dict[str, str] = {}
    for part in by:
        columns |= dict(zip(_NAMES.get(part, (part.value,)), _COLUMNS[part], strict=True))
    source, values = _source(wanted, whole_days=By.HOUR not in by)
    where, more = _where(wanted)
    keys = [*columns.values(), "h.simulated"]
    order = [columns[part.value] for part in by if part in _TIMES] + ["sum(h.allocated_s) DESC", *columns.values()]
    query = (
        f"SELECT {', '.join(keys)}, count(DISTINCT h.job), sum(price(h.model) * h.allocated_s),"
        f" sum(CASE WHEN price(h.model) IS NULL THEN h.allocated_s ELSE 0 END), {_ADDED}"
        f" FROM {source} h JOIN jobs j ON j.id = h.job WHERE {where} GROUP BY {', '.join(keys)}"
        f" ORDER BY {', '.join(order)} LIMIT ?"
    )
    found = []
    for row in reader.execute(query, (*values, *more, limit)):
        names = dict(zip(columns, row, strict=False))
        simulated, jobs, cost, unpriced_s, *amounts = row[len(columns) :]
        for part in _TIMES:
            if part in names:
                names[part] = _moment(names[part], part)
        found.append(
            Sum(
                {name: str(value) for name, value in names.items()},
                bool(simulated),
                jobs,
                Amounts._make(amounts),
                None if simulated or cost is None else cost / HOUR_S,
                0.0 if simulated else unpriced_s,
            )
        )
    return found


def _source(wanted: UsageFilter, *, whole_days: bool) -> tuple[str, list[object]]:
    """The rows of the window: its whole days as such, its first and last hours."""
    since, until = int(wanted.since.timestamp()), int(wanted.until.timestamp())
    first, last = -(-since // DAY_S) * DAY_S, until // DAY_S * DAY_S
    columns = ", ".join(("job", "model", "simulated", "memory_peak_bytes", "memory_total_bytes", *Amounts._fields))
    hours = f"SELECT hour, {columns} FROM hours WHERE hour >= ? AND hour < ?"
    if not whole_days or first >= last:
        return f"({hours})", [since, until]
    days = f"SELECT day AS hour, {columns} FROM days WHERE day >= ? AND day < ?"
    return f"({hours} UNION ALL {days} UNION ALL {hours})", [since, first, first, last, last, until]


def _where(wanted: UsageFilter) -> tuple[str, list[object]]:
    parts, listed = ["true"], list[object]()
    if wanted.projects is not None:
        parts.append("j.project IN (SELECT value FROM json_each(?))")
        listed.append(json.dumps(sorted(wanted.projects)))
    for column, value in (("j.queue", wanted.queue), ("j.user", wanted.user)):
        if value is not None:
            parts.append(f"{column} = ?")
            listed.append(value)
    return " AND ".join(parts), listed


def _moment(unix_s: int, by: By) -> str:
    at = datetime.fromtimestamp(unix_s, UTC)
    return f"{at:%Y-%m-%d}" if by is By.DAY else f"{at:%Y-%m-%dT%H:00Z}"
