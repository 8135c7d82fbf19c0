"""Whether NVIDIA's driver is here: before NVML is asked at all, and before an exporter is started for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

PATHS = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One of these exists where a driver is loaded (the last: WSL)."""
LIBRARY = "libnvidia-ml.so.1"


def is_here(env: Mapping[str, str], paths: Iterable[Path] = PATHS) -> bool:
    """Also where NVML's library lies in a folder that `env` has the loader look into."""
    folders = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return any(path.exists() for path in (*paths, *(Path(folder) / LIBRARY for folder in folders)))
