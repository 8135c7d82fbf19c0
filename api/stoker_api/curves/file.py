"""The SQLite file of curves: the jobs, their metrics, and the points that stay of each.

Owns every statement that writes, the schema and its limits. The end of each curve (`thinning.Tail`) is in the file with
its points, so nothing is lost but what was not written. A commit survives kill -9; a power cut may cost the newest ones
(WAL, synchronous=NORMAL). Every method blocks; one thread at a time (`store.py`). `history.py` reads over a connection
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stoker_api.kept_file import prepared
from stoker_api.usage.db import JobFacts

from .gpu_points import MOST_GPUS, PREFIX
from .thinning import MOST_POINTS, Point, Tail, added, halved, is_full

APPLICATION_ID = 0x53746F43  # "StoC"
MOST_METRICS = 64
"""That a job has reported, by the order in which they came."""
MOST_OF_GPUS = 4 * MOST_GPUS
"""Curves of its GPUs, besides."""
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
      id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, project TEXT NOT NULL, name TEXT NOT NULL, queue TEXT NOT NULL,
      user TEXT NOT NULL, created REAL NOT NULL, last_at REAL NOT NULL, left_out INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX jobs_by_name ON jobs (project, name, created);
    CREATE INDEX jobs_by_age ON jobs (last_at);
    CREATE TABLE curves (
      id INTEGER PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs (id), metric TEXT NOT NULL,
      bucket INTEGER NOT NULL, filled INTEGER NOT NULL, settled INTEGER NOT NULL,
      UNIQUE (job, metric)
    );
    CREATE TABLE points (
      curve INTEGER NOT NULL REFERENCES curves (id), n INTEGER NOT NULL,
      attempt INTEGER NOT NULL, step INTEGER NOT NULL, at REAL NOT NULL, value REAL NOT NULL,
      PRIMARY KEY (curve, n)
    ) WITHOUT ROWID;
    """,
)
"""The n-th script leads from schema n to n + 1. Append, never change: files of every age are out there.

points: n counts a curve's settled points from 0; those from curves.settled on are of its open bucket.
"""


class Sample(NamedTuple):
    """What a job reported at one moment."""

    attempt: int
    step: int
    at: float
    """Unix seconds."""
    values: Mapping[str, float]


class CurveFile:
    """Raises everywhere: sqlite3.Error (OperationalError: not now; other DatabaseErrors: the file is damaged).

    Invariant: at most MOST_METRICS + MOST_OF_GPUS curves of a job, with MOST_POINTS points each.
    """

    def __init__(self, path: Path) -> None:
        """Raises besides: NewerFile, OSError."""
        self._run = prepared(
            path, application_id=APPLICATION_ID, migrations=MIGRATIONS, what="curves", synchronous="NORMAL"
        )

    def close(self) -> None:
        self._run.close()

    def add(self, jobs: Iterable[tuple[JobFacts, Sequence[Sample]]]) -> None:
        """Commit what jobs reported, in the order in which they did."""
        with self._run:
            for facts, samples in jobs:
                if samples:
                    self._add(facts, samples)

    def held_bytes(self) -> int:
        """What the file holds; pages that are free to be used again left out."""
        pragma = {name: self._run.execute(f"PRAGMA {name}").fetchone()[0] for name in _SIZES}
        return int((pragma["page_count"] - pragma["freelist_count"]) * pragma["page_size"])

    def forget(self, before_s: float, most_bytes: int, lives: Callable[[str], bool]) -> tuple[int, bool]:
        """Forget ended jobs: those that reported nothing since, then the oldest until the limit is met.

        Returns: how many went, and whether more is held nevertheless (by jobs that have not ended).
        """
        gone = 0
        ended = [
            (number, last_at)
            for number, uid, last_at in self._run.execute("SELECT id, uid, last_at FROM jobs ORDER BY last_at, id")
            if not lives(uid)
        ]
        for number, last_at in ended:
            if last_at >= before_s and self.held_bytes() <= most_bytes:
                break
            with self._run:
                self._forget(number)
            gone += 1
        return gone, self.held_bytes() > most_bytes

    def _forget(self, job: int) -> None:
        self._run.execute("DELETE FROM points WHERE curve IN (SELECT id FROM curves WHERE job = ?)", (job,))
        self._run.execute("DELETE FROM curves WHERE job = ?", (job,))
        self._run.execute("DELETE FROM jobs WHERE id = ?", (job,))

    def _add(self, facts: JobFacts, samples: Sequence[Sample]) -> None:
        last_at = samples[-1].at
        (job,) = self._run.execute(
            "INSERT INTO jobs (uid, project, name, queue, user, created, last_at) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (uid) DO UPDATE SET last_at = max(last_at, excluded.last_at) RETURNING id",
            (*facts, last_at),
        ).fetchone()
        points: dict[str, list[Point]] = {}
        for sample in samples:
            for metric, value in sample.values.items():
                points.setdefault(metric, []).append(Point(sample.attempt, sample.step, sample.at, value))
        curves = {
            metric: (number, bucket, filled, settled)
            for number, metric, bucket, filled, settled in self._run.execute(
                "SELECT id, metric, bucket, filled, settled FROM curves WHERE job = ?", (job,)
            )
        }
        for metric, new in points.items():
            if metric not in curves:
                of_gpus = metric.startswith(PREFIX)
                alike = sum(name.startswith(PREFIX) == of_gpus for name in curves)
                if alike >= (MOST_OF_GPUS if of_gpus else MOST_METRICS):
                    self._run.execute("UPDATE jobs SET left_out = 1 WHERE id = ?", (job,))
                    continue
                made = self._run.execute("INSERT INTO curves VALUES (NULL, ?, ?, 1, 0, 0)", (job, metric))
                curves[metric] = (int(made.lastrowid or 0), 1, 0, 0)
            self._extend(*curves[metric], new)

    def _extend(self, curve: int, bucket: int, filled: int, settled: int, new: Sequence[Point]) -> None:
        tail = Tail(bucket, filled, tuple(self._points(curve, settled)))
        fresh: list[Point] = []
        begin = settled  # `fresh` begins with this one
        for point in new:
            done, tail = added(tail, point)
            fresh += done
            if is_full(begin + len(fresh)):
                fresh, larger = halved([*self._points(curve, 0, begin), *fresh], tail.bucket)
                begin, tail = 0, tail._replace(bucket=larger)
        self._run.execute("DELETE FROM points WHERE curve = ? AND n >= ?", (curve, min(begin, settled)))
        rows = [(curve, begin + place, *point) for place, point in enumerate((*fresh, *tail.open))]
        self._run.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._run.execute(
            "UPDATE curves SET bucket = ?, filled = ?, settled = ? WHERE id = ?",
            (tail.bucket, tail.filled, begin + len(fresh), curve),
        )

    def _points(self, curve: int, begin: int, end: int = MOST_POINTS) -> list[Point]:
        found = self._run.execute(
            "SELECT attempt, step, at, value FROM points WHERE curve = ? AND n >= ? AND n < ? ORDER BY n",
            (curve, begin, end),
        )
        return [Point._make(row) for row in found]


_SIZES = ("page_count", "freelist_count", "page_size")
