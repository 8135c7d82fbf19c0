"""What to ask for instead: sentences from what jobs have had, each with its figures and what to do. Pure.

Says nothing before ten minutes were observed, and nothing of simulated GPUs. Called by the routes of usage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stoker.spec.quantity import format_bytes
from stoker.spec.rest import Hint
from stoker.spec.usage import GpuReceipt

from .amounts import Amounts
from .straggler import straggler
from .totals import GpuSlot, slot_of

OBSERVED_S = 600.0
"""GPU-seconds of the GPU observed longest: a start (imports, compilation, the first epoch's cache) says little."""
MEMORY_RATIO = 0.25
ACTIVE_RATIO = 0.30
IDLE_RATIO = 0.50
_UNUSED_RATIO = 0.95
"""Of a GPU's observed time without a process: from here on it was not used at all."""
_ROOM = 1.5
"""A GPU to ask for should hold this much more than was ever used."""
_GIB = 1 << 30


class HintCode(StrEnum):
    UNUSED_GPUS = "UnusedGpus"
    IDLE = "Idle"
    COMPUTE = "Compute"
    MEMORY = "Memory"
    STRAGGLER = "Straggler"


@dataclass(frozen=True, slots=True)
class JobAmounts:
    """What one job has had."""

    amounts: Amounts
    observed_s: float
    """Of the GPU observed longest."""
    memory_peak_bytes: int = 0
    memory_total_bytes: int = 0
    """0: not known."""

    @property
    def observed(self) -> bool:
        return self.observed_s >= OBSERVED_S

    @property
    def memory_ratio(self) -> float | None:
        total = self.memory_total_bytes
        return self.memory_peak_bytes / total if total and self.memory_peak_bytes else None

    @property
    def active(self) -> tuple[float, str] | None:
        """How active its GPUs were, and what was measured; None: not known."""
        sm, busy = self.amounts.sm_ratio, self.amounts.busy_ratio
        if sm is not None:
            return sm, "their SMs were active"
        return None if busy is None else (busy, "a kernel ran on them")

    @property
    def idle_ratio(self) -> float:
        seen_s = self.amounts.seen_s
        return sum(self.amounts.idle_s.values()) / seen_s if seen_s > 0 else 0.0


def of_job(receipts: Collection[GpuReceipt], gpus_per_worker: int | None) -> list[Hint]:
    """For who submits the job again. `gpus_per_worker`: what it asked for; None: not known any more."""
    if any(receipt.simulated for receipt in receipts):
        return []
    slots: dict[GpuSlot, Amounts] = {}
    whole, fullest = Amounts(), (0, 0)
    for receipt in receipts:
        amounts = Amounts.of(receipt)
        whole = whole.plus(amounts)
        slots[slot_of(receipt)] = slots.get(slot_of(receipt), Amounts()).plus(amounts)
        fullest = max(fullest, (receipt.memory_peak_bytes or 0, receipt.memory_total_bytes or 0))
    had = JobAmounts(whole, max((slot.seen_s for slot in slots.values()), default=0.0), *fullest)
    if not had.observed:
        return []
    found = _unused(slots, gpus_per_worker)
    if not found and had.idle_ratio > IDLE_RATIO:
        found.append(Hint(code=HintCode.IDLE, text=_idle(had)))
    elif not found and had.active is not None and had.active[0] < ACTIVE_RATIO:
        ratio, measured = had.active
        found.append(
            Hint(
                code=HintCode.COMPUTE,
                text=f"Its GPUs had little to compute: {measured} {ratio:.0%} of the time. Look whether they wait for "
                "data (more cpu, more loader workers), then for a larger batch; else fewer or smaller GPUs do the "
                "same.",
            )
        )
    slowest = None if found else straggler(receipts, OBSERVED_S)
    if slowest is not None:
        found.append(Hint(code=HintCode.STRAGGLER, text=str(slowest)))
    ratio_held = had.memory_ratio
    if ratio_held is not None and ratio_held < MEMORY_RATIO:
        enough = -(-int(had.memory_peak_bytes * _ROOM) // _GIB)
        found.append(
            Hint(
                code=HintCode.MEMORY,
                text=f"Its fullest GPU held at most {format_bytes(had.memory_peak_bytes)} of "
                f"{format_bytes(had.memory_total_bytes)} ({ratio_held:.0%}). Use a larger batch, or let it run on "
                f"smaller GPUs: gpu.minMemory of {enough}Gi is enough.",
            )
        )
    return found


def of_queue(queue: str, jobs: Sequence[JobAmounts]) -> list[Hint]:
    """For who shares out the queue: how many of its jobs ask for more than they use, and what that comes to."""
    observed = [job for job in jobs if job.observed]
    all_h = _hours(observed)
    found = []
    for code, some, what in (
        (
            HintCode.IDLE,
            [job for job in observed if job.idle_ratio > IDLE_RATIO],
            "had GPUs that were idle for more than half the time. `stoker usage --by job --queue {queue}` names them; "
            "spec.idle can suspend such jobs",
        ),
        (
            HintCode.COMPUTE,
            [job for job in observed if job.active is not None and job.active[0] < ACTIVE_RATIO],
            f"kept their GPUs active for less than {ACTIVE_RATIO:.0%} of the time. Let them use fewer or smaller GPUs, "
            "or give them more cpu for loading data",
        ),
        (
            HintCode.MEMORY,
            [job for job in observed if job.memory_ratio is not None and job.memory_ratio < MEMORY_RATIO],
            f"never held {MEMORY_RATIO:.0%} of their GPUs' memory. Smaller GPUs (gpu.minMemory, gpu.models) would do",
        ),
    ):
        if some:
            whose = f"{len(some)} of {len(observed)} jobs of queue {queue}"
            hours = f"{_hours(some):.1f} of {all_h:.1f} GPU-hours"
            found.append(Hint(code=code, text=f"{whose} ({hours}) {what.format(queue=queue)}."))
    return found


def _unused(slots: dict[GpuSlot, Amounts], gpus_per_worker: int | None) -> list[Hint]:
    """GPUs of the newest attempt on which nothing ever ran, while on others something did."""
    newest = max(slot.attempt for slot in slots)
    seen = {slot: amounts for slot, amounts in slots.items() if slot.attempt == newest and amounts.seen_s >= OBSERVED_S}
    unused = [slot for slot, amounts in seen.items() if amounts.idle_no_process_s >= _UNUSED_RATIO * amounts.seen_s]
    if not unused or len(unused) == len(seen):
        return []
    used = [slot for slot in seen if slot not in unused]
    most = max(sum(slot.worker == one.worker for slot in used) for one in used)
    instead = "fewer GPUs" if gpus_per_worker is None or most >= gpus_per_worker else f"gpusPerWorker: {most}"
    return [
        Hint(
            code=HintCode.UNUSED_GPUS,
            text=f"{len(unused)} of its {len(seen)} GPUs never ran a process. Ask for {instead}, or start a rank on "
            "each (torchrun --nproc-per-node, CUDA_VISIBLE_DEVICES).",
        )
    ]


def _idle(had: JobAmounts) -> str:
    worst = max(had.amounts.idle_s.items(), key=lambda item: item[1])[0]
    why = {
        "no_process": "mostly nothing ran on them: start the work when the worker starts, and end the job with it",
        "no_activity": "mostly a process held them without computing: look what it waits for (data, a lock, a prompt)",
        "low_activity": "mostly they were barely active: give them larger batches, or use fewer GPUs",
    }[worst]
    return f"Its GPUs were idle for {had.idle_ratio:.0%} of the time; {why}."


def _hours(jobs: Sequence[JobAmounts]) -> float:
    return sum(job.amounts.allocated_s for job in jobs) / 3600
