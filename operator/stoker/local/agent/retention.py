"""When what jobs have saved goes: some time after the job itself has been deleted.

Owns the mark in a job's folder that says since when the job is gone; it survives restarts. Blocking: called from the
agent's threads. Never touches the folder of a job that is there, or of a worker that runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

GONE_MARK = ".job-deleted"
_TRASH = ".removing-"


def remove_old_results(jobs: Path, keep_s: float, now_s: float, in_use: Callable[[str], bool]) -> list[str]:
    """Remove folders of jobs that have been gone for `keep_s`; mark those that are gone since the last call.

    `in_use(uid)`: the job is there, or may be. Units: `now_s` in Unix seconds. Returns: the uids removed.
    """
    removed = []
    for entry in sorted(os.scandir(jobs), key=lambda one: one.name) if jobs.exists() else ():
        if not entry.is_dir(follow_symlinks=False):
            continue
        folder = Path(entry.path)
        if entry.name.startswith(_TRASH):  # of a removal that was interrupted
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(OSError):  # one folder that can't be read or removed is no other's trouble
            if in_use(entry.name):
                (folder / GONE_MARK).unlink(missing_ok=True)
            elif _gone_for_s(folder, now_s) >= keep_s:
                trash = folder.with_name(_TRASH + entry.name)
                folder.rename(trash)  # at once and whole
                shutil.rmtree(trash, ignore_errors=True)
                removed.append(entry.name)
    return removed


def _gone_for_s(folder: Path, now_s: float) -> float:
    """Since the mark was made, by what it says: a job's processes may still touch other times. Raises: OSError."""
    mark = folder / GONE_MARK
    try:
        descriptor = os.open(mark, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        descriptor = -1
    if descriptor >= 0:
        with os.fdopen(descriptor, "rb") as file, contextlib.suppress(ValueError):
            return now_s - float(file.read(64))
        mark.unlink()
    fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(f"{now_s:.0f}\n")
    return 0.0
