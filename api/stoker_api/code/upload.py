"""One pack on its way from a request into a project's files.

Owns the files at hand: written to `partial/`, synced a batch at a time, put in place. What came whole stays, whatever
becomes of the rest: the client asks again what is missing. Called by `routes/code.py` by way of `store.py`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from stoker_api.code.quota import CodeFull, CodeQuota
from stoker_api.disk import FULL, sync

from .pack import Inflater, PackReader
from .project import ProjectCode

_BATCH = 32
"""Files synced at once: one after the other a disk that needs 1 ms for each would take 10 s for 10,000 of them."""


@dataclass(slots=True)
class PackCounts:
    """Units: files, bytes."""

    stored: int = 0
    known: int = 0
    bytes_stored: int = 0


class _Partial(NamedTuple):
    path: Path
    sha256: str
    size: int


class Files:
    """The `Sink`: files of one pack. Blocking."""

    def __init__(self, project: ProjectCode, room: CodeQuota, syncing: Executor) -> None:
        self._project, self._room, self._syncing = project, room, syncing
        self._now: _Partial | None = None
        """The one being written; None while one is skipped that is here already."""
        self._file: FileIO | None = None
        self._written: list[_Partial] = []
        self.taken = PackCounts()

    def begin(self, sha256: str, size: int) -> None:
        """Raises: CodeFull, OSError."""
        if self._project.has_file(sha256):
            self.taken.known += 1
            return
        self._room.take(size)
        self._now = _Partial(self._project.new_partial(), sha256, size)
        self._file = FileIO(self._now.path, "xb")

    def write(self, data: memoryview) -> None:
        if self._file is not None:
            while len(data):
                data = data[self._file.write(data) :]

    def end(self) -> None:
        if self._now is None or self._file is None:
            return
        self._file.close()
        self._written.append(self._now)
        self._now = self._file = None
        if len(self._written) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Put in place what was written. Raises: OSError."""
        list(self._syncing.map(sync, [one.path for one in self._written]))
        while self._written:
            one = self._written[-1]
            if self._project.place_file(one.path, one.sha256, one.size):
                self.taken.stored += 1
                self.taken.bytes_stored += one.size
            else:
                self.taken.known += 1
            self._written.pop()

    def discard(self) -> None:
        """Remove what is not in place."""
        if self._file is not None:
            self._file.close()
        for one in (*self._written, *([] if self._now is None else [self._now])):
            one.path.unlink(missing_ok=True)
            self._room.give(one.size)
        self._written.clear()
        self._now = self._file = None


class Upload:
    """Blocking, and for threads: a request that was cut off may end while a thread still works for it."""

    def __init__(self, files: Files, *, gzip: bool) -> None:
        self._files, self._reader = files, PackReader(files)
        self._inflater = Inflater() if gzip else None
        self._lock = threading.Lock()
        self._over = False

    def feed(self, data: bytes) -> None:
        """Raises: BadPack, CodeFull, OSError. Nothing may be fed after that."""
        self._guarded(lambda: self._feed(data))

    def finish(self) -> PackCounts:
        """The pack is over; all of it is in place. Raises: as `feed`."""
        self._guarded(self._finish)
        return self._files.taken

    def close(self) -> None:
        """Forget what is unfinished; what came whole is put in place if the disk takes it. Raises: OSError."""
        with self._lock:
            self._over = True
            with contextlib.suppress(OSError):
                self._files.flush()
            self._files.discard()

    def _feed(self, data: bytes) -> None:
        if self._inflater is None:
            self._reader.feed(data)
        else:
            for piece in self._inflater.feed(data):
                self._reader.feed(piece)

    def _finish(self) -> None:
        if self._inflater is not None:
            self._inflater.finish()
        self._reader.finish()
        self._files.flush()

    def _guarded(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._over:
                return
            try:
                work()
            except OSError as error:
                if error.errno in FULL:
                    raise CodeFull(f"the server's disk takes no more: {error.strerror}") from None
                raise
