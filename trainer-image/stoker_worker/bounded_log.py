"""A log with a limit: its beginning stays in the file, and its end follows when the worker ends.

Owns what happens at the limit: a line says so, of what comes then the newest is kept in memory, and a line before that
says how much is missing. Called by `reporter_side` on one machine; in a pod `spool` bounds what waits for the api
in the same way.
"""

from __future__ import annotations

from .output import Log

NEWEST_BYTES = 1 << 20


class BoundedLog(Log):
    """`Log` of at most `limit_bytes` and twice what is newest. The training never waits."""

    def __init__(self, path: str, limit_bytes: int, why: str) -> None:
        """`why`: the reason given for output that is missing."""
        super().__init__(path)
        self.path = path
        self._limit = limit_bytes
        self._missing_why = why
        self._newest: bytearray | None = None
        self._left_out = 0
        self._file_at_line_start = True

    def write(self, data: bytes | memoryview) -> None:
        if self._newest is None and self.waiting() + len(data) > self._limit:
            self.at_limit()
            self._file_at_line_start = self.at_line_start
            self._newest = bytearray()
        if self._newest is None:
            super().write(data)
        elif data:
            self._keep_newest(self._newest, data)

    def waiting(self) -> int:
        """How much of the limit is used."""
        return self.size()

    def at_limit(self) -> None:
        """Write to the file that it takes no more, for those who follow it."""
        text = "[stoker] %s: the newest output follows when the worker ends\n" % self._missing_why
        Log.write(self, text.encode() if self.at_line_start else b"\n" + text.encode())
        self.unfinished_rank = -1

    def finish(self) -> None:
        self._resume()
        super().finish()

    def _keep_newest(self, newest: bytearray, data: bytes | memoryview) -> None:
        newest += data
        self.at_line_start = data[-1] == 10
        if len(newest) > 2 * NEWEST_BYTES:
            cut = newest.find(b"\n", len(newest) - NEWEST_BYTES) + 1 or len(newest) - NEWEST_BYTES
            self._left_out += cut
            del newest[:cut]

    def _resume(self) -> None:
        if self._newest is None:
            return
        newest, self._newest = self._newest, None
        left_out, self._left_out = self._left_out, 0
        self.at_line_start = self._file_at_line_start
        if left_out:
            notice = b"[stoker] %d bytes of output are missing here: %s\n" % (left_out, self._missing_why.encode())
            Log.write(self, notice if self.at_line_start else b"\n" + notice)
        Log.write(self, bytes(newest))
