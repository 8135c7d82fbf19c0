"""Cuts a growing log into whole lines, keeping count of bytes. Pure; called by `log_stream.py`."""

from __future__ import annotations

from typing import NamedTuple

LONGEST_LINE = 64 * 1024


class WholeLines(NamedTuple):
    """Whole lines (the last one without its line end) and the offset behind them."""

    text: str
    end: int


class LineCutter:
    """Invariant: the pieces given out, in order, cover the log from `offset` on without gap or double.

    A line ends with \\n, \\r\\n or a lone \\r (progress bars). A longer line than LONGEST_LINE comes in several pieces.
    """

    def __init__(self, offset: int) -> None:
        self.start = offset
        self._held = b""

    def feed(self, data: bytes) -> list[WholeLines]:
        """The whole lines that `data` completes."""
        self._held += data
        found = []
        cut = _last_line_end(self._held)
        if cut:
            found.append(self._take(cut))
        while len(self._held) > LONGEST_LINE:
            found.append(self._take(_character_end(self._held, LONGEST_LINE)))
        return found

    def flush(self) -> list[WholeLines]:
        """What is left when the log has ended: a line without an end."""
        return [self._take(len(self._held))] if self._held else []

    def _take(self, count: int) -> WholeLines:
        data, self._held = self._held[:count], self._held[count:]
        self.start += count
        for end in (b"\r\n", b"\n", b"\r"):
            if data.endswith(end):
                data = data[: -len(end)]
                break
        return WholeLines(data.decode("utf-8", "replace"), self.start)


def _last_line_end(data: bytes) -> int:
    # A \r at the very end may be the first half of \r\n: it waits for what comes next.
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(len(data) - 1, 0))) + 1


def _character_end(data: bytes, at: int) -> int:
    """At most `at`, and not inside a UTF-8 character."""
    cut = at
    while cut > at - 4 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut if data[cut] & 0xC0 != 0x80 else at
