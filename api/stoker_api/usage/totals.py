"""A job's receipts summed: over its GPUs, ledgers, workers and attempts. Pure.

Invariant: of each key (attempt, worker, uuid, ledger) one receipt counts, the newest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from stoker.spec.job import ENDED, TrainingJob
from stoker.spec.usage import THROTTLE_REASONS, GpuReceipt, JobUsage, UsageState

from .amounts import Amounts

LATE = timedelta(minutes=10)
"""How long after a job's end its last receipts are waited for before they are said to be missing."""
FRESH = timedelta(minutes=5)
"""How old a receipt may be and still say that its GPU is idle now."""


class GpuSlot(NamedTuple):
    """One worker's GPU in one attempt."""

    attempt: int
    worker: int
    uuid: str


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """What the receipts come to, and which of them are still to grow."""

    amounts: Amounts
    throttled_s: Mapping[str, float]
    at: float
    """Unix seconds of the newest."""
    memory_peak_bytes: int | None
    memory_total_bytes: int | None
    """Of the GPU that held the most."""
    simulated: bool
    final: Mapping[int, Mapping[int, int]]
    """Attempt → worker → how many of its GPUs have their last receipt."""
    growing: frozenset[int]
    """Attempts of which a GPU has none yet."""

    @classmethod
    def of(cls, receipts: Collection[GpuReceipt]) -> UsageTotals:
        amounts, throttled_s = Amounts(), defaultdict[str, float](float)
        fullest: GpuReceipt | None = None
        last: dict[GpuSlot, bool] = {}
        for receipt in receipts:
            amounts = amounts.plus(Amounts.of(receipt))
            for reason, value_s in receipt.throttled_s.items():
                if reason in THROTTLE_REASONS:  # a status has no room for whatever a node makes up
                    throttled_s[reason] += value_s
            if fullest is None or (receipt.memory_peak_bytes or -1) > (fullest.memory_peak_bytes or -1):
                fullest = receipt
            slot = slot_of(receipt)
            last[slot] = last.get(slot, False) or receipt.final
        final: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for slot, done in last.items():
            final[slot.attempt][slot.worker] += done
        return cls(
            amounts,
            dict(throttled_s),
            max((receipt.at for receipt in receipts), default=0.0),
            None if fullest is None else fullest.memory_peak_bytes,
            None if fullest is None else fullest.memory_total_bytes,
            any(receipt.simulated for receipt in receipts),
            {attempt: dict(workers) for attempt, workers in final.items()},
            frozenset(slot.attempt for slot, done in last.items() if not done),
        )

    def usage(self, state: UsageState, idle_since: datetime | None) -> JobUsage:
        a = self.amounts
        return JobUsage(
            state=state,
            at=moment(self.at),
            gpu_seconds=rounded(a.allocated_s),
            busy_seconds=rounded(a.busy_s) if a.busy_of_s else None,
            sm_active_seconds=rounded(a.sm_active_s) if a.sm_active_of_s else None,
            tensor_active_seconds=rounded(a.tensor_active_s) if a.tensor_active_of_s else None,
            idle_seconds={name: rounded(value) for name, value in a.idle_s.items()},
            unobserved_seconds=rounded(a.unobserved_s),
            throttled_seconds={name: rounded(value) for name, value in sorted(self.throttled_s.items()) if value > 0},
            energy_joules=rounded(a.energy_j) if a.energy_of_s else None,
            unobserved_energy_joules=rounded(a.unobserved_energy_j) if a.unobserved_energy_j > 0 else None,
            memory_peak_bytes=self.memory_peak_bytes,
            memory_total_bytes=self.memory_total_bytes,
            idle_since=idle_since,
            simulated=self.simulated,
        )


def state_of(job: TrainingJob, totals: UsageTotals, now: datetime) -> UsageState:
    """Whether more is to come, all is there, or what is missing is late."""
    status = job.status
    if status.phase not in ENDED:
        return UsageState.RUNNING
    if not missing(job, totals):
        return UsageState.FINAL
    ended_at = status.finished_at or now
    return UsageState.INCOMPLETE if now >= ended_at + LATE else UsageState.RUNNING


def missing(job: TrainingJob, totals: UsageTotals) -> bool:
    """A GPU of an ended attempt has no last receipt. Of attempts that never ran, only GPUs that sent one at all count:
    their pods may have got no device."""
    if totals.growing:
        return True
    for end in job.status.attempts:
        if end.started_at is None:
            continue
        final = totals.final.get(end.number, {})
        if any(final.get(worker.worker, 0) < job.spec.gpus_per_worker for worker in end.workers):
            return True
    return False


def idle_since(job: TrainingJob, receipts: Iterable[GpuReceipt], at: datetime) -> datetime | None:
    """Since when all GPUs of the running attempt have been idle, as seen at `at`; None: they are not, or it is
    unknown (a GPU has no receipt, or an old one)."""
    newest: dict[GpuSlot, GpuReceipt] = {}
    for receipt in receipts:
        slot = slot_of(receipt)
        if receipt.attempt == job.status.attempt and (slot not in newest or newest[slot].at < receipt.at):
            newest[slot] = receipt
    if len(newest) < max(1, job.gpus):
        return None
    since = 0.0
    for receipt in newest.values():
        if receipt.final or receipt.idle_since is None or moment(receipt.at) < at - FRESH:
            return None
        since = max(since, receipt.idle_since)
    return moment(since)


def slot_of(receipt: GpuReceipt) -> GpuSlot:
    return GpuSlot(receipt.attempt, receipt.worker, receipt.uuid)


def moment(unix_s: float) -> datetime:
    return datetime.fromtimestamp(round(unix_s, 3), UTC)


def rounded(value: float) -> float:
    """To the millisecond, or the thousandth of a joule."""
    return round(value, 3)
