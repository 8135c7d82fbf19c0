"""Where processes stand, as the kernel sees it: for each thread what it does, the call it waits in, its kernel stack.

For ranks that make no progress, before they are ended. Works where nothing of the process's own can run any more (a
collective, a driver's call, a lock of the interpreter). Reads /proc alone, and there only what needs no lock of the
process's memory: `cmdline` and `environ` would hang where it hangs. Python's own stacks are not read here: `stall` has
the processes print them. Never signals, never writes.

Source: proc_pid_stat(5), proc_pid_wchan(5), proc_pid_syscall(5), proc_pid_stack(5), proc_pid_status(5).
"""

from __future__ import annotations

import os

MYPY = False
if MYPY:
    from typing import Iterable

MAX_PROCESSES = 64
MAX_THREADS = 512
"""Looked at in each process; the rest is counted."""
MAX_GROUPS = 24
"""Threads that stand at the same place are one line; so many lines for a process."""

_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel, not to be interrupted", "T": "stopped", "t": "traced",
           "Z": "zombie", "X": "dead", "I": "idle"}  # fmt: skip
_SYSCALLS = {
    "x86_64": {0: "read", 1: "write", 7: "poll", 16: "ioctl", 23: "select", 34: "pause", 35: "nanosleep",
               45: "recvfrom", 47: "recvmsg", 61: "wait4", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
               247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 441: "epoll_pwait2",
               449: "futex_waitv"},
    "aarch64": {22: "epoll_pwait", 29: "ioctl", 63: "read", 64: "write", 72: "pselect6", 73: "ppoll", 95: "waitid",
                98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 207: "recvfrom", 212: "recvmsg", 260: "wait4",
                441: "epoll_pwait2", 449: "futex_waitv"},
}  # fmt: skip
"""Those in which programs wait. Source: the kernel's syscall tables."""
_STACK_FRAMES = 16


def standing(processes: Iterable[tuple[int, str]]) -> list[str]:
    """Lines about each process: (pid, what to call it)."""
    lines: list[str] = []
    for count, (pid, what) in enumerate(processes):
        if count == MAX_PROCESSES:
            lines.append("more processes are left out")
            break
        lines += _of_process(pid, what)
    return lines


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler of its own for the signal, so that it does not just die of it."""
    for line in _read("/proc/%d/status" % pid).splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def lives(pid: int) -> bool:
    """Whether the process has not ended; one that was not waited for yet has."""
    return _stat(pid, pid)[1] not in ("", "Z", "X")


def _of_process(pid: int, what: str) -> list[str]:
    try:
        threads = sorted(int(name) for name in os.listdir("/proc/%d/task" % pid))
    except OSError:
        return ["%s, pid %d: it has ended" % (what, pid)]
    groups: dict[str, list[str]] = {}
    for thread in threads[:MAX_THREADS]:
        name, state, cpu_s = _stat(pid, thread)
        if name:
            groups.setdefault(_place(pid, thread, state), []).append("%s %d (%.1f s)" % (name, thread, cpu_s))
    lines = ["%s, pid %d, %d threads, each with its processor time:" % (what, pid, len(threads))]
    for place in sorted(groups, key=lambda place: len(groups[place]))[:MAX_GROUPS]:
        names = groups[place]
        more = ", and %d more" % (len(names) - 4) if len(names) > 4 else ""
        first, *frames = place.split("\n")
        lines.append("  %s%s: %s" % (", ".join(names[:4]), more, first))
        lines += ["      " + frame for frame in frames]
    left_out = len(groups) - MAX_GROUPS
    if left_out > 0 or len(threads) > MAX_THREADS:
        lines.append("  more threads are left out")
    return lines


def _place(pid: int, thread: int, state: str) -> str:
    """Where a thread stands; equal for threads that stand at the same place."""
    folder = "/proc/%d/task/%d/" % (pid, thread)
    parts = [_STATES.get(state, state)]
    called = _read(folder + "syscall").split()
    if called and called[0].isdigit():
        number = int(called[0])
        name = _SYSCALLS.get(os.uname().machine, {}).get(number)
        parts.append("in %s" % name if name else "in system call %d" % number)
    elif called == ["running"] and state != "R":
        parts.append("running")
    waits = _read(folder + "wchan").strip()
    if waits and waits != "0":
        parts.append("waits at %s" % waits)
    frames = [frame.partition("] ")[2] or frame for frame in _read(folder + "stack").splitlines()]
    return "\n".join([", ".join(parts), *frames[:_STACK_FRAMES]])


def _stat(pid: int, thread: int) -> tuple[str, str, float]:
    """Name, state letter, seconds of processor time; the name is '' where the thread has gone."""
    stat = _read("/proc/%d/task/%d/stat" % (pid, thread))
    if ")" not in stat:
        return "", "", 0.0
    end = stat.rindex(")")
    fields = stat[end + 2 :].split()
    ticks = os.sysconf("SC_CLK_TCK")
    name = "".join(c if c.isprintable() else "?" for c in stat[stat.index("(") + 1 : end])
    return name, fields[0], (int(fields[11]) + int(fields[12])) / ticks


def _read(path: str) -> str:
    """'' where it may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 16_384).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
