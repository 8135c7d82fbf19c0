"""One GPU within one session: its identity, and a reading at each poll. Called by `poller`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .board import Board
from .calls import CallErrors, DeviceCalls, GpuLost, code_name
from .frames import GpuReading
from .gpm import Gpm
from .load import POWER_FIELDS, Load, read_memory
from .mig import MigDevices
from .processes import Processes

GAUGES_EVERY, RARE_EVERY, RARE_S = 5, 15, 20.0
"""Polls between two turns of what is no counter and needs a call of its own; the GPUs take theirs one after another.
What takes milliseconds of CPU a call (GPM, the energy counter) has its turn with what is read rarely too, and after so
many seconds, while the GPU goes on with what it does."""
SETTLES_IN, FOLLOWS_FOR = 10, 3
"""For so many polls these are read at each, and the samples of utilization, after something has begun or ended on the
GPU; and after its power has become another one."""
_BEGUN_BYTES = 64 << 20
"""A change of the memory in use that says so: a process takes more than that to begin with."""
_ANOTHER_POWER = 0.25
"""A change of the power, by what it was when they were last read."""
_VITAL = ("busy_ratio", "memory_used_bytes", "power_watts", "energy_joules_total")


class Device:
    """Raises: GpuLost, DriverLost (of all methods and the constructor)."""

    def __init__(
        self,
        index: int,
        handle: Any,
        refused: CallErrors,
        collectors: frozenset[str],
        *,
        seen_us: int,
        all_pids: bool,
    ) -> None:
        self.index, self.handle = index, handle
        self._calls = DeviceCalls(handle, refused)
        uuid = self._calls.ask("nvmlDeviceGetUUID")
        if not uuid:
            raise GpuLost(code_name(self._calls.take_failure()))
        self.uuid: str = uuid
        self._board = Board(self._calls, collectors, POWER_FIELDS)
        self._load = Load(self._calls, seen_us)
        self._processes = Processes(self._calls, seen_us, all_pids) if "processes" in collectors else None
        self._gpm = Gpm(self._calls, pcie="pcie" in collectors) if "gpm" in collectors else None
        self._reads_pcie = "pcie" in collectors
        self._mig = MigDevices(self._calls, self._gpm)
        self._reads_mig = "mig" in collectors
        self._info = self._read_info()
        self._polls = 0
        self._settled_at = SETTLES_IN
        self._in_full_at_s = 0.0
        self._memory_bytes = self._power_w = 0.0
        self._activity: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._rare: dict[str, float] = {}

    def read(self, clock: Callable[[], float], poll_s: float) -> GpuReading:
        """clock: Monotonic seconds. poll_s: When the poll began."""
        values: dict[str, float] = {}
        now_s = clock()
        self._calls.take_failure()
        self._board.read(values)
        values |= read_memory(self._calls)
        settling = self._is_settling(values)
        in_full = settling or self._is_due(now_s)
        self._load.read_utilization(values, means=settling)
        self._load.read_power(values, clock(), anew=in_full)
        late_s = clock() - poll_s
        failure = self._calls.take_failure()
        if failure and not any(key in values for key in _VITAL):
            raise GpuLost(code_name(failure))
        if in_full:
            self._in_full_at_s, self._power_w = now_s, values.get("power_watts", 0.0)
            self._mig.read_mode()
            self._activity = self._gpm.read(now_s) if self._gpm else {}
        if self._is_turn(GAUGES_EVERY):
            self._gauges = self._board.read_gauges() | self._load.read_gauges()
            if self._reads_pcie and (self._gpm is None or self._gpm.has_pcie is False):
                self._gauges |= self._board.read_pcie_rates()
        if self._is_turn(RARE_EVERY):
            self._rare = self._board.read_rare(values)
        self._polls += 1
        values |= self._gauges | self._rare
        running = self._processes.read(values.get("busy_ratio")) if self._processes else None
        if running is not None:
            values["processes"] = float(len(running))
        values |= self._activity
        devices = self._mig.read(now_s, running, activity=in_full) if self._reads_mig else ()
        info = {
            **self._info,
            "mig": self._mig.mode,
            "power_source": "counter" if "energy_joules_total" in values else "integral",
        }
        processes = None if running is None else tuple(one.process for one in running)
        return GpuReading(self.index, self.uuid, "", info, values, processes, devices, late_s)

    def _is_settling(self, values: Mapping[str, float]) -> bool:
        """Whether it has just begun to do something else, by memory and power."""
        used_bytes, power_w = values.get("memory_used_bytes", 0.0), values.get("power_average", self._power_w)
        if abs(used_bytes - self._memory_bytes) > _BEGUN_BYTES:
            self._settled_at = self._polls + SETTLES_IN
        elif abs(power_w - self._power_w) > _ANOTHER_POWER * self._power_w:
            self._settled_at = max(self._settled_at, self._polls + FOLLOWS_FOR)
        self._memory_bytes = used_bytes
        return self._polls < self._settled_at

    def _is_due(self, now_s: float) -> bool:
        return self._is_turn(RARE_EVERY) or now_s - self._in_full_at_s >= RARE_S

    def _is_turn(self, every: int) -> bool:
        return self._polls == 0 or (self._polls + self.index) % every == 0

    def close(self) -> None:
        """Give back what the library lent, before the session ends."""
        if self._gpm:
            self._gpm.close()

    def _read_info(self) -> dict[str, str]:
        info = {"model": self._calls.ask("nvmlDeviceGetName") or ""}
        if (pci := self._calls.ask("nvmlDeviceGetPciInfo_v3")) is not None:
            info["pci_bus_id"] = pci.busId
        if (capability := self._calls.ask("nvmlDeviceGetCudaComputeCapability")) is not None:
            info["compute_capability"] = f"{capability[0]}.{capability[1]}"
        if (minor := self._calls.ask("nvmlDeviceGetMinorNumber")) is not None:
            info["minor"] = str(minor)
        for name, call in (("serial", "nvmlDeviceGetSerial"), ("vbios", "nvmlDeviceGetVbiosVersion")):
            if text := self._calls.ask(call):
                info[name] = text
        return info
