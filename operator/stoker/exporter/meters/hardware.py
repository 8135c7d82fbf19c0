"""One device's values as they are exported: gauges and counters as read, ratios integrated. Pure.

Lives in memory alone: after a restart of the exporter the integrals begin at 0, which Prometheus knows as a reset.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.exporter.catalogue import COUNTER, HARDWARE, MIG, Family

_OF_THE_CHILD = "pcie_bytes_total"
"""Counted by the NVML child itself: where it begins anew, it goes on from what it was."""
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
        self.deltas: dict[str, float] = {}
        """What each counter rose by since the reading before; a counter that began anew rose by what it shows."""

    def read(self, values: Mapping[str, float], observed_s: float | None) -> dict[str, float]:
        """The values to export.

        observed_s: Seconds since the reading before if the time between counts as observed, else None.
        """
        shown = dict(values)
        self.deltas = {}
        counters = {key: value for key, value in values.items() if key.partition("|")[0] in self._counters}
        for key, value in counters.items():
            if (before := self._before.get(key)) is not None:
                self.deltas[key] = value - before if value >= before else value
                if value < before and key.startswith(_OF_THE_CHILD):
                    self._offset[key] = self._offset.get(key, 0.0) + before
            shown[key] = value + self._offset.get(key, 0.0)
        self._before |= counters
        for ratio, integral in _INTEGRALS.items():
            if integral not in self._counters:
                continue
            if (active := values.get(ratio)) is not None:
                self._integrals[integral] = self._integrals.get(integral, 0.0) + unit(active) * (observed_s or 0.0)
        return shown | self._integrals


def unit(ratio: float) -> float:
    """Within 0..1: drivers have reported more."""
    return min(1.0, max(0.0, ratio))
