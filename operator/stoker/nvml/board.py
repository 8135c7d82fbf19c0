"""Temperatures, clocks, throttling, PCIe, NVLink, memory errors of one GPU. Called by `device`.

Three lanes: counters and what they explain at each poll, gauges (temperatures, clocks) every few, what rarely moves
(limits, remapped rows, links) once in a while; what never moves once a session. `device` has the turns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import pynvml

from .calls import DeviceCalls
from .fields import ALL_LINKS, Field, Fields

SW_POWER_CAP, SYNC_BOOST, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x4, 0x10, 0x20, 0x40, 0x80
REASONS = {
    "sw_power_cap": SW_POWER_CAP,
    "hw_power_brake": HW_POWER_BRAKE,
    "sw_thermal": SW_THERMAL,
    "hw_thermal": HW_THERMAL,
    "sync_boost": SYNC_BOOST,
}
_CLOCKS = (("graphics", 0), ("sm", 1), ("memory", 2), ("video", 3))
_NS, _MHZ, _KB, _KIB = 1e-9, 1e6, 1000.0, 1024.0
_FAST = {
    "temperatures": (Field("temperature_celsius|memory", 82),),
    "throttling": (
        Field("throttle_seconds_total|sw_power_cap", 74, _NS),
        Field("throttle_seconds_total|sync_boost", 76, _NS),
        Field("throttle_seconds_total|sw_thermal", 269, _NS),
    ),
    "nvlink": (
        Field("nvlink_bytes_total|tx", 138, _KIB, ALL_LINKS),
        Field("nvlink_bytes_total|rx", 139, _KIB, ALL_LINKS),
    ),
    "ecc": (Field("recovery_action", 230),),
}
_HELD_DOWN = (
    Field("throttle_seconds_total|hw_thermal", 270, _NS),
    Field("throttle_seconds_total|hw_power_brake", 271, _NS),
)
"""Of the hardware itself: a millisecond of CPU, so they are read while the reasons name one of them, else rarely."""
_SLOW = {
    "temperatures": (
        Field("temperature_margin_limit_celsius|shutdown", 193),
        Field("temperature_margin_limit_celsius|slowdown", 194),
        Field("temperature_margin_limit_celsius|memory_max", 195),
        Field("temperature_margin_limit_celsius|gpu_max", 196),
    ),
    "nvlink": (
        Field("nvlink_errors_total|crc_flit", 38),
        Field("nvlink_errors_total|crc_data", 45),
        Field("nvlink_errors_total|replay", 52),
        Field("nvlink_errors_total|recovery", 59),
        Field("nvlink_errors_total|ecc_data", 160),
    ),
}
_NVLINK5_BYTES = (("nvlink_bytes_total|tx", 202), ("nvlink_bytes_total|rx", 204))
_NVLINK5_ERRORS = (
    ("nvlink_errors_total|malformed_packet", 206),
    ("nvlink_errors_total|buffer_overrun", 207),
    ("nvlink_errors_total|receive", 208),
    ("nvlink_errors_total|link_integrity", 211),
    ("nvlink_errors_total|recovery", 215),
    ("nvlink_errors_total|effective", 219),
)
_ERRORS = {
    ("corrected", "volatile"): (0, 0),
    ("corrected", "aggregate"): (0, 1),
    ("uncorrected", "volatile"): (1, 0),
    ("uncorrected", "aggregate"): (1, 1),
}
_SICK_ERRORS = ("uncorrected", "volatile")
_SRAM_KINDS = {
    "corrected": "aggregateCor",
    "uncorrected_parity": "aggregateUncParity",
    "uncorrected_secded": "aggregateUncSecDed",
}
_SRAM_UNITS = {
    "l2": "aggregateUncBucketL2",
    "sm": "aggregateUncBucketSm",
    "pcie": "aggregateUncBucketPcie",
    "mcu": "aggregateUncBucketMcu",
    "other": "aggregateUncBucketOther",
}
_LINKS_FIELD = 91
_MAX_LINKS = 36


def _per_link(fields: Iterable[tuple[str, int]], links: int) -> list[Field]:
    return [Field(key, number, 1.0, link) for key, number in fields for link in range(links)]


class Board:
    """Of one GPU within one session."""

    def __init__(self, calls: DeviceCalls, collectors: frozenset[str], more_fields: Iterable[Field] = ()) -> None:
        self._calls, self._collectors = calls, collectors
        self._fast = Fields(calls, [*more_fields, *self._chosen(_FAST)])
        self._slow = Fields(calls, self._chosen(_SLOW))
        self._held_down = Fields(calls, _HELD_DOWN if "throttling" in collectors else ())
        self._held: dict[str, float] = {}
        self._is_held_down = True
        self._constant: dict[str, float] | None = None
        self._links: int | None = None
        self._fifth: Fields | None = None
        self._fifth_errors: Fields | None = None

    def _chosen(self, table: dict[str, tuple[Field, ...]]) -> list[Field]:
        return [field for name, fields in table.items() if name in self._collectors for field in fields]

    def read(self, values: dict[str, float]) -> None:
        """Adds to the values. Raises: Lost, DriverLost."""
        values |= self._fast.read()
        if "throttling" in self._collectors:
            was = self._is_held_down
            self._is_held_down = self._read_reasons(values)
            if was or self._is_held_down:
                self._held = self._held_down.read()
            values |= self._held
        if "ecc" in self._collectors:
            self._read_errors(values, *_SICK_ERRORS)  # a GPU with one of these is to be left at once
        if self._fifth:
            values |= self._fifth.read()

    def read_gauges(self) -> dict[str, float]:
        """Raises: Lost, DriverLost."""
        gauges: dict[str, float] = {}
        if "temperatures" in self._collectors:
            self._read_temperatures(gauges)
        if "clocks" in self._collectors:
            self._read_clocks(gauges)
        return gauges

    def read_pcie_rates(self) -> dict[str, float]:
        """Of the last 20 ms, for which each call blocks: where GPM has none. Raises: Lost, DriverLost."""
        read = {name: self._calls.ask("nvmlDeviceGetPcieThroughput", kind) for kind, name in enumerate(("tx", "rx"))}
        return {f"pcie_bytes_per_second|{name}": rate * _KB for name, rate in read.items() if rate is not None}

    def _read_temperatures(self, values: dict[str, float]) -> None:
        core = self._calls.ask("nvmlDeviceGetTemperatureV", 0)
        if core is None:
            core = self._calls.ask("nvmlDeviceGetTemperature", 0)
        if core is not None:
            values["temperature_celsius|core"] = float(core)
        if (fan := self._calls.ask("nvmlDeviceGetFanSpeed")) is not None:
            values["fan_ratio"] = fan / 100

    def _read_clocks(self, values: dict[str, float]) -> None:
        for name, kind in _CLOCKS:
            if (clock := self._calls.ask("nvmlDeviceGetClockInfo", kind)) is not None:
                values[f"clock_hertz|{name}"] = clock * _MHZ
        state = self._calls.ask("nvmlDeviceGetPerformanceState")
        if state is not None and 0 <= state <= 15:
            values["pstate"] = float(state)

    def _read_reasons(self, values: dict[str, float]) -> bool:
        """Whether the hardware holds the clocks down, as far as is known."""
        reasons = self._calls.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            reasons = self._calls.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is not None:
            values |= {f"throttle_active|{name}": float(bool(reasons & bit)) for name, bit in REASONS.items()}
        return reasons is None or bool(reasons & (HW_THERMAL | HW_POWER_BRAKE))

    def read_rare(self, fast: dict[str, float]) -> dict[str, float]:
        """fast: What `read` has read. Raises: Lost, DriverLost."""
        if self._constant is None:
            self._constant = self._read_constant()
        if not self._is_held_down:  # else `read` has just done so
            self._held = self._held_down.read()
        rare = self._slow.read() | self._constant
        margin = self._calls.ask("nvmlDeviceGetMarginTemperature") if "temperatures" in self._collectors else None
        if margin is not None:
            rare["temperature_margin_celsius"] = float(margin)
        if "limits" in self._collectors:
            self._read_limits(rare)
        if "pcie" in self._collectors:
            self._read_pcie(rare)
        if "nvlink" in self._collectors:
            self._read_nvlink(rare, fast)
            self._read_fabric(rare)
        if "ecc" in self._collectors:
            self._read_memory_errors(rare)
        return rare

    def _read_constant(self) -> dict[str, float]:
        """What stays within a session."""
        read: dict[str, float] = {}
        for name, kind in _CLOCKS if "clocks" in self._collectors else ():
            if (clock := self._calls.ask("nvmlDeviceGetMaxClockInfo", kind)) is not None:
                read[f"clock_max_hertz|{name}"] = clock * _MHZ
        limits = ("shutdown", "slowdown", "memory_max", "gpu_max") if "temperatures" in self._collectors else ()
        for kind, name in enumerate(limits):
            if (celsius := self._calls.ask("nvmlDeviceGetTemperatureThreshold", kind)) is not None:
                read[f"temperature_limit_celsius|{name}"] = float(celsius)
        return read

    def _read_limits(self, rare: dict[str, float]) -> None:
        read = {
            "enforced": self._calls.ask("nvmlDeviceGetEnforcedPowerLimit"),
            "default": self._calls.ask("nvmlDeviceGetPowerManagementDefaultLimit"),
        }
        if (bounds := self._calls.ask("nvmlDeviceGetPowerManagementLimitConstraints")) is not None:
            read["min"], read["max"] = bounds
        rare |= {f"power_limit_watts|{kind}": value / 1000 for kind, value in read.items() if value is not None}

    def _read_pcie(self, rare: dict[str, float]) -> None:
        read = {
            "pcie_replays_total": "nvmlDeviceGetPcieReplayCounter",
            "pcie_link_generation|current": "nvmlDeviceGetCurrPcieLinkGeneration",
            "pcie_link_generation|max": "nvmlDeviceGetMaxPcieLinkGeneration",
            "pcie_link_width|current": "nvmlDeviceGetCurrPcieLinkWidth",
            "pcie_link_width|max": "nvmlDeviceGetMaxPcieLinkWidth",
        }
        for key, call in read.items():
            if (value := self._calls.ask(call)) is not None:
                rare[key] = float(value)

    def _read_fabric(self, rare: dict[str, float]) -> None:
        """Of an HGX: without a completed fabric its GPUs can't be used together, or at all."""
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        if self._calls.ask("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info), about="") is None:
            return
        if state := info.state & 0xFF:  # one byte in nvml.h; 0: no such fabric
            rare["fabric_state"], rare["fabric_failed"] = float(state), float(bool(info.status))

    def _read_nvlink(self, rare: dict[str, float], fast: dict[str, float]) -> None:
        if self._links is None:
            count = Fields(self._calls, [Field("links", _LINKS_FIELD)]).read().get("links")
            self._links = 0 if count is None else min(int(count), _MAX_LINKS)
            if self._links and "nvlink_bytes_total|tx" not in fast:  # NVLink 5 counts link by link
                self._fifth = Fields(self._calls, _per_link(_NVLINK5_BYTES, self._links))
                self._fifth_errors = Fields(self._calls, _per_link(_NVLINK5_ERRORS, self._links))
        if not self._links:
            return
        states = [self._calls.ask("nvmlDeviceGetNvLinkState", link) for link in range(self._links)]
        if any(state is not None for state in states):
            rare["nvlink_links_active"] = float(sum(state == 1 for state in states))
        if self._fifth_errors:
            rare |= self._fifth_errors.read()

    def _read_memory_errors(self, rare: dict[str, float]) -> None:
        for kind in _ERRORS:
            if kind != _SICK_ERRORS:
                self._read_errors(rare, *kind)
        if (rows := self._calls.ask("nvmlDeviceGetRemappedRows")) is not None:
            rare["remapped_rows|correctable"], rare["remapped_rows|uncorrectable"] = float(rows[0]), float(rows[1])
            rare["row_remap_pending"], rare["row_remap_failed"] = float(bool(rows[2])), float(bool(rows[3]))
        if (pending := self._calls.ask("nvmlDeviceGetRetiredPagesPendingStatus")) is not None:
            rare["retired_pages_pending"] = float(bool(pending))
        if (banks := self._calls.ask("nvmlDeviceGetRowRemapperHistogram")) is not None:
            rare |= {
                f"remap_banks|{left}": float(getattr(banks, left)) for left in ("max", "high", "partial", "low", "none")
            }
        self._read_sram(rare)
        self._read_modes(rare)

    def _read_errors(self, values: dict[str, float], kind: str, scope: str) -> None:
        if (errors := self._calls.ask("nvmlDeviceGetTotalEccErrors", *_ERRORS[kind, scope])) is not None:
            values[f"ecc_errors_total|{kind}|{scope}"] = float(errors)

    def _read_sram(self, rare: dict[str, float]) -> None:
        """Errors of the chip's own memories over the GPU's life; beyond a threshold NVIDIA replaces it."""
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        if self._calls.ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status), about="") is None:
            return
        rare |= {f"sram_errors_total|{kind}": float(getattr(status, name)) for kind, name in _SRAM_KINDS.items()}
        rare |= {f"sram_uncorrected_total|{unit}": float(getattr(status, name)) for unit, name in _SRAM_UNITS.items()}
        rare["sram_threshold_exceeded"] = float(bool(status.bThresholdExceeded))

    def _read_modes(self, rare: dict[str, float]) -> None:
        for kind, call in (("ecc", "nvmlDeviceGetEccMode"), ("mig", "nvmlDeviceGetMigMode")):
            if (modes := self._calls.ask(call)) is not None:
                rare[f"mode|{kind}|current"], rare[f"mode|{kind}|pending"] = float(modes[0]), float(modes[1])
        if (mode := self._calls.ask("nvmlDeviceGetPersistenceMode")) is not None:
            rare["mode|persistence|current"] = float(mode)
