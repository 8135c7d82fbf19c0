"""The curves that are kept on disk: `curves.db` in the api's data folder, and how much and how long is kept.

Made by the api's process (`main.py`, `stoker up`), closed by them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.store.clock import Clock
from stoker_api.kept_file import KeptFile
from stoker_api.usage.db import JobFacts

from .file import CurveFile, Sample

log = logging.getLogger(__name__)

KEEP_S = 90 * 86400.0
MOST_BYTES = 2 << 30
_LOST = "Curves before now are only in that file; running jobs go on in the new one"


class CurvesFull(Exception):
    """As much is held as may be, by jobs that have not ended: nothing can make room."""


class CurveStore(KeptFile[CurveFile]):
    """`keep_s`: how long the curves of an ended job stay after its last point; `most_bytes`: what all may take."""

    def __init__(self, path: Path, clock: Clock, *, keep_s: float = KEEP_S, most_bytes: int = MOST_BYTES) -> None:
        """Opens the file; one that is damaged is set aside. Raises: NewerFile, FileUnavailable."""
        super().__init__(path, clock, CurveFile, what="curves", lost=_LOST)
        self.keep_s, self.most_bytes = keep_s, most_bytes

    async def add(self, jobs: Sequence[tuple[JobFacts, Sequence[Sample]]], lives: Callable[[str], bool]) -> None:
        """Commit what jobs reported; ended jobs make room, the oldest first.

        `lives`: whether the job of a uid has not ended; asked in the writing thread.

        Raises: CurvesFull (nothing is added), FileUnavailable.
        """

        def work(file: CurveFile) -> int:
            gone = 0
            if file.held_bytes() > self.most_bytes:
                gone, full = file.forget(0.0, self.most_bytes, lives)
                if full:
                    raise CurvesFull(
                        f"curves of running jobs take {file.held_bytes()} bytes; the limit: {self.most_bytes}"
                    )
            file.add(jobs)
            return gone

        if gone := await self.write(work):
            log.info("curves: %d ended jobs made room", gone)

    async def forget_old(self, lives: Callable[[str], bool]) -> int:
        """Remove ended jobs that are older than is kept; how many. Raises: FileUnavailable."""
        before_s = self._now_s() - self.keep_s
        gone, _ = await self.write(lambda file: file.forget(before_s, self.most_bytes, lives))
        return gone

    async def held_bytes(self) -> int:
        """Raises: FileUnavailable."""
        return await self.write(CurveFile.held_bytes)
