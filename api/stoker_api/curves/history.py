"""Curves as the file holds them, in part or whole.

Owns the statements that read. Runs in the store's reading thread; called by `routes/curves.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from stoker_api.usage.db import JobFacts

from .thinning import MOST_POINTS, Point, thinned


class KnownJob(NamedTuple):
    facts: JobFacts
    left_out: bool
    """It reported more metrics than are kept."""


@dataclass(frozen=True, slots=True)
class Range:
    """Which points: each bound is within. None: all."""

    metric: str | None = None
    attempt: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    since: float | None = None
    """Unix seconds."""
    until: float | None = None
    points: int = MOST_POINTS
    """At most so many of a metric, all attempts together."""


class Curve(NamedTuple):
    """One metric in one attempt, in the order in which it was reported; never empty."""

    metric: str
    points: list[Point]


def job(reader: sqlite3.Connection, project: str, name: str, uid: str | None) -> KnownJob | None:
    """The job of that uid; without one the newest of that name. None: it has reported nothing, or is forgotten."""
    row = reader.execute(
        "SELECT uid, project, name, queue, user, created, left_out FROM jobs"
        " WHERE project = ? AND name = ? AND uid = ifnull(?, uid) ORDER BY created DESC, id DESC LIMIT 1",
        (project, name, uid),
    ).fetchone()
    return None if row is None else KnownJob(JobFacts._make(row[:6]), bool(row[6]))


def curves(reader: sqlite3.Connection, uid: str, wanted: Range) -> Iterator[Curve]:
    """By metric, then by attempt. Each metric is read as it is asked for."""
    found = reader.execute(
        "SELECT curves.id, metric FROM curves JOIN jobs ON jobs.id = job WHERE uid = ? ORDER BY metric", (uid,)
    ).fetchall()
    for number, metric in found:
        if wanted.metric in (None, metric):
            points = thinned(_points(reader, number, wanted), wanted.points)
            for _, part in groupby(points, lambda point: point.attempt):
                yield Curve(metric, list(part))


def _points(reader: sqlite3.Connection, curve: int, wanted: Range) -> list[Point]:
    bounds = (wanted.attempt, wanted.first_step, wanted.last_step, wanted.since, wanted.until)
    rows = reader.execute(
        "SELECT attempt, step, at, value FROM points WHERE curve = ?"
        " AND attempt = ifnull(?, attempt) AND step >= ifnull(?, step) AND step <= ifnull(?, step)"
        " AND at >= ifnull(?, at) AND at <= ifnull(?, at) ORDER BY n",
        (curve, *bounds),
    )
    return [Point._make(row) for row in rows]
