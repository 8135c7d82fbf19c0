"""What is always read: how busy the GPU is, its memory, power and energy. Called by `device`."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from .calls import DeviceCalls
from .fields import Field

POWER_FIELDS = (
    Field("power_average", 185, 1e-3),  # NVML_FI_DEV_POWER_AVERAGE, scope 0: the GPU; over a second
    Field("power_instant", 186, 1e-3),
)
"""Read with the board's fields, in one call."""
_MEAN_OVER_S = (0.5, 1.5)
"""Polls so far apart have the average as their mean."""
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


class EnergyCounter:
    """NVML's counter of one GPU. To read it takes the driver 3 to 5 ms of CPU (an H100, docs/gpu-check), so where the
    mean power of each second is known it goes on by that between two readings.

    The two agree within 0.5 %. Each reading sets it right, and it stands still where it was ahead: by a twentieth of a
    second's energy at most, so that it does not fall over a restart of the exporter either.
    """

    def __init__(self, calls: DeviceCalls) -> None:
        self._calls = calls
        self._joules: float | None = None
        """As shown."""
        self._read_joules = self._at_s = 0.0

    def read(self, now_s: float, average_w: float | None, anew: bool) -> float | None:
        """Joules; None: not known. anew: Read the counter itself. Raises: Lost, DriverLost."""
        span_s, self._at_s = now_s - self._at_s, now_s
        if self._joules is not None and average_w is not None and not anew and _is_mean_over(span_s):
            self._joules += average_w * span_s
            return self._joules
        millijoules = self._calls.ask("nvmlDeviceGetTotalEnergyConsumption")
        if millijoules is None:
            self._at_s = 0.0  # to be read at the next poll
            return None
        joules = millijoules / 1000
        began_anew = self._joules is None or joules < self._read_joules
        self._joules = joules if began_anew else max(self._joules or 0.0, joules)
        self._read_joules = joules
        return self._joules


def _is_mean_over(span_s: float) -> bool:
    least, most = _MEAN_OVER_S
    return least <= span_s <= most


class Load:
    """Of one GPU within one session."""

    def __init__(self, calls: DeviceCalls, seen_us: int) -> None:
        self._calls = calls
        self._busy = Samples(calls, _BUSY, seen_us)
        self._memory_busy = Samples(calls, _MEMORY_BUSY, seen_us)
        self._energy = EnergyCounter(calls)

    def read_power(self, values: dict[str, float], now_s: float, *, anew: bool) -> None:
        """Adds power and energy; `values` holds the power fields. anew: See EnergyCounter. Raises: Lost, DriverLost."""
        average, instant = values.pop("power_average", None), values.pop("power_instant", None)
        power = average
        if power is None and (milliwatts := self._calls.ask("nvmlDeviceGetPowerUsage")) is not None:
            power = milliwatts / 1000
        if (power := instant if power is None else power) is not None:
            values["power_watts"] = power
        if (joules := self._energy.read(now_s, average, anew)) is not None:
            values["energy_joules_total"] = joules

    def read_gauges(self) -> dict[str, float]:
        """Raises: Lost, DriverLost."""
        engines = {"encoder": "nvmlDeviceGetEncoderUtilization", "decoder": "nvmlDeviceGetDecoderUtilization"}
        read = {f"{name}_busy_ratio": self._calls.ask(call) for name, call in engines.items()}
        return {key: rate[0] / 100 for key, rate in read.items() if rate is not None}

    def read_utilization(self, values: dict[str, float], *, means: bool) -> None:
        """Adds the driver's newest window (1/6 s to 1 s). means: The mean since they were last read where the driver
        keeps samples, for 5 ms of CPU. Raises: Lost, DriverLost."""
        means = means or self._calls.lacks("nvmlDeviceGetUtilizationRates")
        busy, memory_busy = (self._busy.mean(), self._memory_busy.mean()) if means else (None, None)
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
