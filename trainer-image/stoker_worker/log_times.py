"""When the lines of a log were written: a file beside it with one record a second at most.

A record is the offset in the log and the time, eight bytes each: what stands from there on was written then or up to a
second later. Written by `output.Log` on one machine, and by the api where workers ship their logs (then it is the time
of arrival); read by the api. A log without one, or a disk that takes none, costs the times and nothing else. On one
machine the job itself can write the file: what is read of it is bounded, whatever stands there.
"""

from __future__ import annotations

import os

MYPY = False
if MYPY:
    from typing import List, Optional, Tuple

SUFFIX = ".times"
RECORD_BYTES = 16
SPACING_S = 1.0
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LATEST_MS = 32_503_680_000_000
"""The year 3000."""
_FINE_BYTES = 1 << 20
"""18 hours of output without a pause; then the records are ten times as far apart."""


class LogTimes:
    """The file of one log, open for appending."""

    def __init__(self, path: str) -> None:
        """Raises: OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._cut()
        self._last_ms = _record(self._fd, self._size // RECORD_BYTES - 1)[1] if self._size else -1

    def close(self) -> None:
        os.close(self._fd)

    def due(self, now_s: float) -> bool:
        """A record at this time adds something new."""
        spacing_s = SPACING_S if self._size < _FINE_BYTES else 10 * SPACING_S
        return now_s * 1000 >= self._last_ms + spacing_s * 1000 or self._last_ms < 0

    def note(self, offset: int, now_s: float) -> None:
        """What comes at `offset` is written now."""
        ms = int(now_s * 1000)
        try:
            written = os.write(self._fd, offset.to_bytes(8, "little") + ms.to_bytes(8, "little"))
            self._size += written
            self._cut()
        except OSError:
            return
        self._last_ms = ms

    def _cut(self) -> None:
        """Without half a record: of a process that was killed, or of a full disk."""
        if self._size % RECORD_BYTES:
            self._size -= self._size % RECORD_BYTES
            os.ftruncate(self._fd, self._size)


def offset_since(path: str, since_s: float) -> Optional[int]:
    """Where in the log that begins which was written since, to the second. None: nothing was. Raises: OSError."""
    fd = os.open(path, _READ)
    try:
        count = os.fstat(fd).st_size // RECORD_BYTES
        at = _first(fd, count, lambda record: record[1] > (since_s - SPACING_S) * 1000)
        return None if at == count else _record(fd, at)[0]
    finally:
        os.close(fd)


def times_of(path: str, begin: int, end: int) -> List[Tuple[int, float]]:
    """(Offset, unix time) of what stands at `begin`, and of each later record before `end`. Raises: OSError."""
    fd = os.open(path, _READ)
    try:
        count = os.fstat(fd).st_size // RECORD_BYTES
        first = max(0, _first(fd, count, lambda record: record[0] > begin) - 1)
        last = min(_first(fd, count, lambda record: record[0] >= end), first + max(0, end - begin) + 1)
        data = os.pread(fd, max(0, last - first) * RECORD_BYTES, first * RECORD_BYTES)
        found = [_parsed(data[at : at + RECORD_BYTES]) for at in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES)]
        return [(max(begin, offset), ms / 1000) for offset, ms in found]
    finally:
        os.close(fd)


def _first(fd: int, count: int, holds: object) -> int:
    """The first record for which it holds, and then for all behind it; `count`: for none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(_record(fd, middle)):  # type: ignore[operator]
            high = middle
        else:
            low = middle + 1
    return low


def _record(fd: int, at: int) -> Tuple[int, int]:
    return _parsed(os.pread(fd, RECORD_BYTES, at * RECORD_BYTES))


def _parsed(data: bytes) -> Tuple[int, int]:
    return int.from_bytes(data[:8], "little"), min(int.from_bytes(data[8:], "little"), _LATEST_MS)
