"""Sums and receipts → the answers that people get (`spec/rest.py`): units they know, unknown left out. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from stoker.spec.rest import AttemptUsage, GpuUsage, UsageRow
from stoker.spec.usage import GpuReceipt, JobUsage, UsageState
from stoker_api.usage.amounts import HOUR_S

from .amounts import Amounts
from .history import Sum
from .prices import Prices
from .totals import LATE, GpuSlot, UsageTotals, moment, slot_of

_JOULES_PER_KWH = 3.6e6


def row(one: Sum) -> UsageRow:
    a = one.amounts
    return UsageRow.model_validate(
        {
            **one.names,
            "simulated": one.simulated,
            "jobs": one.jobs,
            "gpu_hours": hours(a.allocated_s),
            "busy_hours": hours(a.busy_s) if a.busy_of_s else None,
            "sm_active_hours": hours(a.sm_active_s) if a.sm_active_of_s else None,
            "tensor_active_hours": hours(a.tensor_active_s) if a.tensor_active_of_s else None,
            "idle_hours": {name: hours(value) for name, value in a.idle_s.items()},
            "unobserved_hours": hours(a.unobserved_s),
            "energy_kwh": _kwh(a.energy_j) if a.energy_of_s else None,
            "unobserved_energy_kwh": _kwh(a.unobserved_energy_j) if a.unobserved_energy_j > 0 else None,
            "cost": None if one.cost is None else round(one.cost, 4),
            "unpriced_hours": hours(one.unpriced_s),
            "efficiency": None if a.sm_ratio is None else round(a.sm_ratio, 4),
        }
    )


def gpus(receipts: Collection[GpuReceipt]) -> list[GpuUsage]:
    """One entry per worker's GPU and attempt, over its ledgers."""
    by_slot: dict[GpuSlot, list[GpuReceipt]] = defaultdict(list)
    for receipt in receipts:
        by_slot[slot_of(receipt)].append(receipt)
    return [_gpu(slot, sorted(found, key=lambda one: one.at)) for slot, found in sorted(by_slot.items())]


def attempts(receipts: Collection[GpuReceipt]) -> list[AttemptUsage]:
    by_attempt: dict[int, list[GpuReceipt]] = defaultdict(list)
    for receipt in receipts:
        by_attempt[receipt.attempt].append(receipt)
    found = []
    for number, some in sorted(by_attempt.items()):
        totals = UsageTotals.of(some)
        state = UsageState.RUNNING if totals.growing else UsageState.FINAL
        found.append(AttemptUsage(attempt=number, usage=totals.usage(state, None)))
    return found


def of_gone(receipts: Collection[GpuReceipt], now: datetime) -> JobUsage:
    """The usage of a job that is not there any more: what its receipts say alone."""
    totals = UsageTotals.of(receipts)
    state = UsageState.FINAL
    if totals.growing or not receipts:
        state = UsageState.INCOMPLETE if now >= moment(totals.at) + LATE else UsageState.RUNNING
    return totals.usage(state, None)


def cost(receipts: Collection[GpuReceipt], prices: Prices) -> tuple[float | None, float]:
    """What the receipts come to, and the GPU-hours among them that have no price."""
    known, unpriced_s = [], 0.0
    for receipt in receipts:
        price = None if receipt.simulated else prices.of(receipt.model)
        if price is not None:
            known.append(price * receipt.allocated_s / HOUR_S)
        elif not receipt.simulated:
            unpriced_s += receipt.allocated_s
    return (round(sum(known), 4) if known else None), hours(unpriced_s)


def efficiency(receipts: Collection[GpuReceipt]) -> float | None:
    whole = Amounts()
    for receipt in receipts:
        whole = whole.plus(Amounts.of(receipt))
    return None if whole.sm_ratio is None else round(whole.sm_ratio, 4)


def hours(seconds: float) -> float:
    return round(seconds / HOUR_S, 6)


def _kwh(joules: float) -> float:
    """To millijoules: a short job has a kilojoule."""
    return round(joules / _JOULES_PER_KWH, 9)


def _gpu(slot: GpuSlot, receipts: list[GpuReceipt]) -> GpuUsage:
    newest, totals = receipts[-1], UsageTotals.of(receipts)
    final = any(receipt.final for receipt in receipts)
    since = newest.idle_since if not final else None
    return GpuUsage(
        attempt=slot.attempt,
        worker=slot.worker,
        node=newest.node,
        uuid=slot.uuid,
        model=newest.model,
        method=newest.method,
        begin_at=moment(min(receipt.begin_at for receipt in receipts)),
        usage=totals.usage(UsageState.FINAL if final else UsageState.RUNNING, None if since is None else moment(since)),
    )
