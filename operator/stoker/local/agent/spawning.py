"""Starting a supervisor, detached, and holding on to one: pidfds, so that a reused pid is never hit.

Whatever dies during a start, here or the whole agent, leaves a folder that says how far it came: no lock and no
started.json, and nothing has run; lock held, and a supervisor lives. Blocking and small (`spawn` takes ~1 ms): called
from the agent's threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.worker import EXIT_FILE, LAUNCH_FILE, LOG_FILE, STARTED_FILE, Launch
from stoker.store.seam import Seam

from .folders import Started, WorkerFolder

# As this process was given it, before the api took more for its connections: programs that close or select on all
# descriptors they may have are slow or break with many.
OPEN_FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
_LOCK_TRIES = 10


class RanAlready(Exception):
    """The folder shows that this worker has run: it must not run again."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A supervisor that lives, or has just ended."""

    pid: int
    pidfd: int
    ready_fd: int | None
    """Readable when started.json stands (or the supervisor ended); None for one that was found again."""


def start(
    folder: WorkerFolder,
    launch: Launch,
    job_folder: Path,
    program: str,
    host_env: Mapping[str, str],
    seam: Seam,
    secrets: Mapping[str, str],
) -> Handle | None:
    """The live supervisor; None if one lives there already. `secrets`: variables that stand in no file.

    Raises: OSError (nothing runs), RanAlready.
    """
    folder.write_launch(launch, job_folder, seam)
    with seam.crossing("agent.lock", folder.pod_uid):
        lock_fd = _take_lock(folder)
    if lock_fd is None:
        return None
    handle: Handle | None = None
    try:
        if any((folder.path / name).exists() for name in (STARTED_FILE, EXIT_FILE)):
            raise RanAlready(folder.pod_uid)
        with seam.crossing("agent.spawn", folder.pod_uid):
            handle = spawn(program, folder.path, lock_fd, host_env, secrets)
    except OSError:
        if handle is None:
            raise
        # The call was made and took effect: it lives, whatever went wrong behind it.
    finally:
        os.close(lock_fd)  # the supervisor has its own
    return handle


def spawn(
    program: str, folder: Path, lock_fd: int, host_env: Mapping[str, str], secrets: Mapping[str, str] | None = None
) -> Handle:
    """A supervisor in a session of its own, holding the lock. Raises: OSError."""
    secrets_fd = _in_memory(secrets) if secrets else None
    try:
        return _spawn(program, folder, lock_fd, secrets_fd, host_env)
    finally:
        if secrets_fd is not None:
            os.close(secrets_fd)


def _in_memory(secrets: Mapping[str, str]) -> int:
    """A file that has no name and is on no disk, to be read once by who inherits it. Raises: OSError."""
    fd = os.memfd_create("secrets")
    try:
        with os.fdopen(os.dup(fd), "w") as file:
            json.dump(dict(secrets), file)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _spawn(program: str, folder: Path, lock_fd: int, secrets_fd: int | None, host_env: Mapping[str, str]) -> Handle:
    ready_r, ready_w = os.pipe()
    launch, log = str(folder / LAUNCH_FILE), str(folder / LOG_FILE)
    argv = [sys.executable, "-I", "-S", program, launch, "--lock-fd", str(lock_fd), "--ready-fd", str(ready_w)]
    if OPEN_FILES != resource.RLIM_INFINITY:
        argv += ["--open-files", str(OPEN_FILES)]
    inherited = [lock_fd, ready_w]
    if secrets_fd is not None:
        argv += ["--secrets-fd", str(secrets_fd)]
        inherited.append(secrets_fd)
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
                # Onto themselves: that is how posix_spawn lets exactly these be inherited.
                *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in inherited),
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
        os.kill(pid, signal.SIGKILL)  # it could not be watched
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


def _take_lock(folder: WorkerFolder) -> int | None:
    """The lock; another thread's look at it (microseconds) is waited out."""
    for _ in range(_LOCK_TRIES):
        lock_fd = folder.take_lock()
        if lock_fd is not None:
            return lock_fd
        time.sleep(0.001)
    return None


def _start_ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return -1
    return int(stat[stat.rindex(")") + 2 :].split(" ")[19])
