"""The numbers of receipts that add up, as one vector; and the unknown kept apart from zero.

Beside each number that some GPUs don't report (SM activity before Hopper, say) stands the allocated time of those that
do (`…_of_s`): a sum without it is unknown, and shares are of that time alone. Pure. Called by everything under `usage`.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from stoker.spec.usage import GpuReceipt


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
            *known(receipt.energy_j),
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
