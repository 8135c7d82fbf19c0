"""What the NVML child writes to its parent: one JSON object a line on its stdout, and nothing else there.

Owns the format of that line. The child writes (`Frame.line`), the parent reads (`parse`). Pure.

A reading's `values` are flat: the name of a family in `catalogue.HARDWARE` without its prefix `stoker_gpu_`, and where
the family has labels of its own, their values behind it: `power_watts`, `temperature_celsius|core`,
`throttle_seconds_total|sw_power_cap`, `ecc_errors_total|uncorrected|volatile`. Base units. What is not known is not
there; there is no zero for unknown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
COLLECTORS = (
    "clocks",
    "temperatures",
    "limits",
    "throttling",
    "pcie",
    "nvlink",
    "ecc",
    "processes",
    "gpm",
    "xid",
    "mig",
)
"""Switches; `core` (identity, utilization, memory, power, energy) is always read."""


@dataclass(frozen=True, slots=True)
class Process:
    """A compute process on a GPU. `pid` is of the reader's own pid namespace."""

    pid: int
    memory_bytes: int | None = None
    sm_ratio: float | None = None
    """Its share of SM time since the poll before, 0..1."""


@dataclass(frozen=True, slots=True)
class MigReading:
    """One MIG device. NVML has no power or throttling of a single one."""

    uuid: str
    profile: str
    """`1g.10gb`."""
    slices: int
    """Of the GPU's compute slices."""
    values: dict[str, float] = field(default_factory=dict)
    """As families of `catalogue.MIG`, without `stoker_mig_`."""
    processes: tuple[Process, ...] | None = None
    gpu_instance: int | None = None
    """NVML's id of the GPU instance it lies in: some device plugins name it by that (`nvidia0/gi1`)."""
    of_slices: int = 7
    """That the GPU has; an A30 has 4."""

    @property
    def part(self) -> float:
        """Of the GPU."""
        return min(1.0, self.slices / self.of_slices)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one poll."""

    index: int
    uuid: str
    lost: str = ""
    """The NVML code's name (`GPU_IS_LOST`) if it can't be read; its values are then empty."""
    info: dict[str, str] = field(default_factory=dict)
    """model, pci_bus_id, compute_capability, mig (on, off, none), power_source (counter, integral), minor (its device
    file's number, by which some device plugins name it) …"""
    values: dict[str, float] = field(default_factory=dict)
    processes: tuple[Process, ...] | None = None
    """None: not visible from here (another pid namespace), or not supported."""
    mig: tuple[MigReading, ...] = ()
    late_s: float = 0.0
    """How long after the poll's begin its energy was read: a call may hang before and return after all."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One poll of every GPU."""

    number: int
    """From 0 in each child."""
    at: float
    """Unix seconds, as the poll began."""
    mono_s: float
    """CLOCK_BOOTTIME seconds, as the poll began: comparable between children of one boot."""
    took_s: float
    driver: str = ""
    cuda: str = ""
    gpus: tuple[GpuReading, ...] = ()
    refused: dict[str, int] = field(default_factory=dict)
    """`<call>:<code>` → how often, since the child began; calls that a device does not support are not errors."""

    def line(self) -> str:
        """Cost: 1 ms for 8 GPUs with 70 values each; `asdict`, which copies every value, takes 7."""
        data = {name: getattr(self, name) for name in self.__slots__}
        data["gpus"] = [_plain_gpu(gpu) for gpu in self.gpus]
        return json.dumps({"v": VERSION, "says": "frame", **data}, separators=(",", ":"))


def _plain(one: MigReading | GpuReading) -> dict[str, Any]:
    data = {name: getattr(one, name) for name in one.__slots__}
    data["processes"] = None if one.processes is None else [asdict(process) for process in one.processes]
    return data


def _plain_gpu(gpu: GpuReading) -> dict[str, Any]:
    return _plain(gpu) | {"mig": [_plain(one) for one in gpu.mig]}


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something NVML reported by itself, or that was seen between two polls."""

    at: float
    """Unix seconds."""
    uuid: str
    index: int
    kind: str
    """xid, lost, recovered, recovery_action, mig_changed."""
    code: int = 0
    """The XID, or the recovery action."""
    text: str = ""

    def line(self) -> str:
        return json.dumps({"v": VERSION, "says": "event", **asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Trouble:
    """NVML can't be used at all now; the child tries again, or ends and is started again."""

    at: float
    code: str
    """`DRIVER_NOT_LOADED`, `LIBRARY_NOT_FOUND`, `NO_GPUS` (some were expected), …"""
    text: str = ""

    def line(self) -> str:
        return json.dumps({"v": VERSION, "says": "trouble", **asdict(self)}, separators=(",", ":"))


Message = Frame | GpuEvent | Trouble


def parse(line: bytes | str) -> Message:
    """Raises: ValueError if the line is not one of ours."""
    try:
        data: dict[str, Any] = json.loads(line)
        kind, version = data.pop("says"), data.pop("v")
        if version != VERSION:
            raise ValueError(f"version {version}, not {VERSION}")
        if kind == "frame":
            return Frame(**{**data, "gpus": tuple(_gpu(gpu) for gpu in data["gpus"])})
        if kind == "event":
            return GpuEvent(**data)
        if kind == "trouble":
            return Trouble(**data)
        raise ValueError(f"kind {kind!r}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no line of the NVML child: {error!r}") from None


def _gpu(data: dict[str, Any]) -> GpuReading:
    mig = tuple(MigReading(**{**one, "processes": _processes(one["processes"])}) for one in data["mig"])
    return GpuReading(**{**data, "processes": _processes(data["processes"]), "mig": mig})


def _processes(data: list[dict[str, Any]] | None) -> tuple[Process, ...] | None:
    return None if data is None else tuple(Process(**one) for one in data)
