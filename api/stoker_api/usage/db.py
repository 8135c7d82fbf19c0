"""The SQLite file of usage: receipts, what they sum to by hour and by day, and the jobs they are of.

Owns every statement that writes, the schema and what the file promises: a batch of receipts is in it whole or not at
all, with the sums that belong to it, and what was committed survives kill -9 and a power cut (WAL, synchronous=FULL).
Every method blocks; one thread at a time (`store.py`). `history.py` reads over a connection of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.spec.usage import GpuReceipt
from stoker_api.kept_file import prepared
from stoker_api.usage.amounts import AHEAD_S, DAY_S, HOUR_S, hours, increase

from .amounts import Amounts

APPLICATION_ID = 0x53746F55  # "StoU"
_SUMS = Amounts._fields
MOST_KEYS = 4096
"""Of one worker in one attempt: its GPUs, each once for every ledger that was lost meanwhile."""

MIGRATIONS: tuple[str, ...] = (
    f"""
    CREATE TABLE jobs (
      id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, project TEXT NOT NULL, name TEXT NOT NULL, queue TEXT NOT NULL,
      user TEXT NOT NULL, created REAL NOT NULL, last_at REAL NOT NULL
    );
    CREATE INDEX jobs_by_name ON jobs (project, name, created);
    CREATE TABLE receipts (
      job INTEGER NOT NULL REFERENCES jobs (id), attempt INTEGER NOT NULL, worker INTEGER NOT NULL, uuid TEXT NOT NULL,
      ledger TEXT NOT NULL, seq INTEGER NOT NULL, json TEXT NOT NULL,
      PRIMARY KEY (job, attempt, worker, uuid, ledger)
    ) WITHOUT ROWID;
    CREATE TABLE hours (
      hour INTEGER NOT NULL, job INTEGER NOT NULL REFERENCES jobs (id), model TEXT NOT NULL, simulated INTEGER NOT NULL,
      memory_peak_bytes INTEGER NOT NULL, memory_total_bytes INTEGER NOT NULL,
      {", ".join(f"{name} REAL NOT NULL" for name in _SUMS)},
      PRIMARY KEY (hour, job, model, simulated)
    ) WITHOUT ROWID;
    CREATE INDEX hours_by_job ON hours (job);
    CREATE TABLE days (
      day INTEGER NOT NULL, job INTEGER NOT NULL REFERENCES jobs (id), model TEXT NOT NULL, simulated INTEGER NOT NULL,
      memory_peak_bytes INTEGER NOT NULL, memory_total_bytes INTEGER NOT NULL,
      {", ".join(f"{name} REAL NOT NULL" for name in _SUMS)},
      PRIMARY KEY (day, job, model, simulated)
    ) WITHOUT ROWID;
    CREATE INDEX days_by_job ON days (job);
    """,
)
"""The n-th script leads from schema n to n + 1. Append, never change: files of every age are out there."""

_ADD = f"""
INSERT INTO {{table}} VALUES (?, ?, ?, ?, ?, ?, {", ".join("?" for _ in _SUMS)}) ON CONFLICT DO UPDATE SET
  memory_peak_bytes = max(memory_peak_bytes, excluded.memory_peak_bytes),
  memory_total_bytes = max(memory_total_bytes, excluded.memory_total_bytes),
  {", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)}
"""


class JobFacts(NamedTuple):
    """What the history keeps of a job when the job itself is gone."""

    uid: str
    project: str
    name: str
    queue: str
    user: str
    created_at: float
    """Unix seconds."""


class BatchOutcome(NamedTuple):
    """What became of a batch, by index into it."""

    new: list[int]
    stale: list[int]
    """Known already, or older than what is known."""
    refused: list[tuple[int, str]]


class UsageFile:
    """Raises everywhere: sqlite3.Error (OperationalError: not now; other DatabaseErrors: the file is damaged)."""

    def __init__(self, path: Path) -> None:
        """Raises besides: NewerFile, OSError."""
        self._run = prepared(
            path, application_id=APPLICATION_ID, migrations=MIGRATIONS, what="usage", synchronous="FULL"
        )

    def close(self) -> None:
        self._run.close()

    def register(self, jobs: Iterable[JobFacts], now_s: float) -> None:
        """Know these jobs from now on, whether or not anything comes of them."""
        with self._run:
            self._register(jobs, now_s)

    def take(self, jobs: Iterable[JobFacts], receipts: Sequence[GpuReceipt], now_s: float) -> BatchOutcome:
        """Commit what is new in the batch; jobs are those that are known now, others must be in the file already."""
        found = BatchOutcome([], [], [])
        sums: dict[tuple[int, int, str, bool], Amounts] = defaultdict(Amounts)
        peaks: dict[tuple[int, int, str, bool], tuple[int, int]] = {}
        with self._run:
            self._register(jobs, now_s)
            for index, receipt in enumerate(receipts):
                job, created_at = self._job(receipt.job_uid)
                if job is None:
                    found.refused.append((index, "there is no such job, and nothing is known of one"))
                    continue
                if receipt.allocated_s > now_s - created_at + AHEAD_S:
                    found.refused.append((index, "allocatedS is more than the time since the job was made"))
                    continue
                before = self._before(job, receipt)
                if before is not None and before.seq >= receipt.seq:
                    found.stale.append(index)
                    continue
                if before is not None and receipt.allocated_s < before.allocated_s:
                    found.refused.append((index, "allocatedS went back; a new ledger needs a new id"))
                    continue
                keys, node = self._of_worker(job, receipt)
                if node not in ("", receipt.node):
                    found.refused.append((index, "another node has reported for this worker of this attempt"))
                    continue
                if before is None and keys >= MOST_KEYS:
                    found.refused.append((index, f"this worker has {MOST_KEYS} GPUs and ledgers already"))
                    continue
                begin_s = receipt.begin_at if before is None else before.at
                added = increase(receipt, before)
                for hour, share in hours(begin_s, receipt.at):
                    key = (hour, job, receipt.model, receipt.simulated)
                    sums[key] = sums[key].plus(added.times(share))
                    peaks[key] = _higher(peaks.get(key), receipt)
                self._keep(job, receipt)
                found.new.append(index)
            rows = [(*key, *peaks[key], *amounts) for key, amounts in sums.items()]
            self._run.executemany(_ADD.format(table="hours"), rows)
            # The same by day: a month of a thousand jobs is read in a tenth of the time.
            self._run.executemany(_ADD.format(table="days"), [(row[0] // DAY_S * DAY_S, *row[1:]) for row in rows])
        return found

    def job(self, project: str, name: str) -> JobFacts | None:
        """The newest job of that name."""
        row = self._run.execute(
            "SELECT uid, project, name, queue, user, created FROM jobs WHERE project = ? AND name = ?"
            " ORDER BY created DESC, id DESC LIMIT 1",
            (project, name),
        ).fetchone()
        return None if row is None else JobFacts._make(row)

    def known(self, uids: Iterable[str]) -> set[str]:
        """Those of which something is known."""
        return {uid for uid in uids if self._job(uid)[0] is not None}

    def receipts(self, uid: str) -> list[GpuReceipt]:
        """The newest receipt of each key of a job."""
        found = self._run.execute(
            "SELECT json FROM receipts JOIN jobs ON jobs.id = receipts.job WHERE jobs.uid = ?", (uid,)
        )
        return [GpuReceipt.model_validate_json(text) for (text,) in found]

    def all_receipts(self, since_s: float) -> Iterator[GpuReceipt]:
        """Of all jobs that had one since then."""
        found = self._run.execute(
            "SELECT json FROM receipts JOIN jobs ON jobs.id = receipts.job WHERE jobs.last_at >= ?", (since_s,)
        )
        for (text,) in found:
            yield GpuReceipt.model_validate_json(text)

    def forget_before(self, at_s: float) -> int:
        """Forget hours before then, and jobs that had nothing since; how many rows went."""
        with self._run:
            gone = self._run.execute("DELETE FROM hours WHERE hour < ?", (int(at_s // HOUR_S) * HOUR_S,)).rowcount
            gone += self._run.execute("DELETE FROM days WHERE day < ?", (int(at_s // DAY_S) * DAY_S,)).rowcount
            # Receipts of a job go together: the totals of one that goes on stay the whole of it.
            old = "SELECT id FROM jobs WHERE last_at < ?"
            for table in ("hours", "days", "receipts"):
                gone += self._run.execute(f"DELETE FROM {table} WHERE job IN ({old})", (at_s,)).rowcount
            gone += self._run.execute("DELETE FROM jobs WHERE last_at < ?", (at_s,)).rowcount
        return gone

    def _register(self, jobs: Iterable[JobFacts], now_s: float) -> None:
        self._run.executemany(
            "INSERT INTO jobs (uid, project, name, queue, user, created, last_at) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (uid) DO NOTHING",
            [(*job, now_s) for job in jobs],
        )

    def _job(self, uid: str) -> tuple[int | None, float]:
        """Its number, None if nothing is known of it; when it was made."""
        row = self._run.execute("SELECT id, created FROM jobs WHERE uid = ?", (uid,)).fetchone()
        return (None, 0.0) if row is None else (int(row[0]), float(row[1]))

    def _of_worker(self, job: int, receipt: GpuReceipt) -> tuple[int, str]:
        """How many keys the receipt's worker has, and the one node they are of (an attempt's worker never moves)."""
        count, node = self._run.execute(
            "SELECT count(*), min(json_extract(json, '$.node')) FROM receipts"
            " WHERE job = ? AND attempt = ? AND worker = ?",
            (job, receipt.attempt, receipt.worker),
        ).fetchone()
        return int(count), node or ""

    def _before(self, job: int, receipt: GpuReceipt) -> GpuReceipt | None:
        row = self._run.execute(
            "SELECT json FROM receipts WHERE job = ? AND attempt = ? AND worker = ? AND uuid = ? AND ledger = ?",
            (job, receipt.attempt, receipt.worker, receipt.uuid, receipt.ledger),
        ).fetchone()
        return None if row is None else GpuReceipt.model_validate_json(row[0])

    def _keep(self, job: int, receipt: GpuReceipt) -> None:
        text = receipt.model_dump_json(by_alias=True, exclude_none=True)
        self._run.execute(
            "INSERT OR REPLACE INTO receipts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job, receipt.attempt, receipt.worker, receipt.uuid, receipt.ledger, receipt.seq, text),
        )
        self._run.execute("UPDATE jobs SET last_at = max(last_at, ?) WHERE id = ?", (receipt.at, job))


def _higher(known: tuple[int, int] | None, receipt: GpuReceipt) -> tuple[int, int]:
    peak, total = known or (0, 0)
    return max(peak, receipt.memory_peak_bytes or 0), max(total, receipt.memory_total_bytes or 0)
