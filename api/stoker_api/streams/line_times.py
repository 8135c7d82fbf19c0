"""Parts of a log by when they were written, cut where lines begin. Pure; called by `log_stream.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple


class TimedPart(NamedTuple):
    """Bytes that stand together, and when they were written (unix time; None: not known)."""

    at_s: float | None
    data: bytes


def timed_parts(data: bytes, begin: int, times: Sequence[tuple[int, float]]) -> list[TimedPart]:
    """`data`, which stands at `begin`, cut at the first line that begins at or behind each time's offset."""
    parts: list[TimedPart] = []
    from_, at_s = 0, times[0][1] if times else None
    for offset, later_s in times[1:]:
        cut = data.find(b"\n", max(0, offset - begin - 1)) + 1
        if not cut:
            break
        if cut > from_:
            parts.append(TimedPart(at_s, data[from_:cut]))
            from_ = cut
        at_s = later_s
    return [*parts, TimedPart(at_s, data[from_:])] if from_ < len(data) else parts


def stamp(at_s: float | None) -> str:
    """RFC 3339 to the second; '-': not known."""
    return "-" if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


class Stamper:
    """Writes the time before each line."""

    def __init__(self) -> None:
        self._at_line_start = True

    def stamped(self, part: TimedPart) -> bytes:
        before = f"{stamp(part.at_s)} ".encode()
        ends = part.data.endswith(b"\n")
        body = (part.data[:-1] if ends else part.data).replace(b"\n", b"\n" + before)
        text = (before if self._at_line_start else b"") + body + (b"\n" if ends else b"")
        self._at_line_start = ends
        return text
