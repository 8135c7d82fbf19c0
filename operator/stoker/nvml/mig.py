"""A GPU's MIG devices: which there are, their memory, activity and processes. Called by `device`.

NVML has neither power nor throttling nor duty cycle of a MIG device. Activity is that of its GPU instance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pynvml

from .calls import DeviceCalls
from .frames import MigReading
from .gpm import Gpm
from .load import read_memory
from .processes import GpuProcess

LIST_EVERY = 5
"""Polls. One that vanishes is noticed at once."""
_VALUES = frozenset({"sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"})
"""Of what GPM reads, the families of `catalogue.MIG`."""


@dataclass(slots=True)
class _Device:
    calls: DeviceCalls
    uuid: str
    profile: str
    slices: int
    gpu_instance: int
    compute_instance: int
    had_memory: bool = False


class _Gone(Exception):
    """A device does not answer any more."""


class MigDevices:
    """Of one GPU within one session."""

    def __init__(self, calls: DeviceCalls, gpm: Gpm | None) -> None:
        self._calls, self._gpm = calls, gpm
        self._devices: tuple[_Device, ...] = ()
        self._active: dict[int, dict[str, float]] = {}
        """By GPU instance, as last read."""
        self._list_in = 0
        self._most = 0
        """MIG devices that there can be: one a compute slice."""
        self.mode = "none"
        """none (it can't), off, on."""

    def read_mode(self) -> None:
        """Raises: Lost, DriverLost."""
        modes = self._calls.ask("nvmlDeviceGetMigMode")
        mode = "none" if modes is None else "on" if modes[0] else "off"
        if mode != self.mode:
            self.mode, self._list_in = mode, 0

    def read(self, now_s: float, running: tuple[GpuProcess, ...] | None, *, activity: bool) -> tuple[MigReading, ...]:
        """activity: Read GPM's values anew. Raises: Lost, DriverLost."""
        if self.mode != "on":
            self._devices = ()
            return ()
        if self._list_in <= 0:
            self._list_anew()
        self._list_in -= 1
        if activity and self._gpm:
            instances = {device.gpu_instance for device in self._devices}
            self._active = {instance: self._gpm.read(now_s, instance) for instance in instances}
        try:
            return self._read_listed(running)
        except _Gone:
            self._list_anew()
        try:
            return self._read_listed(running)
        except _Gone:  # they change this very moment
            self._list_in = 0
            return ()

    def _read_listed(self, running: tuple[GpuProcess, ...] | None) -> tuple[MigReading, ...]:
        readings = [
            self._read_one(device, self._active.get(device.gpu_instance, {}), running) for device in self._devices
        ]
        return tuple(reading for reading in readings if reading is not None)

    def _read_one(
        self, device: _Device, active: dict[str, float], running: tuple[GpuProcess, ...] | None
    ) -> MigReading | None:
        values = read_memory(device.calls)
        values.pop("memory_reserved_bytes", None)
        if device.had_memory and not values:
            raise _Gone(device.uuid)
        device.had_memory = bool(values)
        values |= {key: value for key, value in active.items() if key in _VALUES}
        if not values:
            return None
        mine = None if running is None else tuple(one.process for one in running if _runs_on(one, device))
        where = device.gpu_instance, self._most
        return MigReading(device.uuid, device.profile, device.slices, values, mine, *where)

    def _list_anew(self) -> None:
        known = {device.uuid for device in self._devices}
        self._devices = tuple(self._list())
        self._list_in = LIST_EVERY
        if self._gpm and known != {device.uuid for device in self._devices}:
            self._active = {}
            self._gpm.forget(but=[device.gpu_instance for device in self._devices if device.uuid in known])

    def _list(self) -> Iterable[_Device]:
        self._most = self._calls.ask("nvmlDeviceGetMaxMigDeviceCount") or 0
        for index in range(self._most):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self._calls.handle, index)
            except pynvml.NVMLError as error:  # NOT_FOUND: there are fewer
                self._calls.judge("nvmlDeviceGetMigDeviceHandleByIndex", error.value)
                continue
            calls = DeviceCalls(handle, self._calls.refused)
            uuid, name = calls.ask("nvmlDeviceGetUUID"), calls.ask("nvmlDeviceGetName") or ""
            size = calls.ask("nvmlDeviceGetAttributes_v2")
            gpu_instance = calls.ask("nvmlDeviceGetGpuInstanceId")
            if not uuid or size is None or gpu_instance is None:
                continue
            slices = size.computeInstanceSliceCount or size.gpuInstanceSliceCount
            compute_instance = calls.ask("nvmlDeviceGetComputeInstanceId") or 0
            yield _Device(calls, uuid, name.partition(" MIG ")[2], slices, gpu_instance, compute_instance)


def _runs_on(running: GpuProcess, device: _Device) -> bool:
    return (running.gpu_instance, running.compute_instance) == (device.gpu_instance, device.compute_instance)
