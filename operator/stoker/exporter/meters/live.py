"""One GPU as its newest reading shows it, and what became of its values since the one before. Pure; in memory alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.exporter.clock import NS
from stoker.nvml.frames import GpuReading, Process

from .account import Seen
from .device_usage import DeviceUsage
from .hardware import MIG_COUNTERS, DeviceValues
from .idle import doing, in_use
from .snapshot import MigState

_THROTTLE = "throttle_seconds_total|"
MIG_KEPT = 32
"""MIG devices whose counters go on should they come again: of one GPU, those there are and those that were."""


class LiveGpu:
    """Between `read`s nothing changes but by `lose`."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.read_ns: int | None = None
        """CLOCK_BOOTTIME of the newest reading with values."""
        self.lost = ""
        self.reading: GpuReading | None = None
        """None while it is lost."""
        self.values: Mapping[str, float] = {}
        self.mig: tuple[MigState, ...] = ()
        self._device = DeviceValues()
        self._mig_devices: dict[str, DeviceValues] = {}

    def lose(self, code: str) -> None:
        self.lost, self.reading, self.values, self.mig = code, None, {}, ()

    def read(self, reading: GpuReading, now_ns: int, gap_ns: int) -> int | None:
        """Take the reading in. Returns the time since the one before in nanoseconds, None where that is a gap."""
        since_ns = None if self.read_ns is None else now_ns - self.read_ns
        observed_ns = since_ns if since_ns is not None and 0 <= since_ns <= gap_ns else None
        observed_s = None if observed_ns is None else observed_ns / NS
        self.index, self.lost, self.reading, self.read_ns = reading.index, "", reading, now_ns
        self.values = self._device.read(reading.values, observed_s)
        before = {one.uuid for one in self.mig}
        for one in reading.mig:  # the newest last
            self._mig_devices[one.uuid] = self._mig_devices.pop(one.uuid, DeviceValues(MIG_COUNTERS))
        for uuid in list(self._mig_devices)[: -max(MIG_KEPT, len(reading.mig))]:
            del self._mig_devices[uuid]
        self.mig = tuple(
            MigState(
                *(one.uuid, one.profile, one.slices),
                self._mig_devices[one.uuid].read(one.values, observed_s if one.uuid in before else None),
            )
            for one in reading.mig
        )
        return observed_ns

    def seen(self, holds: Iterable[DeviceUsage]) -> dict[str, Seen]:
        """Device uuid → what its holders account by."""
        if self.reading is None:
            return {}
        deltas, holders = self._device.deltas, [hold.uuid for hold in holds]
        throttled_s = {key.removeprefix(_THROTTLE): s for key, s in deltas.items() if key.startswith(_THROTTLE)}
        devices: list[tuple[str, Mapping[str, float], tuple[Process, ...] | None]] = [
            (self.reading.uuid, self.reading.values, self.reading.processes),
            *((one.uuid, one.values, one.processes) for one in self.reading.mig),
        ]
        return {
            uuid: Seen(values, doing(values, processes), throttled_s, holders.count(uuid) == 1)
            for uuid, values, processes in devices
            if uuid in holders
        }

    def in_use(self) -> bool | None:
        """Whether it is in use, as far as that shows."""
        return None if self.reading is None else in_use(self.reading.values, self.reading.processes)
