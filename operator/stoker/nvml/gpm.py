"""SMs, tensor cores, memory and PCIe by GPM (Hopper and newer): means between two samples. Called by `device`.

Of GPUs and of MIG devices' GPU instances; needs no privileges and locks no one out. Samples are memory of the
library's: `close` frees them, before the session ends.

Source: NVML API reference, GPM (samples at least 100 ms apart); NVIDIA/DCGM#62.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pynvml

from .calls import DeviceCalls

METRICS = {
    1: "graphics_active_ratio",
    2: "sm_active_ratio",
    3: "sm_occupancy_ratio",
    5: "tensor_active_ratio",
    10: "dram_active_ratio",
    11: "pipe_active_ratio|fp64",
    12: "pipe_active_ratio|fp32",
    13: "pipe_active_ratio|fp16",
}
PCIE = {20: "tx", 21: "rx"}
"""Means too, in MiB/s. NVML's counters (fields 197, 198) have 32 bits: above 4.29 GB/s they wrap within a second."""
MIN_GAP_S, MAX_GAP_S = 0.1, 30.0
_MOST_PERCENT = 105.0
"""More than that is no measurement."""
_MOST_MIB_S = 1e6
_MIB = float(1 << 20)


class _Pair:
    """The sample before, and room for the next."""

    def __init__(self) -> None:
        self.before, self.next = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self.at_s: float | None = None

    def free(self) -> None:
        for sample in (self.before, self.next):
            try:
                pynvml.nvmlGpmSampleFree(sample)
            except pynvml.NVMLError:
                return


class Gpm:
    """Of one GPU within one session."""

    def __init__(self, calls: DeviceCalls, *, pcie: bool = False) -> None:
        """pcie: Read PCIe's rates too, of the GPU as a whole."""
        self._calls = calls
        self._of_gpu = {**METRICS, **(PCIE if pcie else {})}
        self.has_pcie: bool | None = None if pcie else False
        """None: not known yet."""
        self._pcie_bytes: dict[str, float] = {}
        """Direction → bytes in this session."""
        self._supported: bool | None = None
        self._pairs: dict[int | None, _Pair] = {}
        self._get: Any = None

    def read(self, now_s: float, instance: int | None = None) -> dict[str, float]:
        """Means since the poll before; instance: of this GPU instance. Raises: Lost, DriverLost."""
        if self._supported is None:
            support = self._calls.ask("nvmlGpmQueryDeviceSupport")
            self._supported = bool(support and support.isSupportedDevice)
        if not self._supported:
            self.has_pcie = False
            return {}
        pair = self._pair(instance)
        if pair is None or (pair.at_s is not None and now_s - pair.at_s < MIN_GAP_S):
            return {}
        if instance is None:
            taken = self._calls.ask("nvmlGpmSampleGet", pair.next, about="")
        else:
            taken = self._calls.ask("nvmlGpmMigSampleGet", instance, pair.next, about=instance)
        if taken is None:
            return {}
        before_s, pair.at_s = pair.at_s, now_s
        pair.before, pair.next = pair.next, pair.before
        if before_s is None or now_s - before_s > MAX_GAP_S:
            return {}
        metrics = self._of_gpu if instance is None else METRICS
        return self._between(pair.next, pair.before, now_s - before_s, metrics)

    def forget(self, but: Iterable[int]) -> None:
        """Free the samples of GPU instances that are gone or were made anew."""
        self._calls.try_again("nvmlGpmMigSampleGet")
        for instance in [one for one in self._pairs if one is not None and one not in but]:
            self._pairs.pop(instance).free()

    def close(self) -> None:
        for pair in self._pairs.values():
            pair.free()
        self._pairs = {}

    def _pair(self, instance: int | None) -> _Pair | None:
        if instance not in self._pairs:
            try:
                self._pairs[instance] = _Pair()
            except pynvml.NVMLError as error:
                if self._calls.judge("nvmlGpmSampleAlloc", error.value):
                    self._supported = False
                return None
        return self._pairs[instance]

    def _between(self, first: Any, second: Any, span_s: float, metrics: dict[int, str]) -> dict[str, float]:
        if self._get is None:
            self._get = pynvml.c_nvmlGpmMetricsGet_t()
            self._get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        get = self._get
        get.sample1, get.sample2, get.numMetrics = first, second, len(metrics)
        for room, number in zip(get.metrics, metrics, strict=False):
            room.metricId = number
        try:
            pynvml.nvmlGpmMetricsGet(get)
        except pynvml.NVMLError as error:
            if self._calls.judge("nvmlGpmMetricsGet", error.value):
                self._supported = False
            return {}
        values: dict[str, float] = {}
        for metric, key in zip(get.metrics, metrics.values(), strict=False):
            code, percent = metric.nvmlReturn, metric.value
            if code:
                absent = self._calls.judge(f"nvmlGpmMetricsGet({metric.metricId})", code)
                if absent and metric.metricId in PCIE:
                    self.has_pcie = False
            elif metric.metricId in PCIE:
                values |= self._pcie(key, metric.value, span_s)
            elif math.isfinite(percent) and 0 <= percent <= _MOST_PERCENT:
                values[key] = min(percent / 100, 1.0)
        return values

    def _pcie(self, direction: str, mib_s: float, span_s: float) -> dict[str, float]:
        """The rate, and all bytes: a pair's mean times its span leaves nothing out."""
        if not (math.isfinite(mib_s) and 0 <= mib_s <= _MOST_MIB_S):
            return {}
        self.has_pcie, rate = True, mib_s * _MIB
        self._pcie_bytes[direction] = self._pcie_bytes.get(direction, 0.0) + rate * span_s
        return {
            f"pcie_bytes_per_second|{direction}": rate,
            f"pcie_bytes_total|{direction}": self._pcie_bytes[direction],
        }
