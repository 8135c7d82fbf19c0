"""An SQLite file that the api keeps in its data folder, with its threads.

Owns who may use the file's connections (one thread writes, one reads), what makes a file ours (application id, schema
by `user_version`), and what happens to a damaged one: it is set aside and a new one begun. One process per file. What
is in the file belongs to its keeper: `usage/store.py`, `curves/store.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from stoker.store.clock import Clock

log = logging.getLogger(__name__)

READ_S = 20.0
"""The longest that a question may take: the next one waits for it."""
_STEPS = 10_000  # of SQLite's machine, between two looks at the clock


class NewerFile(Exception):
    """The file was written by a newer Stoker: nothing to repair, and nothing to write into."""


class FileUnavailable(Exception):
    """The file can't be read or written now (a full disk, say); the message says why."""


class Closable(Protocol):
    def close(self) -> None: ...


F = TypeVar("F", bound=Closable)
T = TypeVar("T")


class KeptFile(Generic[F]):
    """`what` names its contents in messages, `lost` says what a new file in place of a damaged one lacks."""

    def __init__(self, path: Path, clock: Clock, open_file: Callable[[Path], F], *, what: str, lost: str) -> None:
        """Opens the file; one that is damaged is set aside. Raises: NewerFile, FileUnavailable."""
        self._path, self._clock, self._open_file, self._what, self._lost = path, clock, open_file, what, lost
        self._writing = ThreadPoolExecutor(1, what)
        self._reading = ThreadPoolExecutor(1, f"{what}-read")
        self._reader: sqlite3.Connection | None = None
        self._swap = threading.Lock()
        self.damaged = 0
        """How often a file was set aside."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self._open()
        except (OSError, sqlite3.OperationalError) as error:
            raise FileUnavailable(f"can't use {path}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Waits for what is being written; nothing may be asked afterwards."""
        self._writing.shutdown()
        self._reading.shutdown()
        self._file.close()
        if self._reader is not None:
            self._reader.close()

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What `ask` reads, in a thread beside the one that writes. Raises: FileUnavailable."""

        def work() -> T:
            with self._swap:
                if self._reader is None:
                    self._reader = connect(self._path)
                    self._reader.execute("PRAGMA query_only = ON")
                stop_s = time.monotonic() + READ_S
                self._reader.set_progress_handler(lambda: time.monotonic() > stop_s, _STEPS)
                try:
                    return ask(self._reader)
                except sqlite3.OperationalError as error:
                    if time.monotonic() > stop_s:
                        raise FileUnavailable(f"it took longer than {READ_S:.0f} s; ask for less at once") from error
                    raise

        return await self._in(self._reading, work)

    async def write(self, work: Callable[[F], T]) -> T:
        """What `work` does to the file, in the thread that writes. Raises: FileUnavailable."""
        return await self._in(self._writing, lambda: work(self._file))

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        # Shielded: a client that goes away must not leave a commit that its caller never learns of.
        return await asyncio.shield(asyncio.ensure_future(self._tried(threads, work)))

    async def _tried(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        loop, seen = asyncio.get_running_loop(), self.damaged
        try:
            try:
                return await loop.run_in_executor(threads, work)
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:
                    raise
                damage = error  # SQLite's own word for a file that is no database, or malformed
            # In the writing thread: nothing else uses the file then, and readers wait.
            await loop.run_in_executor(self._writing, self._replace, damage, seen)
            return await loop.run_in_executor(threads, work)
        except (OSError, sqlite3.OperationalError, sqlite3.DatabaseError) as error:
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            raise FileUnavailable(str(error)) from error

    def _replace(self, damage: sqlite3.DatabaseError, seen: int) -> None:
        """Set the damaged file aside and begin a new one, unless that was done since `seen`."""
        with self._swap:
            if self.damaged != seen:
                return
            self._file.close()
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            self._set_aside(damage)
            self._file = self._open_file(self._path)

    def _open(self) -> F:
        try:
            return self._open_file(self._path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as damage:
            self._set_aside(damage)
            return self._open_file(self._path)

    def _set_aside(self, damage: sqlite3.DatabaseError) -> None:
        self.damaged += 1
        aside = self._path.with_name(f"{self._path.name}.damaged-{self._clock.now():%Y%m%dT%H%M%S}-{self.damaged}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").rename(f"{aside}{suffix}")
        log.error(
            "the file of %s, %s, is damaged (%s): it is kept as %s and a new one begun. %s",
            self._what,
            self._path,
            damage,
            aside.name,
            self._lost,
        )

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


def connect(path: Path) -> sqlite3.Connection:
    """A connection that any one thread at a time may use, and that waits for the other's lock."""
    return sqlite3.connect(path, check_same_thread=False, timeout=10, cached_statements=64)


def prepared(
    path: Path, *, application_id: int, migrations: Sequence[str], what: str, synchronous: str
) -> sqlite3.Connection:
    """The file, made or brought to the newest schema. Raises: NewerFile, OSError, sqlite3.Error.

    The n-th migration leads from schema n to n + 1. `synchronous` FULL: a commit survives a power cut; NORMAL: a killed
    process only.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite alone would let others read it
    run = connect(path)
    try:
        (version,) = run.execute("PRAGMA user_version").fetchone()
        (application,) = run.execute("PRAGMA application_id").fetchone()
        (tables,) = run.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != application_id and (tables or version):
            raise sqlite3.DatabaseError(f"it is an SQLite file, but none of {what}")
        if version > len(migrations):
            raise NewerFile(
                f"{path} was written by a newer Stoker (schema {version}; this one knows {len(migrations)}): "
                "upgrade Stoker, or move the file away"
            )
        run.execute("PRAGMA journal_mode = WAL")
        run.execute(f"PRAGMA synchronous = {synchronous}")
        run.execute(f"PRAGMA journal_size_limit = {16 * 2**20}")
        for number in range(version, len(migrations)):
            run.executescript(
                f"BEGIN; {migrations[number]}; PRAGMA user_version = {number + 1};"
                f"PRAGMA application_id = {application_id}; COMMIT;"
            )
    except BaseException:
        run.close()
        raise
    return run
