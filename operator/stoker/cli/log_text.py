"""A log's frames as the text that was printed, to the byte; and what of it a terminal gets to see.

Called by `client.py` and the commands that print logs.
"""

from __future__ import annotations

import re

from .errors import ApiError
from .sse import Frame
from .views import LogChunk


class LogReader:
    """Turns `log` frames into text as it was printed. A frame leaves out its last line's end, if that has one."""

    def __init__(self, worker: int, *, from_start: bool) -> None:
        self._worker = worker
        self._at: tuple[int, int | None] = (0, 0 if from_start else None)

    def __call__(self, frame: Frame) -> LogChunk | None:
        if frame.event != "log":
            return None
        number, _, text_offset = (frame.id or "").partition(".")
        if not (number.isdecimal() and text_offset.isdecimal()):
            raise ApiError(200, "NotStoker", f"the log's position {frame.id!r} is none; is the server a newer one?")
        attempt, offset = int(number), int(text_offset)
        before = self._at[1] if attempt == self._at[0] or not self._at[0] else 0
        self._at = (attempt, offset)
        # A piece of an overlong line, and a last line without an end, fill their bytes exactly.
        whole = before is not None and offset - before == len(frame.data.encode())
        return LogChunk(self._worker, attempt, offset, frame.data if whole else frame.data + "\n")


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# C0 but tab, line feed and carriage return; DEL; C1; what turns the direction of writing.
_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def for_terminal(text: str) -> str:
    """A log is anybody's text: without colours, and with a `?` for what a terminal would obey (titles, clipboard)."""
    return _OBEYED.sub("?", _COLOUR.sub("", text))
