"""What receipts come to: their numbers as one vector that adds up, the unknown kept apart from zero; which hours an
increase falls in; and whether a receipt can be true at all. Pure.

Beside each number that some GPUs don't report (SM activity before Hopper, say) stands the allocated time of those that
do (`…_of_s`): a sum without it is unknown, and shares are of that time alone. Called by everything under `usage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from stoker.spec.usage import GpuReceipt

HOUR_S = 3600
DAY_S = 24 * HOUR_S
AHEAD_S = 3600.0
"""How far a node's clock may be ahead of ours before its receipts are refused."""
_SLACK_S, _SLACK_RATIO = 5.0, 0.02
"""What rounding and polls that don't meet may make of parts that sum to a whole."""
_MAX_WATTS = 10_000.0
"""More than any board draws; an exporter trusts its own counters no further."""
_ENERGY_SLACK_S = 60.0


class Amounts(NamedTuple):
    """Units: GPU-seconds and joules. The fields are columns of the file's table of hours."""

    allocated_s: float = 0.0
    unobserved_s: float = 0.0
    busy_s: float = 0.0
    busy_of_s: float = 0.0
    sm_active_s: float = 0.0
    sm_active_of_s: float = 0.0
    tensor_active_s: float = 0.0
    tensor_active_of_s: float = 0.0
    idle_no_process_s: float = 0.0
    idle_no_activity_s: float = 0.0
    idle_low_activity_s: float = 0.0
    energy_j: float = 0.0
    energy_of_s: float = 0.0
    unobserved_energy_j: float = 0.0
    """Part of energy_j."""

    @classmethod
    def of(cls, receipt: GpuReceipt) -> Self:
        """All that the receipt says, from its ledger's begin."""
        seen_s = max(0.0, receipt.allocated_s - receipt.unobserved_s)

        def known(value: float | None) -> tuple[float, float]:
            return (0.0, 0.0) if value is None else (value, seen_s)

        return cls(
            receipt.allocated_s,
            receipt.unobserved_s,
            *known(receipt.busy_s),
            *known(receipt.sm_active_s),
            *known(receipt.tensor_active_s),
            receipt.idle_s.get("no_process", 0.0),
            receipt.idle_s.get("no_activity", 0.0),
            receipt.idle_s.get("low_activity", 0.0),
            *((0.0, 0.0) if receipt.energy_j is None else (receipt.energy_j, receipt.allocated_s)),
            receipt.unobserved_energy_j,
        )

    def plus(self, other: Amounts) -> Amounts:
        return Amounts._make(a + b for a, b in zip(self, other, strict=True))

    def minus(self, other: Amounts) -> Amounts:
        return Amounts._make(a - b for a, b in zip(self, other, strict=True))

    def times(self, share: float) -> Amounts:
        return Amounts._make(a * share for a in self)

    @property
    def idle_s(self) -> dict[str, float]:
        """By class, those there are."""
        classes = (self.idle_no_process_s, self.idle_no_activity_s, self.idle_low_activity_s)
        names = ("no_process", "no_activity", "low_activity")
        return {name: value for name, value in zip(names, classes, strict=True) if value > 0}

    @property
    def seen_s(self) -> float:
        """Allocated time about which something is known."""
        return max(0.0, self.allocated_s - self.unobserved_s)

    @property
    def sm_ratio(self) -> float | None:
        """SM activity per allocated time of GPUs that report it; what was not observed is left out. None: unknown."""
        return self.sm_active_s / self.sm_active_of_s if self.sm_active_of_s > 0 else None

    @property
    def busy_ratio(self) -> float | None:
        return self.busy_s / self.busy_of_s if self.busy_of_s > 0 else None


def impossible(receipt: GpuReceipt, now_s: float) -> str:
    """Why the receipt can't be true, for the exporter's log; "": it can."""
    if receipt.at > now_s + AHEAD_S:
        return "at lies more than an hour ahead; check the node's clock"
    if receipt.begin_at > receipt.at + _SLACK_S:
        return "begins after it ends"
    # A clock may have been set back meanwhile: by more than AHEAD_S, and its receipts were refused before.
    if receipt.allocated_s > receipt.at - receipt.begin_at + AHEAD_S:
        return "allocatedS is more than the time from beginAt to at"
    if max(receipt.energy_j or 0.0, receipt.unobserved_energy_j) > _MAX_WATTS * (receipt.allocated_s + _ENERGY_SLACK_S):
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
