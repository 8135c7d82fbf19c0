"""One GPU's time and energy since the ledger began, divided among its holders and three accounts. Pure.

Invariants: the accounts' times sum to the time since the first reading and their energies to the energy metered since,
to the nanosecond and the microjoule; nothing ever falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker.exporter.clock import Moment

from .device_usage import SM_SHARE, DeviceUsage
from .energy import EnergyMeter, Used

ATTRIBUTED, UNALLOCATED, UNOBSERVED = ACCOUNTS = ("attributed", "unallocated", "unobserved")


class Seen(NamedTuple):
    """A device over the interval that ends now."""

    values: Mapping[str, float]
    doing: str | None
    throttled_s: Mapping[str, float]
    """Reason → the rise of the GPU's throttle counter."""
    memory_is_owners: bool = True
    """False: several share the device, and its memory says nothing of one of them."""


def _zeros() -> dict[str, int]:
    return dict.fromkeys(ACCOUNTS, 0)


@dataclass(slots=True)
class Account:
    uuid: str
    index: int
    begin_at: float
    accounted_ns: int
    """CLOCK_BOOTTIME up to which every nanosecond is in one of the accounts."""
    model: str = ""
    simulated: bool = False
    seen: bool = True
    """In this boot."""
    time_ns: dict[str, int] = field(default_factory=_zeros)
    energy_uj: dict[str, int] = field(default_factory=_zeros)
    energy: EnergyMeter = field(default_factory=EnergyMeter)

    def advance(
        self, now: Moment, holds: Sequence[DeviceUsage], seen: Sequence[Seen | None] | None, doubtful: bool
    ) -> None:
        """Account all time up to now.

        seen: What was seen of each hold's device since `accounted_ns`; None: nothing, the time is unobserved.
        doubtful: It is not known whether another pod holds a part of it: what is left is then unobserved.
        """
        begin_ns, dt_ns = self.accounted_ns, now.mono_ns - self.accounted_ns
        if dt_ns <= 0:
            return
        self.accounted_ns = now.mono_ns
        left_ns = dt_ns
        for hold, one in zip(holds, seen or [None] * len(holds), strict=True):
            held_ns = hold.held_ns(begin_ns, now.mono_ns)
            if not held_ns:
                continue
            part_ns = min(left_ns, int(held_ns * hold.share))
            left_ns -= part_ns
            if hold.confirmed and one is not None:
                hold.add_observed(part_ns, now, held_ns, one.values, one.doing)
                hold.add_throttled(one.throttled_s, part_ns / dt_ns, dt_ns)
                if one.memory_is_owners:
                    hold.see_memory(one.values)
                self.time_ns[ATTRIBUTED] += part_ns
            else:
                hold.add_unobserved(part_ns, now.at)
                self.time_ns[ATTRIBUTED if self.simulated and hold.confirmed else UNOBSERVED] += part_ns
        self.time_ns[self._rest(seen is not None or self.simulated, doubtful)] += left_ns

    def spend(
        self,
        used: Used,
        holds: Sequence[DeviceUsage],
        ahead_ns: int,
        observed: bool,
        doubtful: bool,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Divide energy by the time that each hold had in its span.

        ahead_ns: How much of the time accounted lies behind that span's end.
        weights: Each hold's part of what all of them did, where that is known: it divides what is theirs, if observed.
        """
        weights = weights if observed else None
        times_ns = [hold.unmetered_ns - hold.unmetered_since(ahead_ns) for hold in holds]
        if weights is not None:
            times_ns = [int(sum(times_ns) * weight) for weight in weights]
        left_uj = used.energy_uj
        for hold, time_ns in zip(holds, times_ns, strict=True):
            part_uj = min(left_uj, used.energy_uj * time_ns // max(used.span_ns, 1))
            left_uj -= part_uj
            hold.add_energy(part_uj, observed, hold.method if weights is None else SM_SHARE)
            self.energy_uj[ATTRIBUTED if observed and hold.confirmed else UNOBSERVED] += part_uj
        self.energy_uj[self._rest(observed, doubtful)] += left_uj

    @staticmethod
    def _rest(observed: bool, doubtful: bool) -> str:
        return UNALLOCATED if observed and not doubtful else UNOBSERVED
