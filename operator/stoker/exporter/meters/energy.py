"""Energy that a GPU used since the reading before: by NVML's counter, where it has none by power × time. Pure.

Once a counter has been seen only the counter counts: a poll without it is made good by the next one with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stoker.exporter.clock import NS, UJ

COUNTER, INTEGRAL = "counter", "power_integral"
MAX_WATTS = 10_000
"""More than any board draws. A counter that jumps further than that allows says nothing but where it goes on."""


class Used(NamedTuple):
    energy_uj: int
    span_ns: int
    """The time in which it was used."""


@dataclass(slots=True)
class EnergyMeter:
    source: str = ""
    counter_uj: int = 0
    """As last read."""
    at_ns: int = 0
    """When it was."""
    integral_uj: int = 0
    """All energy by power × time; of this process alone: a crash takes back a part of a saved one, and Prometheus
    takes each fall for a reset to 0 and adds all of it once more."""
    power_w: float | None = None

    def read(self, values: Mapping[str, float], now_ns: int, observed_ns: int | None) -> Used | None:
        """None: not known now.

        observed_ns: Time since the reading before if it counts as observed, else None.
        """
        counter, power_w = values.get("energy_joules_total"), values.get("power_watts")
        if counter is not None:
            return self._by_counter(round(counter * UJ), now_ns)
        if self.source == COUNTER:
            return None
        before_w, self.power_w = self.power_w, power_w
        if power_w is None:
            return None
        self.source, self.at_ns = INTEGRAL, now_ns
        if observed_ns is None or before_w is None:
            return None
        energy_uj = round((before_w + power_w) / 2 * observed_ns * UJ / NS)
        self.integral_uj += energy_uj
        return Used(energy_uj, observed_ns)

    def after_boot(self) -> None:
        """The driver was loaded anew: its counter began at 0."""
        self.counter_uj = 0

    def _by_counter(self, counter_uj: int, now_ns: int) -> Used | None:
        known, before_uj, span_ns = self.source == COUNTER, self.counter_uj, now_ns - self.at_ns
        self.source, self.counter_uj, self.at_ns = COUNTER, counter_uj, now_ns
        if not known:
            return None
        energy_uj = counter_uj - before_uj if counter_uj >= before_uj else counter_uj
        return Used(energy_uj, span_ns) if 0 <= energy_uj * NS <= MAX_WATTS * UJ * max(span_ns, NS) else None
