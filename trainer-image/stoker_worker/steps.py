"""How far the program is, by the progress file: its newest contents, and when `step` and checkpoint last changed.

A file that is rewritten with the same step is no progress. Read by the loop (`supervisor`, through
`reporter_side` and `stall`) about once a second; never waits, never writes.
"""

from __future__ import annotations

import os
import time

from .folder import PROGRESS_FILE, read_progress

MYPY = False
if MYPY:
    from typing import Any


class Steps:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: object = None
        self.progress: dict[str, Any] | None = None
        """The newest that could be read, with `stepAt` and the checkpoint's `at`: Unix seconds of their last change."""
        self.step: int | None = None
        """None: the program has written no step yet."""
        self.changed_at = 0.0
        """When we saw `step` change, by the monotonic clock."""
        self._step_at = 0.0
        self._saved: tuple[int, float] | None = None

    def look(self) -> bool:
        """Whether there is a newer progress than at the last call."""
        seen = _stamp(self._folder)
        if seen is None or seen == self._seen:
            return False
        progress = read_progress(self._folder)
        if progress is None:
            return False
        self._seen = seen
        written_at = min(progress["at"], time.time())
        step = progress.get("step")
        if step is not None:
            if step != self.step:
                self.step, self._step_at, self.changed_at = step, written_at, time.monotonic()
            progress["stepAt"] = self._step_at
        saved = progress.get("checkpoint")
        if saved is not None:
            if self._saved is None or self._saved[0] != saved["step"]:
                self._saved = (saved["step"], written_at)
            saved["at"] = self._saved[1]
        self.progress = progress
        return True


def _stamp(folder: str) -> object:
    try:
        stat = os.stat(folder + "/" + PROGRESS_FILE)
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_ino, stat.st_size)
