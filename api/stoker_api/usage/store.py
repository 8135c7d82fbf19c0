"""The usage that is kept on disk: `usage.db` in the api's data folder, with its threads.

Owns who may use the file's connections (one thread writes, one reads), what happens to a damaged file (it is set aside
and a new one begun: exporters' receipts are cumulative, so what is running is whole again with its next receipt), and
how long things are kept. One process per file. Made by the api's process (`main.py`, `stoker up`), closed by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from stoker.spec.usage import GpuReceipt
from stoker.store.clock import Clock

from .db import BatchOutcome, JobFacts, NewerFile, UsageFile, connect

log = logging.getLogger(__name__)

KEEP_S = 400 * 86400.0
"""A little more than a year, so that a year can be compared with the one before."""
FORGET_EVERY_S = 3600.0
READ_S = 20.0
"""The longest that a question may take: the next one waits for it."""
_STEPS = 10_000  # of SQLite's machine, between two looks at the clock
_FINISHED_S = 86400.0
"""Receipts of jobs that had none for so long are not loaded at the start."""

T = TypeVar("T")


class UsageUnavailable(Exception):
    """The file can't be read or written now (a full disk, say); the message says why."""


class UsageStore:
    """`keep_s`: how long hours and jobs that had nothing since are kept."""

    def __init__(self, path: Path, clock: Clock, *, keep_s: float = KEEP_S) -> None:
        """Opens the file; one that is damaged is set aside. Raises: NewerFile, UsageUnavailable."""
        self._path, self._clock, self.keep_s = path, clock, keep_s
        self._writing = ThreadPoolExecutor(1, "usage")
        self._reading = ThreadPoolExecutor(1, "usage-read")
        self._reader: sqlite3.Connection | None = None
        self._swap = threading.Lock()
        self.damaged = 0
        """How often a file was set aside."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = self._open()
        except (OSError, sqlite3.OperationalError) as error:
            raise UsageUnavailable(f"can't use {path}: {error}") from error

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

    async def take(self, jobs: Iterable[JobFacts], receipts: Sequence[GpuReceipt]) -> BatchOutcome:
        """What became of the receipts; those that are new are on the disk. Raises: UsageUnavailable."""
        listed, now_s = list(jobs), self._now_s()
        return await self._write(lambda file: file.take(listed, receipts, now_s))

    async def register(self, jobs: Iterable[JobFacts]) -> None:
        """Know these jobs: their receipts are taken even when the jobs are gone. Raises: UsageUnavailable."""
        listed, now_s = list(jobs), self._now_s()
        await self._write(lambda file: file.register(listed, now_s))

    async def receipts(self, uid: str) -> list[GpuReceipt]:
        """The newest receipt of each key of a job. Raises: UsageUnavailable."""
        return await self._write(lambda file: file.receipts(uid))

    async def recent(self) -> list[GpuReceipt]:
        """Of jobs that had one lately. Raises: UsageUnavailable."""
        since_s = self._now_s() - _FINISHED_S
        return await self._write(lambda file: list(file.all_receipts(since_s)))

    async def job(self, project: str, name: str) -> JobFacts | None:
        """The newest job of that name, there or gone. Raises: UsageUnavailable."""
        return await self._write(lambda file: file.job(project, name))

    async def known(self, uids: Iterable[str]) -> set[str]:
        """Those of which something is known. Raises: UsageUnavailable."""
        listed = list(uids)
        return await self._write(lambda file: file.known(listed))

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What `ask` reads, in a thread beside the one that writes. Raises: UsageUnavailable."""

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
                        raise UsageUnavailable(f"it took longer than {READ_S:.0f} s; ask for less at once") from error
                    raise

        return await self._in(self._reading, work)

    async def forget_old(self) -> int:
        """Remove what is older than is kept; how many rows. Raises: UsageUnavailable."""
        before_s = self._now_s() - self.keep_s
        return await self._write(lambda file: file.forget_before(before_s))

    async def keep_tidy(self) -> None:
        """Remove what is old now and then, until cancelled."""
        while True:
            try:
                if gone := await self.forget_old():
                    log.info("usage: %d rows older than what is kept were removed", gone)
            except UsageUnavailable as error:
                log.warning("usage can't be tidied now: %s", error)
            await self._clock.sleep(FORGET_EVERY_S)

    async def _write(self, work: Callable[[UsageFile], T]) -> T:
        return await self._in(self._writing, lambda: work(self._file))

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        # Shielded: a client that goes away must not leave a commit that the board never hears of.
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
            raise UsageUnavailable(str(error)) from error

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
            self._file = UsageFile(self._path)

    def _open(self) -> UsageFile:
        try:
            return UsageFile(self._path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as damage:
            self._set_aside(damage)
            return UsageFile(self._path)

    def _set_aside(self, damage: sqlite3.DatabaseError) -> None:
        self.damaged += 1
        aside = self._path.with_name(f"{self._path.name}.damaged-{self._clock.now():%Y%m%dT%H%M%S}-{self.damaged}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").rename(f"{aside}{suffix}")
        log.error(
            "the usage file %s is damaged (%s): it is kept as %s and a new one begun. Usage before now is only in that "
            "file; running jobs are whole again with their exporters' next receipts",
            self._path,
            damage,
            aside.name,
        )

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


__all__ = ["KEEP_S", "BatchOutcome", "JobFacts", "NewerFile", "UsageStore", "UsageUnavailable"]
