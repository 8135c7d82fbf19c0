"""The supervisor's descendants: who they are, and signals to them.

As a subreaper (or PID 1) the supervisor inherits every orphan of its descendants: what double-forks or calls setsid
stays in the family, and no child left means no descendant left.
"""

from __future__ import annotations

import os


class Member:
    """One process of the family, as /proc showed it."""

    __slots__ = ("group", "pid")

    def __init__(self, pid: int, group: int) -> None:
        self.pid = pid
        self.group = group


def descendants(but: frozenset[int] | set[int] = frozenset()) -> list[Member]:
    """All living descendants of this process, children first, without the processes in `but` and what is below them.

    Cost: reads /proc once, ~10 µs a process.
    """
    children: dict[int, list[Member]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open("/proc/" + name + "/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            stat = os.read(fd, 1024)
        except OSError:
            continue
        finally:
            os.close(fd)
        # "pid (name) state ppid pgrp …"; the name may hold anything, so look from its end.
        state, parent, group = stat[stat.rindex(b")") + 2 :].split(b" ", 3)[:3]
        # A zombie may have living threads' children below it: keep it in the tree, signals to it do nothing.
        del state
        children.setdefault(int(parent), []).append(Member(int(name), int(group)))
    found: list[Member] = []
    parents = [os.getpid()]
    for pid in parents:  # grows while we walk it
        ours = [member for member in children.get(pid, ()) if member.pid not in but]
        found += ours
        parents += [member.pid for member in ours]
    return found


def send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except OSError:
        pass


def send_group(group: int, signum: int) -> None:
    try:
        os.killpg(group, signum)
    except OSError:
        pass
