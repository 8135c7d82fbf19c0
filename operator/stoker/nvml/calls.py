"""NVML calls on one device, and what becomes of their return codes. Every call of the child passes here.

A GPU that has no such thing is asked once per session. A code that says the GPU or the driver is gone ends the
reading. Everything else leaves the value out of this poll and is counted.

Source: NVML API reference (nvmlReturn_t).
"""

from __future__ import annotations

from typing import Any

import pynvml

ABSENT = frozenset({2, 3, 4, 13, 22, 25, 26})
"""INVALID_ARGUMENT (an id that this driver does not know), NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND,
VGPU_ECC_NOT_SUPPORTED, ARGUMENT_VERSION_MISMATCH, DEPRECATED: asked again only in the next session."""
NOTHING_NEW = frozenset({0, 6, 21})
"""NOT_FOUND, NO_DATA: no sample since. nvidia-ml-py raises an error 0 where a list's size call says there is none."""
GPU_LOST = frozenset({15, 16, 28})
"""GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND."""
DRIVER_LOST = frozenset({1, 9, 12, 18})
"""UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH."""

_NAMES = {
    getattr(pynvml, name): name.removeprefix("NVML_ERROR_") for name in dir(pynvml) if name.startswith("NVML_ERROR_")
}


def code_name(code: int) -> str:
    """`GPU_IS_LOST` of 15."""
    return _NAMES.get(code, f"CODE_{code}")


class GpuLost(Exception):
    """This GPU can't be read until a new session."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DriverLost(GpuLost):
    """No GPU can."""


class CallErrors(dict[str, int]):
    """`<call>:<code>` → how often, since the child began."""

    def count(self, call: str, code: int) -> None:
        key = f"{call}:{code_name(code)}"
        self[key] = self.get(key, 0) + 1


class DeviceCalls:
    """Of one GPU or MIG device, within one session."""

    def __init__(self, handle: Any, refused: CallErrors) -> None:
        self.handle = handle
        self.refused = refused
        self._absent: set[tuple[Any, ...]] = set()
        self._failed = 0

    def ask(self, name: str, *args: Any, about: object = None) -> Any:
        """What the call returns; None where it is not known.

        about: Distinguishes calls with other arguments where `args` change from poll to poll.
        Raises: GpuLost, DriverLost.
        """
        key = (name, *args) if about is None else (name, about)
        if key in self._absent:
            return None
        try:
            return getattr(pynvml, name)(self.handle, *args)
        except pynvml.NVMLError as error:
            if self.judge(name, error.value):
                self._absent.add(key)
            return None

    def lacks(self, name: str, *args: Any) -> bool:
        """Whether the device has no such thing, as far as it was asked."""
        return (name, *args) in self._absent

    def judge(self, name: str, code: int) -> bool:
        """Whether the device has no such thing. Raises: GpuLost, DriverLost."""
        if code in GPU_LOST:
            raise GpuLost(code_name(code))
        if code in DRIVER_LOST:
            raise DriverLost(code_name(code))
        if code in ABSENT:
            return True
        if code not in NOTHING_NEW:
            self.refused.count(name, code)
            self._failed = code
        return False

    def try_again(self, name: str) -> None:
        """Ask again what the device did not have."""
        self._absent = {key for key in self._absent if key[0] != name}

    def take_failure(self) -> int:
        """The newest code that was neither of these since this was asked; 0: none."""
        code, self._failed = self._failed, 0
        return code
