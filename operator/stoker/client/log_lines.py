"""A worker's log as the server's stream brings it: frames → text as it was printed. Imports no model."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .errors import unreadable
from .sse import SseFrame


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole lines of one worker's log. `offset`: bytes of the attempt's log up to and with this chunk."""

    worker: int
    attempt: int
    offset: int
    text: str
    at: str | None = None
    """When it was written, where that was asked for: RFC 3339 to the second; '-': not known."""


class LogReader:
    """Turns `log` frames into text as it was printed. A frame leaves out its last line's end, if that has one."""

    def __init__(self, worker: int, *, from_start: bool) -> None:
        self._worker = worker
        self._at: tuple[int, int | None] = (0, 0 if from_start else None)
        self._written: str | None = None

    def __call__(self, frame: SseFrame) -> LogChunk | None:
        if frame.event == "time":
            self._written = _written(frame.data)
        if frame.event != "log":
            return None
        number, _, text_offset = (frame.id or "").partition(".")
        if not (number.isdecimal() and text_offset.isdecimal()):
            raise unreadable("the server", f"position {frame.id!r} of a log")
        attempt, offset = int(number), int(text_offset)
        before = self._at[1] if attempt == self._at[0] or not self._at[0] else 0
        self._at = (attempt, offset)
        # A piece of an overlong line, and a last line without an end, fill their bytes exactly.
        whole = before is not None and offset - before == len(frame.data.encode())
        return LogChunk(self._worker, attempt, offset, frame.data if whole else frame.data + "\n", self._written)


def _written(data: str) -> str:
    try:
        return str(json.loads(data)["at"])
    except (ValueError, TypeError, KeyError):
        raise unreadable("the server", "a time in a log") from None
