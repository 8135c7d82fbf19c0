"""The cache of fetched data: folders by project and entry, each whole or not there; the least used go when it is full.

    <root>/<project>/<entry>/              what workers see, read-only
    <root>/<project>/<entry> -> <entry>.<version>     of a url without a digest: what was newest at the last look
    <root>/<project>/.<entry>.size         its bytes; mtime: its last use
    <root>/<project>/.<entry>.part/        under way, by who holds .<entry>.lock

An entry is in use while a lock on its first file is held (workers' supervisors do, on other nodes too), and for an hour
after its last fetch, for workers that are still to start. Called by `fetching`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from .errors import Refused

IN_USE_S = 3600.0
FREE_BYTES = 256 << 20
"""Of the file system, that stay free."""
_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True)
class _Entry:
    folder: Path
    size_bytes: int
    used_at: float


class Cache:
    """The part of one project; what is removed may be any's. `alive` is called while there is work or a wait."""

    def __init__(
        self, root: Path, project: str, limit_bytes: int, alive: Callable[[], None], free_share: float = 0.0
    ) -> None:
        """Raises: Refused."""
        self.root, self.limit_bytes, self.alive, self.free_share = root, limit_bytes, alive, free_share
        self.folder = root / project
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(f"user {os.getuid()} can't make a folder in the cache: {error.strerror}") from None

    def path(self, entry: str) -> Path:
        return self.folder / entry

    @contextlib.contextmanager
    def locked(self, entry: str) -> Iterator[None]:
        """One process at a time: who comes later finds it there. Raises: Refused."""
        with self._lock(self.folder / f".{entry}.lock"):
            yield

    def use(self, entry: str) -> bool:
        """Whether it is there; it is noted as used."""
        folder = self.folder / entry
        if not folder.is_dir():
            return False
        with contextlib.suppress(FileNotFoundError):
            os.utime(_note(folder))
        return True

    def part(self, entry: str) -> Path:
        """An empty folder to build it in; what a killed process left there is gone."""
        part = self.folder / f".{entry}.part"
        self.remove(part)
        part.mkdir()
        return part

    def keep(self, part: Path, entry: str, size_bytes: int) -> None:
        """Give what was built its name."""
        folder = self.folder / entry
        _note(folder).write_text(str(size_bytes))
        part.rename(folder)
        folder.chmod(0o555)

    def point(self, entry: str, version: str) -> None:
        """Let `entry` mean this version from now on."""
        link = self.folder / f".{entry}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(version)
        link.rename(self.folder / entry)

    def make_room(self, size_bytes: int) -> None:
        """Remove entries that are not in use until so much fits. Raises: Refused."""
        if size_bytes > self.limit_bytes:
            raise Refused(f"it is larger than the limit of {self.limit_bytes} bytes")
        with self._lock(self.root / ".lock"):
            self._remove_torn()
            entries = sorted(self._entries(), key=lambda entry: entry.used_at)
            held = sum(entry.size_bytes for entry in entries)
            while held + size_bytes > self.limit_bytes or self._free() < size_bytes:
                gone = next((entry for entry in entries if self._remove_unused(entry)), None)
                if gone is None:
                    raise Refused(
                        f"there is no room for {size_bytes} bytes: {held} of {self.limit_bytes} are taken by data in "
                        f"use, {max(0, self._free())} may be taken of its disk"
                    )
                entries.remove(gone)
                held -= gone.size_bytes

    def remove(self, folder: Path) -> None:
        """A folder with all that is below it, read-only or not. No link is followed."""
        if folder.is_symlink() or not folder.exists():
            return
        for below, _, _ in os.walk(folder):
            Path(below).chmod(0o755)
        for below, folders, files in os.walk(folder, topdown=False):
            for name in (*files, *folders):
                path = Path(below, name)
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
                self.alive()
        folder.rmdir()

    def _entries(self) -> Iterator[_Entry]:
        for note in self.root.glob("*/.*.size"):
            with contextlib.suppress(OSError, ValueError):
                facts = note.stat()
                folder = note.with_name(note.name.removeprefix(".").removesuffix(".size"))
                yield _Entry(folder, int(note.read_text()), facts.st_mtime)

    def _remove_torn(self) -> None:
        """What killed processes left half done."""
        for part in self.root.glob("*/.*.part"):
            with contextlib.suppress(OSError), part.with_suffix(".lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.remove(part)

    def _remove_unused(self, entry: _Entry) -> bool:
        """Remove it, unless it is in use."""
        if time.time() - entry.used_at < IN_USE_S:
            return False
        gone = entry.folder.with_name(f".{entry.folder.name}.gone")
        try:
            with contextlib.suppress(FileNotFoundError), _let_go(entry.folder):
                entry.folder.rename(gone)
            self.remove(gone)
            _note(entry.folder).unlink(missing_ok=True)
        except OSError:  # held, or on a file system that can't say
            return False
        return True

    def _free(self) -> int:
        """Bytes of its disk that may be taken."""
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize - max(FREE_BYTES, int(disk.f_blocks * disk.f_frsize * self.free_share))

    @contextlib.contextmanager
    def _lock(self, path: Path) -> Iterator[None]:
        try:
            file = path.open("w")
            while not _taken(file):
                self.alive()
                time.sleep(_LOOK_AGAIN_S)
        except OSError as error:
            raise Refused(f"the cache can't be locked, {path}: {error.strerror}") from None
        with file:
            yield


def _taken(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _let_go(folder: Path) -> Iterator[None]:
    """No worker has it meanwhile. Raises: OSError, where one has."""
    file = first_file(folder)
    if file is None:
        yield
        return
    mode = file.stat().st_mode
    file.chmod(mode | 0o200)  # network file systems lock against others only what may be written, and files only
    try:
        with file.open("r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        file.chmod(mode)
        raise


def first_file(folder: Path) -> Path | None:
    """The file that stands for the whole in locks; the supervisor finds the same (`stoker_worker.entry`)."""
    for below, folders, files in os.walk(folder):
        folders.sort()
        if files:
            return Path(below, min(files))
    return None


def _note(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.size")
