"""Environments of a project, as they are kept: each whole or not there, the least used go when there are too many.

    <root>/<key> -> <key>-<random>     whole
    <root>/<key>-<random>/             an environment; its pyvenv.cfg is locked by its users, its mtime the last use
    <root>/.<key>.lock                 held by its builder

Other jobs of the project write here too, so what stands here is trusted only as far as it stays within `root`. Called
by `install`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time

MYPY = False
if MYPY:
    from typing import Callable, Iterator

IN_USE_S = 3600.0
"""So long after its last use none is removed: a worker may be about to start with it."""
TORN_S = 3600.0
"""What has no name after that was left half done."""
MARK = "pyvenv.cfg"
_LOOK_AGAIN_S = 0.2


class Environments:
    """`limit_bytes` 0: as many as there is room for."""

    def __init__(self, root: str, limit_bytes: int) -> None:
        self.root, self._limit = root, limit_bytes

    def find(self, key: str) -> str | None:
        """The environment of this key, noted as used."""
        try:
            target = os.readlink(os.path.join(self.root, key))
            if "/" in target or not target.startswith(key + "-"):
                return None
            place = os.path.join(self.root, target)
            with contextlib.suppress(PermissionError):  # another user's, of the same project
                os.utime(os.path.join(place, MARK))
        except FileNotFoundError:
            return None
        return place if os.path.exists(os.path.join(place, MARK)) else None

    def new_place(self, key: str) -> str:
        """Where it is built, and stays: programs in it name their Python by its path."""
        return os.path.join(self.root, "%s-%s" % (key, secrets.token_hex(4)))

    def publish(self, key: str, place: str) -> None:
        """Raises: FileExistsError where another was first, OSError."""
        os.symlink(os.path.basename(place), os.path.join(self.root, key))

    @contextlib.contextmanager
    def locked(self, key: str, waits: Callable[[], None]) -> Iterator[None]:
        """One builds, the others wait; where locks are not to be had, the first to end wins. `waits` is called
        meanwhile, and may raise."""
        with open(os.path.join(self.root, ".%s.lock" % key), "w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    waits()
                    time.sleep(_LOOK_AGAIN_S)
                except OSError:
                    break
            yield

    def remove_unused(self) -> None:
        """Make room: what was used least goes first, never what is in use; and what was left half done."""
        if not self._limit:
            return
        entries = list(os.scandir(self.root))
        links = {os.readlink(entry.path): entry.path for entry in entries if entry.is_symlink()}
        kept = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                mark = os.path.join(entry.path, MARK)
                used = os.stat(mark if os.path.exists(mark) else entry.path).st_mtime
                if entry.name in links:
                    kept.append((used, entry.path, _size(entry.path)))
                elif time.time() - used > TORN_S:
                    shutil.rmtree(entry.path, ignore_errors=True)
        held = sum(size for _, _, size in kept)
        for used, path, size in sorted(kept):
            if held <= self._limit * 9 // 10 or time.time() - used < IN_USE_S:
                return
            if _is_free(path):
                os.unlink(links[os.path.basename(path)])
                shutil.rmtree(path, ignore_errors=True)
                held -= size


def _is_free(path: str) -> bool:
    """No worker has it."""
    try:
        with open(os.path.join(path, MARK), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _size(path: str) -> int:
    total = 0
    for below, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(below, name)).st_size
    return total
