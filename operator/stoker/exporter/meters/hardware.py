"""One device's values as they are exported: gauges and counters as read, ratios integrated. Pure.

Lives in memory alone: after a restart of the exporter the integrals begin at 0, which Prometheus knows as a reset.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.exporter.catalogue import COUNTER, HARDWARE, MIG, Family

_OF_THE_CHILD = "pcie_bytes_total"
"""Counted by the NVML child itself: where it begins anew, it goes on from what it was."""
_HELD_DOWN, _THROTTLED = "throttle_active|", "throttle_seconds_total|"
_INTEGRALS = {
    "busy_ratio": "busy_seconds_total",
    "memory_controller_busy_ratio": "memory_controller_busy_seconds_total",
    "sm_active_ratio": "sm_active_seconds_total",
    "tensor_active_ratio": "tensor_active_seconds_total",
    "dram_active_ratio": "dram_active_seconds_total",
}


def _counters(families: tuple[Family, ...]) -> frozenset[str]:
    return frozenset(family.name for family in families if family.type == COUNTER)


GPU_COUNTERS, MIG_COUNTERS = _counters(HARDWARE), _counters(MIG)


class DeviceValues:
    """Of one GPU or MIG device."""

    def __init__(self, counters: frozenset[str] = GPU_COUNTERS) -> None:
        self._counters = counters
        self._before: dict[str, float] = {}
        self._offset: dict[str, float] = {}
        self._integrals: dict[str, float] = {}
        self._throttled: dict[str, float] = {}
        """Time counters that NVML does not have (older drivers), by the reasons read at each poll."""
        self.deltas: dict[str, float] = {}
        """What each counter rose by since the reading before; a counter that began anew rose by what it shows."""

    def read(self, values: Mapping[str, float], observed_s: float | None) -> dict[str, float]:
        """The values to export.

        observed_s: Seconds since the reading before if the time between counts as observed, else None.
        """
        self.deltas = {}
        self._integrate_reasons(values, observed_s or 0.0)
        values = {**self._throttled, **values}
        shown = dict(values)
        counters = {key: value for key, value in values.items() if key.partition("|")[0] in self._counters}
        for key, value in counters.items():
            if (before := self._before.get(key)) is not None:
                self.deltas[key] = value - before if value >= before else value
                if value < before:
                    self._offset[key] = self._offset.get(key, 0.0) + before if key.startswith(_OF_THE_CHILD) else 0.0
            shown[key] = value + self._offset.get(key, 0.0)
        self._before |= counters
        for ratio, integral in _INTEGRALS.items():
            if integral not in self._counters:
                continue
            if (active := values.get(ratio)) is not None:
                self._integrals[integral] = self._integrals.get(integral, 0.0) + unit(active) * (observed_s or 0.0)
        return shown | self._integrals

    def _integrate_reasons(self, values: Mapping[str, float], observed_s: float) -> None:
        """A counter that comes after all goes on from the integral; one that was there is never replaced by it."""
        for key, active in values.items():
            if not key.startswith(_HELD_DOWN):
                continue
            counter = _THROTTLED + key.removeprefix(_HELD_DOWN)
            if counter not in values:
                if counter in self._throttled or counter not in self._before:
                    self._throttled[counter] = self._throttled.get(counter, 0.0) + active * observed_s
            elif counter in self._throttled:
                self._offset[counter] = self._throttled.pop(counter) - values[counter]
                self._before[counter] = values[counter]


def unit(ratio: float) -> float:
    """Within 0..1: drivers have reported more."""
    return min(1.0, max(0.0, ratio))
