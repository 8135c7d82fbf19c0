"""The SQLite file: one table of objects as JSON, a schema version, and one statement per commit.

Owns every SQL statement and what the file promises: a batch is in it whole or not at all, and the highest resource
version ever committed is never forgotten. Knows nothing of models, conflicts or watches. `store` opens and loads it,
then only the writer thread (`commit`) uses it; every method blocks.

Why one statement per batch: each call into SQLite hands Python's lock to the event loop and waits up to 5 ms to get it
back. With a busy loop, 50 rows took 140 ms row by row, 20 ms as one statement inside BEGIN and COMMIT, and 5 ms as this
one statement alone. So a deletion is a row without JSON (a tombstone), swept now and then, and the version counter
is the highest version in the table.

Why synchronous=FULL: an acknowledged write survives a power cut, not just a kill. Commits are shared (`commit`), so
its cost is one fsync per batch: 0.64 ms instead of 0.49 ms for 50 rows on an NVMe disk.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.store.port import StoreError, Unavailable

APPLICATION_ID = 0x53746F6B  # "Stok": sets our file apart from any other SQLite file

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE objects (
      kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
      uid TEXT NOT NULL, rv INTEGER NOT NULL, json TEXT,
      PRIMARY KEY (kind, namespace, name)
    );
    CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO meta VALUES ('rv', 1);
    """,
)
"""The n-th script leads from schema n to n + 1. Append, never change: files of every age are out there."""

BATCH_LIMIT = 512
"""Rows a batch may hold: SQLite takes 32,766 parameters in one statement, and a batch should not take long."""

_SWEEP_EVERY = 1000  # tombstones


class ObjectRow(NamedTuple):
    """An object as stored; `json` None: it was deleted."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: int
    json: str | None


class WrongFile(StoreError):
    """The file is not a store of ours, or of a newer Stoker."""


class Database:
    """An open store file, held exclusively: the state is in our memory, so another writer would go unseen."""

    def __init__(self, path: Path, *, migrations: Sequence[str] = MIGRATIONS) -> None:
        """Open the file, made and brought to the newest schema as needed. Raises: WrongFile, Unavailable."""
        self._path = path
        self._tombstones = 0
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite alone would let others read it
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=0, cached_statements=BATCH_LIMIT
            )
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"can't open {path}: {error}") from error
        try:
            self._prepare(migrations)
        except BaseException:
            self._connection.close()
            raise

    def load(self) -> Iterator[ObjectRow]:
        """Every object in the file. Raises: Unavailable."""
        try:
            yield from map(ObjectRow._make, self._connection.execute("SELECT * FROM objects WHERE json IS NOT NULL"))
        except sqlite3.Error as error:
            raise Unavailable(f"can't read {self._path}: {error}") from error

    def newest_version(self) -> int:
        """The highest version that was ever committed."""
        query = "SELECT max((SELECT value FROM meta WHERE key = 'rv'), ifnull(max(rv), 0)) FROM objects"
        return int(self._connection.execute(query).fetchone()[0])

    def write(self, rows: Sequence[ObjectRow]) -> None:
        """Commit the rows, all or none. At most BATCH_LIMIT, and one per object. Raises: sqlite3.Error."""
        values = ",".join(["(?,?,?,?,?,?)"] * len(rows))
        self._connection.execute(
            f"INSERT INTO objects VALUES {values} ON CONFLICT DO UPDATE"
            " SET uid = excluded.uid, rv = excluded.rv, json = excluded.json",
            [field for row in rows for field in row],
        )
        self._tombstones += sum(row.json is None for row in rows)

    def holds(self, row: ObjectRow) -> bool:
        """Whether this very row is in the file: did a commit that failed happen after all? Raises: sqlite3.Error."""
        found = self._connection.execute(
            "SELECT rv FROM objects WHERE kind = ? AND namespace = ? AND name = ?", row[:3]
        ).fetchone()
        return found is not None and found[0] == row.version

    def probe(self) -> None:
        """Write something that changes nothing. Raises: sqlite3.Error where the disk takes nothing."""
        self._connection.execute("UPDATE meta SET value = value WHERE key = 'rv'")

    def sweep_if_due(self) -> None:
        """Forget tombstones once there are many. Raises: sqlite3.Error."""
        if self._tombstones >= _SWEEP_EVERY:
            self._sweep()

    def close(self) -> None:
        self._connection.close()

    def _sweep(self) -> None:
        # Two commits in this order: the counter must stand elsewhere before the row that holds it goes.
        self._connection.execute("UPDATE meta SET value = ? WHERE key = 'rv'", (self.newest_version(),))
        self._connection.execute("DELETE FROM objects WHERE json IS NULL")
        self._tombstones = 0

    def _prepare(self, migrations: Sequence[str]) -> None:
        run = self._connection.execute
        try:
            run("PRAGMA locking_mode = EXCLUSIVE")
            run("BEGIN EXCLUSIVE")
            run("COMMIT")
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path} is in use by another process ({error})") from error
        except sqlite3.DatabaseError as error:
            raise WrongFile(f"{self._path} is not a Stoker store: {error}") from error
        try:
            version = self._check_schema(len(migrations))
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = FULL")
            run(f"PRAGMA journal_size_limit = {16 * 2**20}")
            for number in range(version, len(migrations)):
                self._connection.executescript(
                    f"BEGIN; {migrations[number]}; PRAGMA user_version = {number + 1};"
                    f"PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
                )
            self._sweep()
        except sqlite3.Error as error:
            raise Unavailable(f"can't prepare {self._path}: {error}") from error

    def _check_schema(self, newest: int) -> int:
        """The file's schema version, 0 for a new file. Raises: WrongFile."""
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != APPLICATION_ID and (tables or version):
            raise WrongFile(f"{self._path} is an SQLite file, but not a Stoker store; choose another data folder")
        if version > newest:
            raise WrongFile(
                f"{self._path} was written by a newer Stoker (schema {version}; this one knows {newest}): "
                "upgrade Stoker, or choose another data folder"
            )
        return int(version)
