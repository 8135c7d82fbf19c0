"""One use of NVML from its begin (nvmlInit) to its end: the driver's version and the GPUs that were there then.

NVML sees GPUs that come, come back or were reset only in a new session. Called by `poller`.
"""

from __future__ import annotations

from collections.abc import Callable

import pynvml

from .calls import DRIVER_LOST, CallErrors, DriverLost, GpuLost, code_name
from .device import Device
from .frames import GpuEvent
from .xids import Xids


class NvmlSession:
    """Raises: DriverLost from the constructor, and nothing is open then."""

    def __init__(
        self,
        refused: CallErrors,
        collectors: frozenset[str],
        say: Callable[[GpuEvent], None],
        *,
        seen_us: int,
        all_pids: bool,
    ) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverLost(code_name(error.value)) from None
        try:
            self.driver = _driver(refused)
            self.cuda = _cuda()
            self.devices: list[Device] = []
            self.unreadable: dict[int, str] = {}
            """Index → code of GPUs that NVML counts but does not let us have."""
            for index in range(pynvml.nvmlDeviceGetCount()):
                try:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    device = Device(index, handle, refused, collectors, seen_us=seen_us, all_pids=all_pids)
                    self.devices.append(device)
                except DriverLost:
                    raise
                except GpuLost as error:
                    self.unreadable[index] = error.code
                except pynvml.NVMLError as error:
                    self.unreadable[index] = code_name(error.value)
                    refused.count("nvmlDeviceGetHandleByIndex_v2", error.value)
        except pynvml.NVMLError as error:
            self._shut_down()
            raise DriverLost(code_name(error.value)) from None
        except DriverLost:
            self._shut_down()
            raise
        self._xids = Xids(self.devices, refused, say) if "xid" in collectors and self.devices else None

    def stop(self) -> bool:
        """Ask for the end; True once `close` may be called. NVML must not be shut down while a thread waits in it."""
        if self._xids is None:
            return True
        self._xids.stop()
        return self._xids.stopped

    def close(self) -> None:
        for device in self.devices:
            device.close()
        self._shut_down()

    def _shut_down(self) -> None:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return  # the driver is gone; a new session begins all the same


def _driver(refused: CallErrors) -> str:
    """Empty where it is not known: a label less, no GPU less. Raises: DriverLost."""
    try:
        version: str = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        if error.value in DRIVER_LOST:
            raise DriverLost(code_name(error.value)) from None
        refused.count("nvmlSystemGetDriverVersion", error.value)
        return ""
    return version


def _cuda() -> str:
    """`13.1`. Not the _v2 call, which needs libcuda."""
    try:
        version: int = pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
