"""What a receipt adds to what is known: which hours the increase falls in, and whether it can be true at all. Pure.

Owns the arithmetic; the rows are `db.py`'s, who may speak of what `routes/report_usage.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.spec.usage import GpuReceipt

from .amounts import Amounts

HOUR_S = 3600
DAY_S = 24 * HOUR_S
AHEAD_S = 3600.0
"""How far a node's clock may be ahead of ours before its receipts are refused."""
_SLACK_S, _SLACK_RATIO = 5.0, 0.02
"""What rounding and polls that don't meet may make of parts that sum to a whole."""
_MAX_WATTS = 10_000.0
"""More than any board draws; an exporter believes no more of its own counters."""
_ENERGY_SLACK_S = 60.0


def impossible(receipt: GpuReceipt, now_s: float) -> str:
    """Why the receipt can't be true, in words for the exporter's log; "": it can."""
    if receipt.at > now_s + AHEAD_S:
        return "at lies more than an hour ahead; check the node's clock"
    if receipt.begin_at > receipt.at + _SLACK_S:
        return "begins after it ends"
    # A clock may have been set back meanwhile: by more than AHEAD_S, and its receipts were refused before.
    if receipt.allocated_s > receipt.at - receipt.begin_at + AHEAD_S:
        return "allocatedS is more than the time from beginAt to at"
    if (receipt.energy_j or 0.0) + receipt.unobserved_energy_j > _MAX_WATTS * (receipt.allocated_s + _ENERGY_SLACK_S):
        return "energyJ is more than a GPU can use in allocatedS"
    whole_s = receipt.allocated_s * (1 + _SLACK_RATIO) + _SLACK_S
    parts = {
        "unobservedS": receipt.unobserved_s,
        "busyS": receipt.busy_s or 0.0,
        "smActiveS": receipt.sm_active_s or 0.0,
        "tensorActiveS": receipt.tensor_active_s or 0.0,
        "idleS": sum(receipt.idle_s.values()) + receipt.unobserved_s,
    }
    for name, value in parts.items():
        if value > whole_s:
            return f"{name} is more than allocatedS"
    return ""


def increase(receipt: GpuReceipt, before: GpuReceipt | None) -> Amounts:
    """What it says beyond the receipt of the same key before it."""
    whole = Amounts.of(receipt)
    return whole if before is None else whole.minus(Amounts.of(before))


def hours(begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Hours (unix seconds of their begin) that [begin, end] touches, each with its share of the span; shares sum to 1.

    What takes no time, or goes backwards (a clock was set), falls in the hour of its end.
    """
    first, last = int(begin_s // HOUR_S), int(end_s // HOUR_S)
    span_s = end_s - begin_s
    if last <= first or span_s <= 0:
        yield last * HOUR_S, 1.0
        return
    for hour in range(first, last + 1):
        part_s = min(end_s, (hour + 1) * HOUR_S) - max(begin_s, hour * HOUR_S)
        if part_s > 0:
            yield hour * HOUR_S, part_s / span_s
