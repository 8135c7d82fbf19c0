"""Reads NVML once and prints what it found as JSON.

Run as a script, in a process of its own: a call into a wedged driver never returns and can't be cancelled, and NVML has
been seen to crash on a lost GPU. Called by `inventory.NvmlGpus`.

Source: nvml.h (struct layouts and versions of nvmlMemory_t, nvmlProcessInfo_v2_t), NVML API reference.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

_TEXT = 96
_INSUFFICIENT_SIZE = 7
_MIG_ON = 1


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlError(Exception):
    """NVML refused a call."""


class Nvml:
    """The loaded library. Raises: OSError where there is none."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Raises: NvmlError; AttributeError if this driver is too old to know the call."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise NvmlError(f"{name} failed with {code}")

    def text(self, name: str, device: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT)
        self.call(name, device, buffer, ctypes.c_uint(_TEXT))
        return buffer.value.decode(errors="replace")

    def processes(self, device: ctypes.c_void_p) -> list[int]:
        """Pids of compute processes on the device; [] where the driver does not tell."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            function = getattr(self._library, name, None)
            if function is None:
                continue
            room = 64
            while room <= 16_384:
                found = (_Process * room)()
                count = ctypes.c_uint(room)
                code = function(device, ctypes.byref(count), found)
                if code == 0:
                    return [found[i].pid for i in range(count.value)]
                if code != _INSUFFICIENT_SIZE:
                    break
                room = max(room * 2, count.value + 16)
        return []

    def mig_on(self, device: ctypes.c_void_p) -> bool:
        now, pending = ctypes.c_uint(0), ctypes.c_uint(0)
        try:
            self.call("nvmlDeviceGetMigMode", device, ctypes.byref(now), ctypes.byref(pending))
        except (NvmlError, AttributeError):
            return False  # no such thing on this device
        return now.value == _MIG_ON


def read_all() -> dict[str, Any]:
    """{"gpus": […]}, or {"error": why there are none}."""
    try:
        nvml = Nvml()
        nvml.call("nvmlInit_v2")
    except (OSError, NvmlError, AttributeError) as error:
        return {"error": str(error)}
    count = ctypes.c_uint(0)
    nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    return {"gpus": [_read(nvml, index) for index in range(count.value)]}


def _read(nvml: Nvml, index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = {"index": index, "uuid": "", "lost": ""}
    try:
        device = ctypes.c_void_p()
        nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        gpu["uuid"] = nvml.text("nvmlDeviceGetUUID", device)
        gpu["model"] = nvml.text("nvmlDeviceGetName", device)
        gpu["mig"] = nvml.mig_on(device)
        memory = _Memory()
        nvml.call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        gpu["memoryBytes"] = memory.total
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        nvml.call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
        gpu["computeCapability"] = f"{major.value}.{minor.value}"
        gpu["processes"] = [{"pid": pid, "name": _name(pid)} for pid in nvml.processes(device)]
    except (NvmlError, AttributeError) as error:
        gpu["lost"] = str(error)
    return gpu


def _name(pid: int) -> str | None:
    """None where no such process can be seen from here (it ended, or it lives in another pid namespace)."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


if __name__ == "__main__":
    json.dump(read_all(), sys.stdout)
