"""What is always read: how busy the GPU is, its memory, power and energy. Called by `device`."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from .calls import DeviceCalls
from .fields import Field

POWER_FIELDS = (
    Field("power_watts", 185, 1e-3),  # NVML_FI_DEV_POWER_AVERAGE, scope 0: the GPU; over a second
    Field("power_instant", 186, 1e-3),
)
"""Read with the board's fields, in one call."""
_SAMPLES = "nvmlDeviceGetSamples"
_BUSY, _MEMORY_BUSY = 1, 2  # NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES
_ROOM = 256


class _Sample(ctypes.Structure):
    _fields_ = [("at_us", ctypes.c_uint64), ("value", ctypes.c_uint64)]


class Samples:
    """The driver's ring buffer of one kind: means of what it sampled since the poll before."""

    def __init__(self, calls: DeviceCalls, kind: int, seen_us: int) -> None:
        self._calls, self._kind, self._seen_us = calls, kind, seen_us
        self._array = (_Sample * _ROOM)()
        self._absent = False

    def mean(self) -> float | None:
        """Of the samples that are new; None: there is none. Raises: Lost, DriverLost."""
        if self._absent:
            return None
        count, kind = ctypes.c_uint(_ROOM), ctypes.c_uint()
        try:
            function = pynvml._nvmlGetFunctionPointer(_SAMPLES)
        except pynvml.NVMLError as error:
            self._absent = self._calls.judge(_SAMPLES, error.value)
            return None
        code = function(
            *(self._calls.handle, ctypes.c_uint(self._kind), ctypes.c_ulonglong(self._seen_us)),
            *(ctypes.byref(kind), ctypes.byref(count), self._array),
        )
        if code:
            self._absent = self._calls.judge(_SAMPLES, code)
            return None
        total, number, newest_us = 0, 0, self._seen_us
        for sample in self._array[: min(count.value, _ROOM)]:
            if sample.at_us > self._seen_us:
                total += sample.value & 0xFFFFFFFF
                number += 1
                newest_us = max(newest_us, sample.at_us)
        self._seen_us = newest_us
        return total / number if number else None


class Load:
    """Of one GPU within one session."""

    def __init__(self, calls: DeviceCalls, seen_us: int) -> None:
        self._calls = calls
        self._busy = Samples(calls, _BUSY, seen_us)
        self._memory_busy = Samples(calls, _MEMORY_BUSY, seen_us)

    def read(self, values: dict[str, float]) -> None:
        """Adds to the values; `values` holds the power fields. Raises: Lost, DriverLost."""
        self._read_utilization(values)
        values |= read_memory(self._calls)
        instant = values.pop("power_instant", None)
        if "power_watts" not in values:
            if (milliwatts := self._calls.ask("nvmlDeviceGetPowerUsage")) is not None:
                values["power_watts"] = milliwatts / 1000
            elif instant is not None:
                values["power_watts"] = instant
        if (millijoules := self._calls.ask("nvmlDeviceGetTotalEnergyConsumption")) is not None:
            values["energy_joules_total"] = millijoules / 1000

    def read_gauges(self) -> dict[str, float]:
        """Raises: Lost, DriverLost."""
        engines = {"encoder": "nvmlDeviceGetEncoderUtilization", "decoder": "nvmlDeviceGetDecoderUtilization"}
        read = {f"{name}_busy_ratio": self._calls.ask(call) for name, call in engines.items()}
        return {key: rate[0] / 100 for key, rate in read.items() if rate is not None}

    def _read_utilization(self, values: dict[str, float]) -> None:
        """Means since the poll before where the driver keeps samples, else its newest window (1/6 s to 1 s)."""
        busy, memory_busy = self._busy.mean(), self._memory_busy.mean()
        if busy is None or memory_busy is None:
            rates = self._calls.ask("nvmlDeviceGetUtilizationRates")
            busy = rates.gpu if busy is None and rates else busy
            memory_busy = rates.memory if memory_busy is None and rates else memory_busy
        if busy is not None:
            values["busy_ratio"] = busy / 100
        if memory_busy is not None:
            values["memory_controller_busy_ratio"] = memory_busy / 100


def read_memory(calls: DeviceCalls) -> dict[str, float]:
    """Without what the driver reserves (v2); where it is too old for that, with it; never one for the other.

    Raises: Lost, DriverLost.
    """
    memory: Any = calls.ask("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
    reserved = {} if memory is None else {"memory_reserved_bytes": float(memory.reserved)}
    if memory is None and calls.lacks("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2):
        memory = calls.ask("nvmlDeviceGetMemoryInfo")
    if memory is None or not memory.total:
        return {}
    return {
        "memory_total_bytes": float(memory.total),
        "memory_used_bytes": float(memory.used),
        "memory_free_bytes": float(memory.free),
        **reserved,
    }
