"""What the folders of this server share: how full a disk may get, and how a change of a folder is made to last.

Called by `worker_logs` and `code`. Never decides what is kept.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

MIN_FREE_BYTES = 256 << 20
"""Left free on a disk that others need too."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that say: nothing more can be kept now."""


def free_bytes(folder: Path) -> int:
    """What the disk under `folder` still takes from us."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def sync(path: Path) -> None:
    """Let a file's bytes, or the renames in a folder, survive a power cut. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
