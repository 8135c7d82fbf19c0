"""The reader of NVML: a process that writes every GPU's readings to stdout in lines of `frames`, once a second or once.

A process of its own (`python -m stoker.nvml`), for a call into a wedged driver never returns and NVML has crashed on
lost GPUs. It alone imports pynvml; who starts it (the exporter's `watch`, the node agent's `inventory`) imports
`frames`. Keeps no sums: what it knows may die with it. Never says 0 for unknown.

    __main__    options, the steady schedule, the end with the parent
    poller      one poll: session, GPUs, what is lost, when to begin anew
    device      one GPU's reading, of: load, board, fields, processes, gpm, mig
    calls       what becomes of NVML's return codes
    xids        events in a thread of their own
"""

from __future__ import annotations

from pathlib import Path

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Source: include/linux/proc_ns.h (PROC_PID_INIT_INO)."""


def sees_all_pids() -> bool:
    """Whether this process is in the machine's first pid namespace."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False
