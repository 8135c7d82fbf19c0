"""All shipped logs of this api: a folder, its accounting and its limits, safe for many posts at once.

Owns which logs there are and that no two threads write one. Never asks whether a worker may post (`routes/report.py`)
and never parses a line. Called by `source.py`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stoker_api.disk import MIN_FREE_BYTES, free_bytes

from .log_file import DiskFull, LogOwner, StoredLog

log = logging.getLogger(__name__)
T = TypeVar("T")

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Units: bytes. What is refused stays with the worker, which bounds it by its own limit."""

    total: int | None = None
    """All logs together; None: as much as the disk takes."""
    worker: int | None = None
    """One worker's log."""
    min_free: int = MIN_FREE_BYTES
    """Left free on the disk."""


class LogsFull(Exception):
    """The log is not taken now; the text says which limit was met."""


class LogGone(Exception):
    """The log was removed, with its job."""


class _Shipped:
    def __init__(self, stored: StoredLog) -> None:
        self.stored = stored
        self.lock = threading.Lock()
        self.size = stored.size()
        self.gone = False


class ShippedLogs:
    """Cost: CPU of an append 0.25 ms for 64 KiB, 1 ms for 1 MiB (busy 2-core build machine, means)."""

    def __init__(self, folder: Path, limits: LogLimits | None = None) -> None:
        """Reads the folder: what an earlier process left is there again. Raises: OSError."""
        self._folder = folder
        self._limits = limits or LogLimits()
        self._guard = threading.Lock()
        self._entries: dict[str, _Shipped] = {}
        self._total = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in folder.iterdir():
            if path.suffix == ".tmp":
                path.unlink()
            elif path.suffix == ".json":
                try:
                    entry = _Shipped(StoredLog.load(path))
                except (OSError, ValueError) as error:
                    log.warning("a log is left out, its index can't be read: %s", error)
                    continue
                self._entries[path.stem] = entry
                self._total += entry.size

    @property
    def total_bytes(self) -> int:
        """What all logs take."""
        return self._total

    def __len__(self) -> int:
        return len(self._entries)

    def owner(self, pod_uid: str) -> LogOwner | None:
        entry = self._entries.get(pod_uid)
        return None if entry is None else entry.stored.owner

    def size(self, pod_uid: str) -> int | None:
        """Bytes that can be read; None: there is no such log."""
        entry = self._entries.get(pod_uid)
        return None if entry is None else entry.size

    def is_complete(self, pod_uid: str) -> bool:
        entry = self._entries.get(pod_uid)
        return entry is not None and entry.stored.complete

    def is_pulled(self, pod_uid: str) -> bool:
        """Whether it was begun from the kubelet's copy, because the worker ships none."""
        entry = self._entries.get(pod_uid)
        return entry is not None and entry.stored.pulled

    def of_jobs(self) -> dict[str, list[str]]:
        """Job uid → the pods whose logs are its."""
        found: dict[str, list[str]] = {}
        for pod_uid, entry in list(self._entries.items()):
            found.setdefault(entry.stored.owner.job_uid, []).append(pod_uid)
        return found

    async def append(self, pod_uid: str, owner: LogOwner, offset: int, data: bytes, *, lost: bool = False) -> int:
        """Take what is new of the worker's bytes from `offset` on; the offset to go on at, all before it is held.

        Raises: Gap, LogsFull, LogGone, OSError.
        """

        def write(entry: _Shipped) -> int:
            stored = entry.stored
            held = stored.held()
            if offset + len(data) > held:
                self._check_room(entry, min(len(data), offset + len(data) - held))
            try:
                return stored.append(offset, data, lost=lost)
            except DiskFull as error:
                raise LogsFull(f"the api's disk takes no more: {error}") from None

        return await self._locked(pod_uid, owner, write)

    async def held(self, pod_uid: str, owner: LogOwner) -> int:
        """The offset to go on at; makes an empty log where there is none. Raises: LogsFull, LogGone, OSError."""
        return await self._locked(pod_uid, owner, lambda entry: entry.stored.held())

    async def begin_pull(self, pod_uid: str, owner: LogOwner) -> int:
        """As `held`, of a log that is fetched from the kubelet. Raises: LogsFull, LogGone, OSError."""

        def begin(entry: _Shipped) -> int:
            entry.stored.mark_pulled(True)
            return entry.stored.held()

        return await self._locked(pod_uid, owner, begin)

    async def end_pull(self, pod_uid: str, owner: LogOwner) -> None:
        """The worker ships it itself after all. Raises: LogsFull, LogGone, OSError."""
        await self._locked(pod_uid, owner, lambda entry: entry.stored.mark_pulled(False))

    async def finish(self, pod_uid: str, owner: LogOwner) -> None:
        """Nothing more will come. Raises: LogsFull, LogGone, OSError."""
        await self._locked(pod_uid, owner, lambda entry: entry.stored.finish())

    async def read(self, pod_uid: str, offset: int, limit: int) -> tuple[bytes, int] | None:
        """At most `limit` bytes from `offset` on, and the size; None: there is no such log."""
        entry = self._entries.get(pod_uid)
        if entry is None:
            return None
        try:
            return await asyncio.to_thread(entry.stored.read, offset, limit)
        except FileNotFoundError:
            return None

    async def offset_since(self, pod_uid: str, since_s: float) -> int | None:
        """Where that begins which came since then (unix time); None: nothing did. Without times: 0."""
        entry = self._entries.get(pod_uid)
        try:
            return 0 if entry is None else await asyncio.to_thread(entry.stored.offset_since, since_s)
        except OSError:
            return 0

    async def times(self, pod_uid: str, begin: int, end: int) -> list[tuple[int, float]]:
        """(Offset, unix time) of what stands at `begin`, and of what came later before `end`."""
        entry = self._entries.get(pod_uid)
        try:
            return [] if entry is None else await asyncio.to_thread(entry.stored.times, begin, end)
        except OSError:
            return []

    async def remove(self, pod_uid: str) -> None:
        """Raises: OSError."""
        entry = self._entries.get(pod_uid)
        if entry is not None:
            await asyncio.to_thread(self._remove, pod_uid, entry)

    async def _locked(self, pod_uid: str, owner: LogOwner, work: Callable[[_Shipped], T]) -> T:
        # Shielded: a request that is cut off must not leave a thread behind that the next one could run into half-way.
        return await asyncio.shield(asyncio.to_thread(self._work, pod_uid, owner, work))

    def _work(self, pod_uid: str, owner: LogOwner, work: Callable[[_Shipped], T]) -> T:
        entry = self._entry(pod_uid, owner)
        with entry.lock:
            if entry.gone:
                raise LogGone(pod_uid)
            try:
                return work(entry)
            finally:
                size = entry.stored.size()
                with self._guard:
                    self._total += size - entry.size
                    entry.size = size

    def _entry(self, pod_uid: str, owner: LogOwner) -> _Shipped:
        with self._guard:
            entry = self._entries.get(pod_uid)
            if entry is None:
                if not _UID.fullmatch(pod_uid):
                    raise LogGone(pod_uid)
                try:
                    entry = _Shipped(StoredLog.create(self._folder, pod_uid, owner))
                except DiskFull as error:
                    raise LogsFull(f"the api's disk takes no more: {error}") from None
                self._entries[pod_uid] = entry
            return entry

    def _remove(self, pod_uid: str, entry: _Shipped) -> None:
        with entry.lock:
            entry.gone = True
            entry.stored.remove()
            with self._guard:
                if self._entries.pop(pod_uid, None) is not None:
                    self._total -= entry.size
                    entry.size = 0

    def _check_room(self, entry: _Shipped, more: int) -> None:
        limits = self._limits
        if limits.worker is not None and entry.size + more > limits.worker:
            raise LogsFull(f"this worker's log has reached its limit of {limits.worker} bytes")
        if limits.total is not None and self._total + more > limits.total:
            raise LogsFull(f"all logs together have reached their limit of {limits.total} bytes")
        if free_bytes(self._folder) - more < limits.min_free:
            raise LogsFull(f"less than {limits.min_free} bytes are free on the api's disk")
