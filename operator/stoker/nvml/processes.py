"""Compute processes of one GPU, with their share of SM time. Called by `device`.

In a container with a pid namespace of its own NVML leaves other namespaces' processes out: an empty list then says
nothing, and becomes None (not visible), never as "no process".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .calls import DeviceCalls
from .frames import Process

NO_INSTANCE = 0xFFFFFFFF
_NEWEST_US = 1_100_000
"""Samples count that are no older than that before the newest."""


class GpuProcess(NamedTuple):
    process: Process
    gpu_instance: int
    compute_instance: int
    """NO_INSTANCE on a GPU that is not split."""


class Processes:
    """Of one GPU within one session."""

    def __init__(self, calls: DeviceCalls, seen_us: int, all_visible: bool) -> None:
        self._calls, self._seen_us, self._all_visible = calls, seen_us, all_visible

    def read(self, busy_ratio: float | None) -> tuple[GpuProcess, ...] | None:
        """None: can't be seen. busy_ratio: Of the GPU, which is that of its only process: to ask for the processes' own
        takes milliseconds of CPU. Raises: Lost, DriverLost."""
        running = self._calls.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        if running is None:  # drivers before 510
            running = self._calls.ask("nvmlDeviceGetComputeRunningProcesses_v2")
        if running is None or (not running and not self._all_visible):
            return None
        shares: Mapping[int, float] = {}
        if len(running) == 1 and busy_ratio is not None:
            shares = {running[0].pid: busy_ratio}
        elif running:
            shares = self._shares()
        return tuple(
            GpuProcess(
                Process(one.pid, one.usedGpuMemory, shares.get(one.pid)), one.gpuInstanceId, one.computeInstanceId
            )
            for one in running
        )

    def _shares(self) -> _Shares:
        """Pid → share of SM time since the poll before."""
        samples: Iterable[Any] = self._calls.ask("nvmlDeviceGetProcessUtilization", self._seen_us, about="") or ()
        # A sample may come twice, and be more than 100 %.
        percents = {(one.timeStamp, one.pid): min(one.smUtil, 100) for one in samples if one.timeStamp > self._seen_us}
        newest_us = max((moment for moment, _ in percents), default=0)
        percents = {key: one for key, one in percents.items() if key[0] > newest_us - _NEWEST_US}
        moments = {moment for moment, _ in percents}
        if not moments:
            return _Shares()
        self._seen_us = newest_us
        shares = _Shares(known=True)
        for (_, pid), percent in percents.items():
            shares[pid] = shares.get(pid, 0.0) + percent / 100 / len(moments)
        return shares


class _Shares(dict[int, float]):
    """A sample names only processes that did something: the others' share is 0, where there are samples at all."""

    def __init__(self, known: bool = False) -> None:
        super().__init__()
        self._known = known

    def get(self, pid: int, otherwise: Any = None) -> Any:
        return super().get(pid, 0.0 if self._known else otherwise)
