"""The way from an order to a live supervisor, on one of the agent's threads.

Whatever dies in between, here or the whole agent, leaves a folder that says how far it came: no lock and no
started.json, and nothing has run; lock held, and a supervisor lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from stoker.spec.worker import EXIT_FILE, STARTED_FILE, Launch
from stoker.store.seam import Seam

from .folders import WorkerFolder
from .spawning import Handle, spawn

_LOOKERS = 10


class RanAlready(Exception):
    """The folder shows that this worker has run: it must not run again."""


def start(
    folder: WorkerFolder,
    launch: Launch,
    job_folder: Path,
    program: str,
    host_env: Mapping[str, str],
    seam: Seam,
) -> Handle | None:
    """The live supervisor; None if one lives there already. Raises: OSError (nothing runs), RanAlready."""
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
            handle = spawn(program, folder.path, lock_fd, host_env)
    except OSError:
        if handle is None:
            raise
        # The call was made and took effect: it lives, whatever went wrong behind it.
    finally:
        os.close(lock_fd)  # the supervisor has its own
    return handle


def _take_lock(folder: WorkerFolder) -> int | None:
    """The lock; another thread's look at it (microseconds) is waited out."""
    for _ in range(_LOOKERS):
        lock_fd = folder.take_lock()
        if lock_fd is not None:
            return lock_fd
        time.sleep(0.001)
    return None
