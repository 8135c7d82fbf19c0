"""Control groups of workers: what holds each to its job's memory, where the kernel lets this process make them.

Owns the choice of where they are made, their limits and their removal. The supervisor joins its group by itself, before
it starts anything, and reads at the end what the kernel counted (`stoker_worker.memory_group`). Blocking and small
(~0.1 ms a group): called from the agent's threads. Never touches a group of others.

Source: the kernel's cgroup-v2.rst ("Delegation", "No Internal Process Constraint") and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from stoker_worker.memory_group import LIMIT_FILES, PROCS_FILE, own_group

_OWN = "stoker-up"
"""Where this process goes if its group is to have children: with v2 a group that limits them holds no process."""
_CONTROL = "cgroup.subtree_control"
_V2_LIMIT, _V1_LIMIT = LIMIT_FILES


class MemoryGroups:
    """Groups below `parent`; None: `why_not` says why there are none, and no worker is held to its memory."""

    def __init__(self, parent: Path | None, data: Path, why_not: str = "") -> None:
        """`data`: the data folder; one machine may have several servers, each with groups of its own."""
        self._parent = parent
        self._prefix = f"stoker-{hashlib.sha256(os.fsencode(data)).hexdigest()[:8]}-"
        self.why_not = why_not

    def make(self, pod_uid: str, limit_bytes: int) -> str:
        """The worker's group, for its supervisor to join; '': it is not held to its memory."""
        if self._parent is None:
            return ""
        group = self._parent / (self._prefix + pod_uid)
        try:
            group.mkdir(exist_ok=True)
            _limit(group, limit_bytes)
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            return ""
        return str(group)

    def remove(self, group: str) -> None:
        """A worker's that is no more; also one that an earlier server of this data folder made elsewhere."""
        if Path(group).name.startswith(self._prefix):
            with contextlib.suppress(OSError):
                Path(group).rmdir()

    def remove_unused(self) -> None:
        """What servers left that were killed. A group with a process in it can't be removed."""
        for group in self._parent.glob(self._prefix + "*") if self._parent is not None else ():
            self.remove(str(group))


def find_memory_groups(data: Path) -> MemoryGroups:
    """To be called before this process starts others: with v2 it may have to go into a group of its own."""
    own = own_group()
    if not own:
        return MemoryGroups(None, data, "no memory control group is mounted")
    here = Path(own)
    parent = _v1_parent(here) if (here / _V1_LIMIT).exists() else _v2_parent(here)
    if parent is None:
        return MemoryGroups(None, data, f"no control group may be made in {here} (docs/operations.md)")
    groups = MemoryGroups(parent, data)
    groups.remove_unused()
    return groups


def _v1_parent(here: Path) -> Path | None:
    return here if os.access(here, os.W_OK) and _can_limit(here) else None


def _v2_parent(here: Path) -> Path | None:
    """Our own group if it is ours alone, else the nearest above it that we may write and that counts its children's
    memory: a desktop's session has one, a user's service too."""
    if _pids(here) == [os.getpid()] and _give_children(here):
        return here
    for group in here.parents:
        if not (group / _CONTROL).exists():
            return None
        # Who moves a process needs to write the list of the group that both places have above them.
        if os.access(group / PROCS_FILE, os.W_OK) and "memory" in _entries(group / _CONTROL) and _can_limit(group):
            return group
    return None


def _give_children(here: Path) -> bool:
    """Go into a child, and let children be limited; all is as before where that can't be."""
    child = here / _OWN
    try:
        child.mkdir(exist_ok=True)
        (child / PROCS_FILE).write_text("0")
        (here / _CONTROL).write_text("+memory")
    except OSError:
        with contextlib.suppress(OSError):
            (here / PROCS_FILE).write_text("0")
        with contextlib.suppress(OSError):
            child.rmdir()
        return False
    return _can_limit(here)


def _can_limit(parent: Path) -> bool:
    probe = parent / f"stoker-probe-{os.getpid()}"
    try:
        probe.mkdir()
        try:
            _limit(probe, 1 << 30)
        finally:
            probe.rmdir()
    except OSError:
        return False
    return True


def _limit(group: Path, limit_bytes: int) -> None:
    """Memory and, where it is counted, swap: what does not fit is not to be found on a disk either. Raises: OSError."""
    if (group / _V2_LIMIT).exists():
        (group / _V2_LIMIT).write_text(str(limit_bytes))
        _if_there(group / "memory.swap.max", "0")
    else:
        _if_there(group / "memory.memsw.limit_in_bytes", "-1")  # never below the other
        (group / _V1_LIMIT).write_text(str(limit_bytes))
        _if_there(group / "memory.memsw.limit_in_bytes", str(limit_bytes))


def _if_there(file: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        if file.exists():
            file.write_text(text)


def _pids(group: Path) -> list[int]:
    return [int(pid) for pid in _entries(group / PROCS_FILE)]


def _entries(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
