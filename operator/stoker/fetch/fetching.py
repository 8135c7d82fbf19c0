"""One entry of a job's data: found in the cache, or fetched, checked, unpacked, made read-only, and kept there.

Called by `__main__`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from .archive import unpack
from .cache import Cache
from .errors import Refused, masked, says, transient
from .order import Item
from .source import Found, Source, version_of

PAUSES_S = (1.0, 5.0)
"""Between tries."""
_PART = 1 << 20
_AHEAD = 64 << 20


class Unavailable(Exception):
    """It could not be fetched; the text says which, and why."""


def fetch(item: Item, cache: Cache) -> Path:
    """The folder that workers are to see. Raises: Unavailable."""
    tries = 0
    while True:
        try:
            with cache.locked(item.entry):
                return cache.path(_fetched(item, cache))
        except Exception as error:  # noqa: BLE001 (what a store's client raises is its own)
            if tries == len(PAUSES_S) or not transient(error):
                after = f", after {tries + 1} tries" if tries else ""
                raise Unavailable(f"data {item.name}: {masked(item.url)}: {says(error)}{after}") from None
        time.sleep(PAUSES_S[tries])
        tries += 1


def _fetched(item: Item, cache: Cache) -> str:
    """The entry's name, once it is there."""
    if item.digest and cache.use(item.entry):
        return item.entry
    source = Source(item.url, item.file_name)
    found = source.look()
    entry = item.entry
    if not item.digest:
        entry += "." + (version_of(item.url, found) or secrets.token_hex(16))
    if item.digest or not cache.use(entry):
        _build(item, source, found, cache, entry)
    if not item.digest:
        cache.point(item.entry, entry)
    return entry


def _build(item: Item, source: Source, found: list[Found], cache: Cache, entry: str) -> None:
    part = cache.part(item.entry)
    try:
        room = _Room(cache)
        room.need(sum(one.size_bytes or 0 for one in found))
        for one in found:
            source.get(one, part, room.came)
        size = room.so_far
        if item.digest:
            _check(part / item.file_name, item.digest, cache.alive)
        if item.unpack:
            size = _unpack(part / item.file_name, part, room)
        _make_read_only(part)
        cache.keep(part, entry, size)
    finally:
        cache.remove(part)


def _unpack(file: Path, part: Path, room: _Room) -> int:
    """The archive's content in its place; both need room for a while. Returns: bytes."""
    archive = part / f".{secrets.token_hex(16)}"  # a name that none of its files has
    file.rename(archive)
    packed = room.so_far
    size = unpack(archive, part, lambda total: room.need(packed + total))
    archive.unlink()
    return size


class _Room:
    """Room for what comes, also where its size was not known before."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._has = 0
        self.so_far = 0

    def need(self, size_bytes: int) -> None:
        self._cache.alive()
        if size_bytes > self._has:
            self._cache.make_room(size_bytes)
            self._has = size_bytes

    def came(self, count: int) -> None:
        self.so_far += count
        ahead = min(2 * self.so_far + _AHEAD, self._cache.limit_bytes) if self.so_far > self._has else 0
        self.need(max(self.so_far, ahead))


def _check(file: Path, digest: str, alive: Callable[[], None]) -> None:
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(_PART):
            found.update(part)
            alive()
    if found.hexdigest() != digest:
        raise Refused(f"its SHA-256 is {found.hexdigest()}, not {digest}")


def _make_read_only(folder: Path) -> None:
    """For everyone to read: workers may run as another user."""
    for below, folders, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(below, name)
            if not path.is_symlink():
                path.chmod(0o444 | (path.stat().st_mode & 0o100 and 0o111))
        for name in folders:
            path = Path(below, name)
            if not path.is_symlink():
                path.chmod(0o555)
