"""Workers' logs, to read and to follow: part of a log, and waiting for more of it.

Never parses a line. A thousand followers cost one `stat` per followed log and tick. Called by the api through its own
protocol.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from stoker.spec.worker import EXIT_FILE, LOG_FILE, STARTED_FILE, LogPart
from stoker_worker.log_times import SUFFIX, offset_since, times_of

from .folders import Places, WorkerFolder

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TICK_S = 0.15
_WOKEN_AT_ONCE = 16
_LOCK_EVERY = 10
"""Ticks between two looks at the lock of a log that does not grow: a killed supervisor writes no exit record."""


@dataclass(slots=True)
class _Followed:
    """One log that is waited on: (offset, who waits)."""

    waiters: set[tuple[int, asyncio.Future[None]]] = field(default_factory=set)
    ticks: int = 0


class WorkerLogs:
    def __init__(self, datadir: Places) -> None:
        self._workers = datadir.workers
        self._followed: dict[str, _Followed] = {}
        self._ticking: asyncio.Task[None] | None = None

    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        """At most `limit` bytes from `offset` on; None if there is no such log (yet, or any more)."""
        if not _UID.fullmatch(pod_uid):
            return None
        return await asyncio.to_thread(_read, self._workers, pod_uid, offset, limit)

    async def offset_since(self, pod_uid: str, since_s: float) -> int | None:
        """Where that begins which was written since then (unix time); None: nothing was. Without times: 0."""
        return await asyncio.to_thread(_offset_since, self._workers, pod_uid, since_s)

    async def times(self, pod_uid: str, begin: int, end: int) -> list[tuple[int, float]]:
        """(Offset, unix time) of what stands at `begin`, and of what was written later before `end`."""
        return await asyncio.to_thread(_times, self._workers, pod_uid, begin, end)

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        """Return once the log is longer than `offset`, has ended, or `timeout_s` is over."""
        if not _UID.fullmatch(pod_uid):
            return
        if pod_uid not in self._followed and (
            _size(self._workers / pod_uid) > offset or _has_ended(self._workers, pod_uid)
        ):
            return  # one that others wait on is looked at in a moment, for all of them
        waiter = (offset, asyncio.get_running_loop().create_future())
        followed = self._followed.setdefault(pod_uid, _Followed())
        followed.waiters.add(waiter)
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter[1]
        except TimeoutError:
            pass
        finally:
            followed.waiters.discard(waiter)
            if not followed.waiters and self._followed.get(pod_uid) is followed:
                del self._followed[pod_uid]

    async def _tick(self) -> None:
        """Look at every followed log until none is."""
        while self._followed:
            await asyncio.sleep(TICK_S)
            for pod_uid, followed in list(self._followed.items()):
                followed.ticks += 1
                folder = self._workers / pod_uid
                ended = (folder / EXIT_FILE).exists() or (
                    followed.ticks % _LOCK_EVERY == 0 and _has_ended(self._workers, pod_uid)
                )
                size = _size(folder)
                ready = [future for offset, future in followed.waiters if ended or size > offset]
                for number, future in enumerate(ready, 1):
                    if not future.done():
                        future.set_result(None)
                    if number % _WOKEN_AT_ONCE == 0:
                        await asyncio.sleep(0)


def _read(workers: Path, pod_uid: str, offset: int, limit: int) -> LogPart | None:
    ended = _has_ended(workers, pod_uid)  # first: what is written between the two is then seen, not lost
    try:
        fd = os.open(workers / pod_uid / LOG_FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, max(0, min(limit, size - offset)), offset) if 0 <= offset < size else b""
    finally:
        os.close(fd)
    return LogPart(data, size, ended)


def _times_file(workers: Path, pod_uid: str) -> str:
    """Raises: FileNotFoundError for what is no worker's uid."""
    if not _UID.fullmatch(pod_uid):
        raise FileNotFoundError(pod_uid)
    return str(workers / pod_uid / f"{LOG_FILE}{SUFFIX}")


def _offset_since(workers: Path, pod_uid: str, since_s: float) -> int | None:
    try:
        return offset_since(_times_file(workers, pod_uid), since_s)
    except OSError:
        return 0


def _times(workers: Path, pod_uid: str, begin: int, end: int) -> list[tuple[int, float]]:
    try:
        return times_of(_times_file(workers, pod_uid), begin, end)
    except OSError:
        return []


def _size(folder: Path) -> int:
    try:
        return (folder / LOG_FILE).stat().st_size
    except OSError:
        return 0


def _has_ended(workers: Path, pod_uid: str) -> bool:
    """Whether nothing will be written any more: there is an exit record, or the supervisor died without one."""
    folder = workers / pod_uid
    if (folder / EXIT_FILE).exists():
        return True
    return (folder / STARTED_FILE).exists() and not WorkerFolder(workers, pod_uid).is_held()
