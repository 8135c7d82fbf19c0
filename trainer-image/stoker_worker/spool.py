"""The log in a pod: the file that waits to be shipped, the same bytes on stdout, and a bound on what may wait.

Owns which bytes of the log are on disk. While more than the limit waits (the api has been away for long) the file is
left as it is and only the newest output is kept, in memory; it follows with a line that says how much is missing
between, when there is room again or the worker ends: so both the beginning and the end of a log survive. The training
never waits.
"""

from __future__ import annotations

import os

from .bounded_log import BoundedLog

MYPY = False
if MYPY:
    from typing import Callable

    from .mirror import Mirror

RESUME_SHARE = 8
"""Writing goes on when an eighth of the limit is free again."""

_PUNCH_HOLE_KEEP_SIZE = 3
_BLOCK = 4096


class Spool(BoundedLog):
    """`BoundedLog` with a mirror, of what the api has not taken. `shipping` False: no api takes it, none is on disk."""

    def __init__(self, path: str, mirror: Mirror, limit_bytes: int, shipping: bool) -> None:
        super().__init__(path, limit_bytes, "the api took no log for long")
        self.mirror = mirror
        self.acknowledged = 0
        """How far the api has it; set by the shipping thread."""
        self._shipping = shipping
        self._passed = 0
        self._reported = False

    @property
    def lossy(self) -> bool:
        return self._newest is not None or super().lossy

    def write(self, data: bytes | memoryview) -> None:
        if not data:
            return
        self.mirror.write(data)
        if self._shipping:
            super().write(data)
        else:
            self._passed += len(data)
            self.at_line_start = data[-1] == 10
        if self.mirror.trouble and self.at_line_start:  # never in the middle of a line
            self._report_trouble()

    def waiting(self) -> int:
        return self.size() - self.acknowledged

    def at_limit(self) -> None:
        """Nothing is written: when the api takes log again, nothing may be missing."""

    def report_loss(self) -> bool:
        room = self._limit - self.waiting()
        if self._newest is not None and room < self._limit // RESUME_SHARE + len(self._newest):
            return False
        self._resume()
        return super().report_loss()

    def finish(self) -> None:
        self._resume()
        self._report_trouble()
        super().finish()

    def size(self) -> int:
        return super().size() if self._shipping else self._passed

    def _report_trouble(self) -> None:
        if self.mirror.trouble and not self._reported:
            self._reported = True
            self.say("stdout (`kubectl logs`) is missing output: %s; this log is not" % self.mirror.trouble)


class SpoolReader:
    """The shipping thread's view of the file: reading at any offset, and freeing what is not needed again."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._punch = _find_fallocate()
        self.kept_from = 0
        """Nothing before this offset can be read any more."""

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, offset: int, limit: int) -> bytes:
        """Raises: OSError."""
        return os.pread(self._fd, limit, offset)

    def free(self, end: int) -> None:
        """Give the disk back what lies before `end`. Where the file system can't, it stays, and that is all."""
        end -= end % _BLOCK
        if self._punch is None or end <= self.kept_from:
            return
        # Said before it is done: a reader must not take zeros for output.
        start, self.kept_from = self.kept_from, end
        if not self._punch(self._fd, start, end - start):
            self.kept_from, self._punch = start, None


def _find_fallocate() -> Callable[[int, int, int], bool] | None:
    """fallocate(2) as `punch(fd, start, length) -> bool`, or None where there is none."""
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        # glibc's `fallocate` has a 32-bit offset on 32-bit machines; musl has only that name, always with 64 bits.
        call = getattr(library, "fallocate64", None) or library.fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    except (ImportError, AttributeError, OSError):
        return None
    return lambda fd, start, length: call(fd, _PUNCH_HOLE_KEEP_SIZE, start, length) == 0
