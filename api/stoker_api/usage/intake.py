"""From receipts to file and board, in this order: what was answered is on the disk.

Owns how the file and the board stay one: a job that the board does not hold (it ended long ago, or the api began a
moment ago) is loaded from the file. Who may report what is the route's. Called by `routes/report_usage.py` and
`services.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from stoker.spec.job import PLACED, TrainingJob
from stoker.spec.names import ANNOTATION_SUBMITTER
from stoker.spec.usage import GpuReceipt
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker_api.kept_file import FileUnavailable

from .board import UsageBoard
from .store import BatchOutcome, JobFacts, UsageStore

log = logging.getLogger(__name__)

_RETRY_S = 5.0


class UsageIntake:
    def __init__(self, store: UsageStore, board: UsageBoard, jobs: WatchCache[TrainingJob], clock: Clock) -> None:
        self.store, self._board, self._jobs, self._clock = store, board, jobs, clock
        self._begun: dict[str, JobFacts] = {}
        self._woken = asyncio.Event()

    async def take(self, jobs: Iterable[TrainingJob], receipts: Sequence[GpuReceipt]) -> BatchOutcome:
        """Raises: FileUnavailable."""
        taken = await self.store.take([facts_of(job) for job in jobs], receipts)
        new = [receipts[index] for index in taken.new]
        for uid in {receipt.job_uid for receipt in new} - {receipt.job_uid for receipt in new if self._holds(receipt)}:
            if self._jobs.by_uid(uid) is not None:
                self._board.take(await self.store.receipts(uid), self._clock.monotonic())
        self._board.take(new, self._clock.monotonic())
        return taken

    async def run(self, loaded: Callable[[], None] = lambda: None) -> None:
        """Load the board, then make every job that gets GPUs known in the file, until cancelled."""
        unsubscribe = self._jobs.subscribe(self._on_job)
        try:
            self._board.fill(await self._recent(), self._clock.monotonic())
            loaded()
            for job in list(self._jobs.values()):
                self._begin(job)
            while True:
                await self._woken.wait()
                self._woken.clear()
                begun, self._begun = self._begun, {}
                try:
                    await self.store.register(begun.values())
                except FileUnavailable as error:
                    log.warning("jobs can't be made known to usage now: %s", error)
                    self._begun = begun | self._begun
                    await self._clock.sleep(_RETRY_S)
                    self._woken.set()
        finally:
            unsubscribe()

    async def _recent(self) -> list[GpuReceipt]:
        try:
            return await self.store.recent()
        except FileUnavailable as error:
            log.warning("usage can't be read now: %s", error)
            return []

    def _holds(self, receipt: GpuReceipt) -> bool:
        return receipt.job_uid in self._board

    def _on_job(self, change: Change[TrainingJob]) -> None:
        old, new = change.old, change.new
        if new is not None and (old is None or old.status.phase not in PLACED):
            self._begin(new)

    def _begin(self, job: TrainingJob) -> None:
        if job.spec.total_gpus and job.status.phase in PLACED:
            self._begun[job.uid] = facts_of(job)
            self._woken.set()


def facts_of(job: TrainingJob) -> JobFacts:
    created_at = job.metadata.creation_timestamp
    return JobFacts(
        uid=job.uid,
        project=job.metadata.namespace,
        name=job.metadata.name,
        queue=job.spec.queue,
        user=job.metadata.annotations.get(ANNOTATION_SUBMITTER, ""),
        created_at=0.0 if created_at is None else created_at.timestamp(),
    )
