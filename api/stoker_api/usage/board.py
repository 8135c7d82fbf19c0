"""The receipts of jobs that live, in memory: a job's usage as it is now, since when it is idle, what is due in status.

Plain state: receipts and job changes in, what is due out, time as an argument (as `jobs/progress.py`, whose writer
carries the writes out). Knows no file: `store.py` fills it at the start, `routes/report_usage.py` afterwards. A job
leaves once it has ended and its last usage is written; a receipt that comes after that brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from stoker.spec.job import ENDED, PLACED, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.usage import GpuReceipt, JobUsage, UsageState
from stoker.store.cache import Change
from stoker_api.due_writes import RETRY_S, WRITE_EVERY_S, DueWrites

from .totals import LATE, GpuSlot, UsageTotals, idle_since, missing, slot_of, state_of

_ReceiptKey = tuple[GpuSlot, str]


@dataclass(slots=True)
class _Known:
    receipts: dict[_ReceiptKey, GpuReceipt] = field(default_factory=dict)
    totals: UsageTotals | None = None
    """None: to be summed again."""
    shown: JobUsage | None = None
    """The newest that was made, for as long as it holds: who compares needs one object."""
    dirty: bool = False
    """Something came that status does not hold."""
    written_at_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class UsageWrite:
    """A status write that is due."""

    uid: str
    key: Key
    usage: JobUsage


class UsageBoard:
    """`job_of`: the job of a uid as it is now, if there is one. Invariant: holds only jobs that there are."""

    def __init__(self, job_of: Callable[[str], TrainingJob | None]) -> None:
        self._job_of = job_of
        self._known: dict[str, _Known] = {}
        self._due = DueWrites()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uid: object) -> bool:
        return uid in self._known

    def take(self, receipts: Iterable[GpuReceipt], now_s: float) -> set[str]:
        """Take what is newer than what is known; the uids of jobs that have news."""
        changed = self._merge(receipts)
        for uid in changed:
            known = self._known[uid]
            known.dirty = True
            self._schedule(uid, known, now_s)
        return changed

    def fill(self, receipts: Iterable[GpuReceipt], now_s: float) -> None:
        """What the file holds of living jobs, at the start: written by an api before this one, or soon by this."""
        for uid in self._merge(receipts):
            known = self._known[uid]
            known.dirty, known.written_at_s = True, now_s
            self._schedule(uid, known, now_s)

    def totals(self, uid: str) -> UsageTotals | None:
        known = self._known.get(uid)
        if known is None or not known.receipts:
            return None
        if known.totals is None:
            known.totals = UsageTotals.of(known.receipts.values())
        return known.totals

    def receipts(self, uid: str) -> list[GpuReceipt]:
        known = self._known.get(uid)
        return [] if known is None else list(known.receipts.values())

    def models(self) -> set[str]:
        """Of the GPUs that the jobs here have had, simulated ones left out."""
        known = list(self._known.values())
        return {r.model for one in known for r in list(one.receipts.values()) if r.model and not r.simulated}

    def idle_since(self, uid: str, at: datetime) -> datetime | None:
        """Since when all GPUs of the job's running attempt have been idle; None: they are not, or it is unknown."""
        job, known = self._job_of(uid), self._known.get(uid)
        if job is None or known is None or job.status.phase not in PLACED:
            return None
        return idle_since(job, known.receipts.values(), at)

    def usage_of(self, job: TrainingJob, now: datetime) -> JobUsage | None:
        """The newest there is: of its receipts, else what status holds; None: nothing is known."""
        totals = self.totals(job.uid)
        if totals is None:
            return job.status.usage
        known = self._known[job.uid]
        usage = totals.usage(state_of(job, totals, now), self.idle_since(job.uid, now))
        stored = job.status.usage
        if stored is not None and stored.at is not None and usage.at is not None and stored.at > usage.at:
            return stored  # this api's file is older than the status that another one wrote
        if usage == stored:
            return stored
        if usage != known.shown:
            known.shown = usage
        return known.shown

    def observe(self, change: Change[TrainingJob], now_s: float) -> bool:
        """Take over a change of a job. True: something became due."""
        old, new = change.old, change.new
        if new is None:
            return old is not None and self.forget(old.uid)
        known = self._known.get(new.uid)
        if known is None or new.status.phase not in ENDED or (old is not None and old.status.phase in ENDED):
            return False
        known.dirty = True
        self._schedule(new.uid, known, now_s)
        return True

    # what is due in status, as the writer asks for it

    def take_due(self, now_s: float, now: datetime) -> list[UsageWrite]:
        """What is to be written now; each is given out once, and again by `retry`."""
        found = []
        for uid in self._due.take(now_s):
            write = self.write_now(uid, now_s, now)
            if write is not None:
                found.append(write)
        return found

    def write_now(self, uid: str, now_s: float, now: datetime) -> UsageWrite | None:
        """The job's usage, to be written to its status now; None: the status has it."""
        job, known = self._job_of(uid), self._known.get(uid)
        if job is None or known is None:
            return None
        usage = self.usage_of(job, now)
        if usage is None or usage == job.status.usage:
            known.dirty = False
            self._settle(job, usage, now_s)
            return None
        known.written_at_s = now_s
        known.dirty = False
        return UsageWrite(uid, job.key, usage)

    def written(self, write: UsageWrite, now_s: float) -> None:
        job, known = self._job_of(write.uid), self._known.get(write.uid)
        if job is None or known is None:
            return
        if known.dirty:
            self._schedule(write.uid, known, now_s)
        else:
            self._settle(job, write.usage, now_s)

    def retry(self, write: UsageWrite, now_s: float) -> None:
        known = self._known.get(write.uid)
        if known is not None:
            known.dirty = True
            self._due.add(write.uid, now_s + RETRY_S)

    def forget(self, uid: str) -> bool:
        """False: nothing was known of it."""
        self._due.remove(uid)
        return self._known.pop(uid, None) is not None

    @property
    def next_due_s(self) -> float | None:
        return self._due.next_s

    def _merge(self, receipts: Iterable[GpuReceipt]) -> set[str]:
        changed = set()
        for receipt in receipts:
            if self._job_of(receipt.job_uid) is None:
                continue  # it is gone, and so is every reader of its usage
            known = self._known.setdefault(receipt.job_uid, _Known())
            key = (slot_of(receipt), receipt.ledger)
            before = known.receipts.get(key)
            if before is None or before.seq < receipt.seq:
                known.receipts[key] = receipt
                known.totals = None
                changed.add(receipt.job_uid)
        return changed

    def _schedule(self, uid: str, known: _Known, now_s: float) -> None:
        job = self._job_of(uid)
        # The end is written at once when all is there; else with the pace, as receipts come in one by one.
        totals = self.totals(uid) if job is not None and job.status.phase in ENDED else None
        complete = job is not None and totals is not None and not missing(job, totals)
        self._due.add(uid, now_s if complete else max(now_s, known.written_at_s + WRITE_EVERY_S))

    def _settle(self, job: TrainingJob, usage: JobUsage | None, now_s: float) -> None:
        """Status holds all there is: forget the job once nothing is to come."""
        if job.status.phase not in ENDED:
            return
        if usage is None or usage.state is not UsageState.RUNNING:
            self.forget(job.uid)
        else:
            self._due.add(job.uid, now_s + LATE.total_seconds() + 1)
