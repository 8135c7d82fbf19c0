"""Starting a supervisor, detached, and holding on to one: pidfds, so that a reused pid is never hit.

Blocking and small (`spawn` takes ~1 ms): called from the agent's threads.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.worker import LAUNCH_FILE, LOG_FILE

from .folders import Started

# As this process was given it, before the api took more for its connections: programs that close or select on all
# descriptors they may have are slow or break with many.
OPEN_FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)


@dataclass(frozen=True, slots=True)
class Handle:
    """A supervisor that lives, or has just ended."""

    pid: int
    pidfd: int
    ready_fd: int | None
    """Readable when started.json stands (or the supervisor ended); None for one that was found again."""


def spawn(program: str, folder: Path, lock_fd: int, host_env: Mapping[str, str]) -> Handle:
    """A supervisor in a session of its own, holding the lock. Raises: OSError."""
    ready_r, ready_w = os.pipe()
    launch, log = str(folder / LAUNCH_FILE), str(folder / LOG_FILE)
    argv = [sys.executable, "-I", "-S", program, launch, "--lock-fd", str(lock_fd), "--ready-fd", str(ready_w)]
    if OPEN_FILES != resource.RLIM_INFINITY:
        argv += ["--open-files", str(OPEN_FILES)]
    env = {name: host_env[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in host_env}
    try:
        pid = os.posix_spawn(
            sys.executable,
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                # Onto themselves: that is how posix_spawn lets exactly these two be inherited.
                (os.POSIX_SPAWN_DUP2, lock_fd, lock_fd),
                (os.POSIX_SPAWN_DUP2, ready_w, ready_w),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP],
        )
    except OSError:
        os.close(ready_r)
        raise
    finally:
        os.close(ready_w)
    os.set_blocking(ready_r, False)
    try:
        return Handle(pid, os.pidfd_open(pid), ready_r)  # our child: its pid is not reused before we reap it
    except OSError:
        os.kill(pid, signal.SIGKILL)  # nobody could watch it
        os.waitpid(pid, 0)
        os.close(ready_r)
        raise


def hold(started: Started) -> Handle | None:
    """The supervisor that started.json names, if it still lives."""
    try:
        pidfd = os.pidfd_open(started.pid)
    except OSError:
        return None
    # Only now, with the process pinned: is it the one that wrote the file?
    if _start_ticks(started.pid) != started.start_ticks:
        os.close(pidfd)
        return None
    return Handle(started.pid, pidfd, None)


def send(handle: Handle, signum: signal.Signals) -> None:
    """Signal exactly this supervisor; nothing happens if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle.pidfd, signum)


def bury(handle: Handle) -> None:
    """Reap it if it was our child, and let go of it."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, handle.pidfd, os.WEXITED | os.WNOHANG)
    os.close(handle.pidfd)
    if handle.ready_fd is not None:
        os.close(handle.ready_fd)


def _start_ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return -1
    return int(stat[stat.rindex(")") + 2 :].split(" ")[19])
