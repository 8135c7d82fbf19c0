"""SHA-256 of files, remembered from the last time so that a large folder is not read again to find nothing changed.

Owns the memory: one file per shipped folder under $XDG_CACHE_HOME/stoker/code. It is a cache and nothing more: gone,
torn or of another version it is made anew, and where it can't be written that is no error. A hash is remembered only
for a file that was left alone for a while before it was read: one that is written at that very moment may change once
more without showing it (git calls such entries racily clean). Called by `bundle.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stoker.client.errors import BadInput

RACY_NS = 2_000_000_000
"""Longer than the coarsest file time there is (FAT's two seconds)."""
_FORGET_AFTER_S = 60 * 86_400
_PART = 1 << 20
_Facts = tuple[int, int, int, int]


class Hashes:
    """The hashes of one folder's files. `save` writes what was learned."""

    def __init__(self, folder: str, *, clock: Callable[[], int] = time.time_ns):
        self._folder = folder
        self._clock = clock
        cache = _cache_folder()
        name = f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"
        self._file = cache / name if cache is not None else None
        self._known: dict[str, tuple[_Facts, str]] = _load(self._file)
        self._now: dict[str, tuple[_Facts, str]] = {}
        self.read_bytes = 0  # what was not remembered

    def of(self, path: str, found: os.stat_result) -> str:
        """The SHA-256 of the file at `path` within the folder. Raises: BadInput."""
        facts = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        known = self._known.get(path)
        if known is not None and known[0] == facts:
            self._now[path] = known
            return known[1]
        began_ns = self._clock()
        digest, size = _hash(f"{self._folder}/{path}")
        if size != found.st_size:
            raise changed(path)
        self.read_bytes += size
        if max(found.st_mtime_ns, found.st_ctime_ns) + RACY_NS < began_ns:
            self._now[path] = (facts, digest)
        return digest

    def save(self) -> None:
        if self._file is None or self._now == self._known:
            return
        text = json.dumps({path: [*facts, digest] for path, (facts, digest) in self._now.items()}).encode()
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number, temporary = tempfile.mkstemp(dir=self._file.parent)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
                Path(temporary).replace(self._file)
            except OSError:
                Path(temporary).unlink()
                raise
            _forget(self._file.parent, self._clock() / 1e9 - _FORGET_AFTER_S)


def changed(path: str) -> BadInput:
    return BadInput(
        f"{path} changed while it was sent; try again. If it is written all the time (a log?), leave it out by a line "
        "in .stokerignore"
    )


def _hash(path: str) -> tuple[str, int]:
    """SHA-256 and size of what is in a file, read in parts."""
    digest, size = hashlib.sha256(), 0
    try:
        with Path(path).open("rb", buffering=0) as file:
            while part := file.read(_PART):
                digest.update(part)
                size += len(part)
    except FileNotFoundError:
        raise changed(path) from None
    except OSError as error:
        raise BadInput(
            f"can't read {path}: {error.strerror}; make it readable, or leave it out by a line in .stokerignore"
        ) from None
    return digest.hexdigest(), size


def _cache_folder() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return base / "stoker" / "code"


def _load(file: Path | None) -> dict[str, tuple[_Facts, str]]:
    if file is None:
        return {}
    try:
        checksum, _, text = file.read_bytes().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != checksum:
            return {}
        return {path: ((mtime, ctime, size, inode), digest)
                for path, (mtime, ctime, size, inode, digest) in json.loads(text).items()}  # fmt: skip
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _forget(folder: Path, before: float) -> None:
    """Remove what was not written for long; a folder's memory is written whenever the folder changed."""
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < before:
                file.unlink()
