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

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

DRIVER_PATHS = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One of these exists where a driver is loaded (the last: WSL)."""
_LIBRARY = "libnvidia-ml.so.1"
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Source: include/linux/proc_ns.h (PROC_PID_INIT_INO)."""


def sees_all_pids() -> bool:
    """Whether this process is in the machine's first pid namespace."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def has_driver(env: Mapping[str, str], paths: Iterable[Path] = DRIVER_PATHS) -> bool:
    """Whether NVIDIA's driver is here; also where its library lies in a folder that `env` has the loader look into."""
    folders = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return any(path.exists() for path in (*paths, *(Path(folder) / _LIBRARY for folder in folders)))
