"""Which pod a process is of, by its cgroup: needs the node's pid namespace. Called by `loop`, for shared GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
_POD = re.compile(r"[-/]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
"""`…/kubepods/burstable/pod<uid>/…` (cgroupfs), `…-pod<uid with _>.slice/…` (systemd); of both cgroup versions."""
_MOST_BYTES = 1 << 14


def pods_of(pids: Iterable[int], proc: Path = PROC) -> dict[int, str]:
    """Pid → uid of its pod; of no pod, or gone: absent. Cost: 20 µs a process."""
    found = {}
    for pid in pids:
        try:
            with (proc / str(pid) / "cgroup").open(errors="replace") as file:
                text = file.read(_MOST_BYTES)
        except OSError:
            continue
        if uids := {uid.replace("_", "-") for uid in _POD.findall(text)}:
            found[pid] = min(uids) if len(uids) == 1 else ""
    return {pid: uid for pid, uid in found.items() if uid}
