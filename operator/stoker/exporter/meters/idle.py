"""What a device was doing over one interval. Pure.

Activity comes first: a process list that is empty says nothing where a kernel ran (processes of another pid namespace
are not always listed), and no activity known is not idle.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.nvml.frames import Process

ACTIVE = "active"
LITTLE_MEMORY_BYTES = 64 << 20
"""Less than this in use: no process, where processes can't be seen. A CUDA context alone takes more."""
QUIET_SM_RATIO = 0.01
LOW_RATIO = 0.1


def doing(values: Mapping[str, float], processes: tuple[Process, ...] | None) -> str | None:
    """`active`, one of `receipts.IDLE_CLASSES`, or None if it is not known."""
    busy, sm = values.get("busy_ratio"), values.get("sm_active_ratio")
    activity = busy if sm is None else sm
    if activity is None:
        return "no_process" if _no_process(values, processes) else None
    if busy == 0.0 or (busy is None and activity < QUIET_SM_RATIO):  # SM activity may be a mean of the last polls
        return "no_process" if _no_process(values, processes) else "no_activity"
    return "low_activity" if activity < LOW_RATIO else ACTIVE


def in_use(values: Mapping[str, float], processes: tuple[Process, ...] | None) -> bool | None:
    """Whether memory or load is seen; None if neither is known."""
    used, busy = values.get("memory_used_bytes"), values.get("busy_ratio", values.get("sm_active_ratio"))
    if processes or (busy or 0.0) >= QUIET_SM_RATIO:
        return True
    if used is not None and processes is None:
        return used >= LITTLE_MEMORY_BYTES
    return None if used is None and busy is None and processes is None else False


def _no_process(values: Mapping[str, float], processes: tuple[Process, ...] | None) -> bool:
    if processes is not None:
        return not processes
    return values.get("memory_used_bytes", LITTLE_MEMORY_BYTES) < LITTLE_MEMORY_BYTES
