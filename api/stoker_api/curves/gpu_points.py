"""From receipts to points of a job's curves: what each of its GPUs did, a minute at a time.

Receipts are sums since a ledger began; two of them a minute apart say how active the GPU was between, how much power
it drew, and the most memory that it held so far. Pure; called by `feed.py`, which keeps the receipt that a point ended
with.
"""

from __future__ import annotations

from stoker.spec.usage import GpuReceipt

PREFIX = "gpu/"
"""Of the names of these curves: no job may report such a name itself."""
EVERY_S = 55.0
"""Receipts come every 30 s, a little early or late: so every other one makes a point."""
MOST_GPUS = 16
"""Of a job, by the order in which they came."""

GpuKey = tuple[int, int, str]
"""Attempt, worker, the GPU's uuid."""


def key_of(receipt: GpuReceipt) -> GpuKey:
    return receipt.attempt, receipt.worker, receipt.uuid


def values_between(before: GpuReceipt, receipt: GpuReceipt) -> dict[str, float]:
    """Of the time between the two. Absent is what the GPU does not report, and what was not observed.

    Units: shares of the observed time; watts; bytes.
    """
    observed_s = (receipt.allocated_s - receipt.unobserved_s) - (before.allocated_s - before.unobserved_s)
    if receipt.ledger != before.ledger or observed_s <= 0:
        return {}
    found: dict[str, float] = {}
    for name, now, then, most in (
        ("smActive", receipt.sm_active_s, before.sm_active_s, 1.0),
        ("busy", receipt.busy_s, before.busy_s, 1.0),
        ("powerWatts", _observed_j(receipt), _observed_j(before), None),
    ):
        if now is not None and then is not None and now >= then:
            value = (now - then) / observed_s
            found[name] = value if most is None else min(most, value)
    if receipt.memory_peak_bytes is not None:
        found["memoryPeakBytes"] = float(receipt.memory_peak_bytes)
    gpu = f"{PREFIX}{receipt.worker}/{''.join(c if c.isprintable() else '?' for c in receipt.uuid[:16])}/"
    return {gpu + name: value for name, value in found.items()}


def _observed_j(receipt: GpuReceipt) -> float | None:
    return None if receipt.energy_j is None else receipt.energy_j - receipt.unobserved_energy_j
