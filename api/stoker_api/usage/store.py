"""The usage that is kept on disk: `usage.db` in the api's data folder.

Owns what may be asked of it and how long things are kept; a new file in place of a damaged one loses little, as
exporters' receipts are cumulative. Made by the api's process (`main.py`, `stoker up`), closed by them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker.spec.usage import GpuReceipt
from stoker.store.clock import Clock
from stoker_api.kept_file import FileUnavailable, KeptFile

from .db import BatchOutcome, JobFacts, UsageFile

log = logging.getLogger(__name__)

KEEP_S = 400 * 86400.0
"""A little more than a year, so that a year can be compared with the one before."""
FORGET_EVERY_S = 3600.0
_FINISHED_S = 86400.0
"""Receipts of jobs that had none for so long are not loaded at the start."""
_LOST = "Usage before now is only in that file; running jobs are whole again with their exporters' next receipts"


class UsageStore(KeptFile[UsageFile]):
    """`keep_s`: how long hours and jobs that had nothing since are kept."""

    def __init__(self, path: Path, clock: Clock, *, keep_s: float = KEEP_S) -> None:
        """Opens the file; one that is damaged is set aside. Raises: NewerFile, FileUnavailable."""
        super().__init__(path, clock, UsageFile, what="usage", lost=_LOST)
        self.keep_s = keep_s

    async def take(self, jobs: Iterable[JobFacts], receipts: Sequence[GpuReceipt]) -> BatchOutcome:
        """What became of the receipts; those that are new are on the disk. Raises: FileUnavailable."""
        listed, now_s = list(jobs), self._now_s()
        return await self.write(lambda file: file.take(listed, receipts, now_s))

    async def register(self, jobs: Iterable[JobFacts]) -> None:
        """Know these jobs: their receipts are taken even when the jobs are gone. Raises: FileUnavailable."""
        listed, now_s = list(jobs), self._now_s()
        await self.write(lambda file: file.register(listed, now_s))

    async def receipts(self, uid: str) -> list[GpuReceipt]:
        """The newest receipt of each key of a job. Raises: FileUnavailable."""
        return await self.write(lambda file: file.receipts(uid))

    async def recent(self) -> list[GpuReceipt]:
        """Of jobs that had one lately. Raises: FileUnavailable."""
        since_s = self._now_s() - _FINISHED_S
        return await self.write(lambda file: list(file.all_receipts(since_s)))

    async def job(self, project: str, name: str) -> JobFacts | None:
        """The newest job of that name, there or gone. Raises: FileUnavailable."""
        return await self.write(lambda file: file.job(project, name))

    async def known(self, uids: Iterable[str]) -> set[str]:
        """Those of which something is known. Raises: FileUnavailable."""
        listed = list(uids)
        return await self.write(lambda file: file.known(listed))

    async def forget_old(self) -> int:
        """Remove what is older than is kept; how many rows. Raises: FileUnavailable."""
        before_s = self._now_s() - self.keep_s
        return await self.write(lambda file: file.forget_before(before_s))

    async def keep_tidy(self) -> None:
        """Remove what is old now and then, until cancelled."""
        while True:
            try:
                if gone := await self.forget_old():
                    log.info("usage: %d rows older than what is kept were removed", gone)
            except FileUnavailable as error:
                log.warning("usage can't be tidied now: %s", error)
            await self._clock.sleep(FORGET_EVERY_S)


__all__ = ["KEEP_S", "BatchOutcome", "JobFacts", "UsageStore"]
