"""XID errors as NVML reports them, in a thread of its own: a wait for them must not hold up polls. Called by `poller`.

NVML does not repeat what happened before the wait began.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from .calls import ABSENT, NOTHING_NEW, CallErrors
from .device import Device
from .frames import GpuEvent
from .processes import NO_INSTANCE

_XID = 0x8  # nvmlEventTypeXidCriticalError
_TIMEOUT = 10
WAIT_MS = 1000


class Xids:
    """Waits for one session's events; `stop`, then `stopped` within WAIT_MS unless the driver hangs."""

    def __init__(self, devices: Sequence[Device], refused: CallErrors, say: Callable[[GpuEvent], None]) -> None:
        self._by_handle = {_address(device.handle): (device.uuid, device.index) for device in devices}
        self._handles = [device.handle for device in devices]
        self._refused, self._say = refused, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xids", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._count("nvmlEventSetCreate", error)
            return
        registered = [handle for handle in self._handles if self._register(handle, events)]
        while registered and not self._stop.is_set():
            self._wait(events)
        try:
            pynvml.nvmlEventSetFree(events)
        except pynvml.NVMLError as error:
            self._count("nvmlEventSetFree", error)

    def _register(self, handle: Any, events: Any) -> bool:
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, _XID, events)
        except pynvml.NVMLError as error:
            self._count("nvmlDeviceRegisterEvents", error)
            return False
        return True

    def _wait(self, events: Any) -> None:
        try:
            event = pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except pynvml.NVMLError as error:
            if error.value != _TIMEOUT:
                self._count("nvmlEventSetWait_v2", error)
                self._stop.wait(WAIT_MS / 1000)  # the poller begins a new session
            return
        uuid, index = self._by_handle.get(_address(event.device), ("", -1))
        if event.eventType != _XID:
            return
        where = "" if event.gpuInstanceId == NO_INSTANCE else f"GPU instance {event.gpuInstanceId}"
        self._say(GpuEvent(time.time(), uuid, index, "xid", int(event.eventData), where))

    def _count(self, call: str, error: Any) -> None:
        if error.value not in ABSENT | NOTHING_NEW:
            self._refused.count(call, error.value)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
