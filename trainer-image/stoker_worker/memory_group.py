"""The control group that a worker's processes share, as far as memory is concerned: joined, and read at the end.

Owns the names of its files, of cgroup v2 and of v1, which the node agent uses too. Never raises for a kernel that does
not have one of them. On one machine the node agent makes the group and the supervisor joins it; in a pod it is the
container's own.

Source: the kernel's cgroup-v2.rst (memory.max, memory.peak, memory.events) and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os

PROCS_FILE = "cgroup.procs"
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
_PEAK_FILES = ("memory.peak", "memory.max_usage_in_bytes")
_KILLS_FILES = ("memory.events", "memory.oom_control")


def join(group: str) -> bool:
    """Go into the group, with what is started from now on; whether the kernel let us."""
    try:
        fd = os.open(group + "/" + PROCS_FILE, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def own_group() -> str:
    """The group of this process that memory is counted in; '' where none is mounted."""
    paths = {}
    for line in _lines("/proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") if number != "0" else ("",):
            paths[controller] = path
    for line in _lines("/proc/self/mountinfo"):
        fields = line.split(" ")
        root, place, kind = fields[3], fields[4], fields[fields.index("-") + 1]
        if kind == "cgroup2":
            path = paths.get("", "")
        elif kind == "cgroup" and "memory" in fields[-1].split(","):
            path = paths.get("memory", "")
        else:
            continue
        # A container may see its own group only, as the mount's root.
        within = path or "/"
        if root != "/" and (within + "/").startswith(root + "/"):
            within = within[len(root) :]
        group = os.path.normpath(place + "/" + within)
        if _first(group, LIMIT_FILES):
            return group
    return ""


def kills(group: str) -> int:
    """How many of its processes the kernel has killed for lack of memory."""
    for line in _first(group, _KILLS_FILES).split("\n"):
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return 0


def peak_bytes(group: str) -> int | None:
    """The most memory that it has held; None: this kernel does not say."""
    text = _first(group, _PEAK_FILES)
    return int(text) if text.isdigit() else None


def _first(group: str, names: tuple[str, ...]) -> str:
    """The contents of the first of these files that is there."""
    for name in names:
        lines = _lines(group + "/" + name)
        if lines:
            return "\n".join(lines)
    return ""


def _lines(path: str) -> list[str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        parts: list[bytes] = []
        while True:
            part = os.read(fd, 65_536)
            if not part:
                return b"".join(parts).decode("utf-8", "replace").strip("\n").split("\n")
            parts.append(part)
    except OSError:
        return []
    finally:
        os.close(fd)
