"""The cgroups under which a node's pods run: one folder per node in every hierarchy, cgroup v1 and v2 alike.

Also finds the pods' processes, which carry no mark of the bed. Called by `node` and `teardown`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.support.testbed.parts import until

_ROOT = Path("/sys/fs/cgroup")


def create(name: str) -> None:
    """The node's folder in every hierarchy, with the CPUs and memory nodes of the machine where v1 wants them named."""
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            source = hierarchy / setting  # v2's root has none
            if source.exists():
                (hierarchy / name / setting).write_text(source.read_text())


def kill(name: str) -> None:
    """SIGKILL for every process under the node, until none is left. Raises: BedError after ten seconds."""

    def none_left() -> bool:
        pids = _processes(name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    until(none_left, f"end of the pods of {name}", 10)


def remove(name: str) -> None:
    """Kills what runs under the node and removes its folders everywhere."""
    kill(name)
    for hierarchy in _hierarchies():
        folders = [Path(path) for path, _, _ in os.walk(hierarchy / name, topdown=False)]
        for folder in folders:
            with contextlib.suppress(OSError):  # another may remove it too
                folder.rmdir()


def _processes(name: str) -> set[int]:
    found: set[int] = set()
    for hierarchy in _hierarchies():
        for path, _, files in os.walk(hierarchy / name):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found.update(int(pid) for pid in (Path(path) / "cgroup.procs").read_text().split())
    return found - {0}


def _hierarchies() -> list[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [entry for entry in _ROOT.iterdir() if entry.is_dir() and not entry.is_symlink()]
