"""One project's code on disk: files by their SHA-256, bundles (manifests) by their digest. Blocking; for many threads.

    <project>/files/ab/<sha256>    a file's bytes; its time: when a client last sent it or learned that it is here
    <project>/bundles/<hex>.json   a manifest, all of whose files were here; its time: its last use
    <project>/partial/             on their way; what an earlier process left there is removed at the start

Everything is written there, synced and renamed, so that a name never stands for half a file. Owns what is held and
what is removed. Never asks who may do what. Called by `store.py` and `upload.py`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from stoker.spec.code import CodeManifest
from stoker.store.clock import Clock
from stoker_api.code.quota import LEASE_S, CodeFull, CodeQuota
from stoker_api.disk import FULL, sync

from .bundle import StoredBundle, name_of, path_of, pieces

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Stored:
    created: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """What a manifest names and is not here: sorted, each once."""

    sha256s: tuple[str, ...]


class WrongSize(Exception):
    """The file at `index` of the manifest is of another size than its SHA-256 says."""

    def __init__(self, index: int, size: int) -> None:
        super().__init__(f"the file with this SHA-256 has {size} bytes")
        self.index = index


class ProjectCode:
    def __init__(self, folder: Path, room: CodeQuota, clock: Clock) -> None:
        """Reads the folder, and makes it if need be. Raises: OSError."""
        self.files, self._bundles, self._partial = folder / "files", folder / "bundles", folder / "partial"
        self._room, self._clock = room, clock
        self._lock = threading.Lock()
        """Held where something is found to be here, put in place or removed: so none of it gets between."""
        self._touched: set[str] | None = None
        """While a sweep runs: what was used since it began."""
        self._unsynced: set[Path] = set()
        """Folders whose newest renames a power cut could undo."""
        self._read: WeakValueDictionary[str, StoredBundle] = WeakValueDictionary()
        """Bundles in use, by digest: their contents never change."""
        self._sweeping = threading.Lock()
        for path in (self.files, self._bundles, self._partial):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._partial.iterdir():
            leftover.unlink()
        for entry in self._all_files():
            room.count(entry.stat().st_size)
        self._known = {_digest_of(path): path.stat().st_size for path in self._bundles.glob("*" + _SUFFIX)}
        """Digest → size of the manifest."""
        for size in self._known.values():
            room.count(size)

    @property
    def bundles(self) -> int:
        return len(self._known)

    # Files.

    def has_file(self, sha256: str) -> bool:
        """Whether it is here; from now on it is safe for `LEASE_S`."""
        with self._lock:
            return self._touch(path_of(self.files, sha256), sha256)

    def new_partial(self) -> Path:
        return self._partial / secrets.token_hex(16)

    def place_file(self, partial: Path, sha256: str, size: int) -> bool:
        """Put a file in place that was written and synced, room taken; False: a twin was faster. Raises: OSError."""
        path = path_of(self.files, sha256)
        with self._lock:
            if self._touch(path, sha256):
                partial.unlink()
                self._room.give(size)
                return False
            if not path.parent.exists():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                self._unsynced.add(self.files)
            self._set_time(partial, sha256)
            partial.rename(path)
            self._unsynced.add(path.parent)
            return True

    # Bundles.

    def put(self, digest: str, manifest: CodeManifest) -> Stored | Missing:
        """Store the bundle if all its files are here; those that are stay for `LEASE_S` at least.

        Raises: WrongSize, CodeFull, OSError.
        """
        wanted = {file.sha256: index for index, file in reversed(list(enumerate(manifest.files))) if file.sha256}
        with self._lock:
            missing = []
            for sha256, index in wanted.items():
                path = path_of(self.files, sha256)
                if not self._touch(path, sha256):
                    missing.append(sha256)
                elif (size := path.stat().st_size) != manifest.files[index].size:
                    raise WrongSize(index, size)
            if missing:
                return Missing(tuple(sorted(missing)))
            if digest in self._known and self._touch(self._path(digest), digest):
                return Stored(created=False)
            self._write(digest, manifest.canonical(), {path_of(self.files, sha256).parent for sha256 in wanted})
            return Stored(created=True)

    def find(self, digest: str) -> StoredBundle | None:
        """The bundle if it and all its files are here; that is a use of it. Raises: OSError."""
        path = self._path(digest)
        with self._lock:
            if digest not in self._known or not self._touch(path, digest):
                return None
        try:
            bundle = self._read.get(digest) or StoredBundle.read(digest, path.read_bytes())
            self._read[digest] = bundle
            root = os.fspath(self.files)
            whole = all(os.stat(name_of(root, one.sha256)).st_size == one.size for one in bundle.contents)  # noqa: PTH116
        except FileNotFoundError:  # a damaged disk: sending it again repairs it
            return None
        return bundle if whole else None

    def pieces(self, bundle: StoredBundle) -> Iterator[bytes]:
        """As `bundle.pieces`."""
        return pieces(bundle, self.files)

    # Garbage.

    def sweep(self, named: Set[str], keep_s: float) -> Iterator[int]:
        """Remove what is `unused`, `named` being the digests that jobs name; each step's bytes. Raises: OSError.

        Others go on between the steps. What they use from the beginning of this on is in `_touched` and stays, as does
        what bundles name that are here once the stale ones are gone.
        """
        with self._sweeping:
            with self._lock:
                self._touched = set()
            try:
                yield 0
                now_s = self._clock.now().timestamp()
                used_at = {digest: _time(self._path(digest)) for digest in list(self._known)}
                for digest in unused(used_at, named, now_s, max(keep_s, LEASE_S)):
                    yield self._remove_bundle(digest)
                named_at = {entry.name: entry.stat().st_mtime for entry in self._all_files()}
                for sha256 in unused(named_at, self._named_files(), now_s, LEASE_S):
                    yield self._remove_file(sha256)
            finally:
                self._touched = None

    def _remove_bundle(self, digest: str) -> int:
        with self._lock:
            if self._touched is None or digest in self._touched:
                return 0
            self._path(digest).unlink(missing_ok=True)
            size = self._known.pop(digest)
        self._room.give(size)
        return size

    def _remove_file(self, sha256: str) -> int:
        path = path_of(self.files, sha256)
        with self._lock:
            if self._touched is None or sha256 in self._touched:
                return 0
            size = path.stat().st_size
            path.unlink()
        self._room.give(size)
        return size

    def _named_files(self) -> set[str]:
        found: set[str] = set()
        for digest in list(self._known):
            with contextlib.suppress(FileNotFoundError):
                bundle = StoredBundle.read(digest, self._path(digest).read_bytes())
                found.update(one.sha256 for one in bundle.contents)
        return found

    # Called with the lock held.

    def _touch(self, path: Path, name: str) -> bool:
        try:
            self._set_time(path, name)
        except FileNotFoundError:
            return False
        return True

    def _set_time(self, path: Path, name: str) -> None:
        now_s = self._clock.now().timestamp()
        os.utime(path, (now_s, now_s))
        if self._touched is not None:
            self._touched.add(name)

    def _write(self, digest: str, data: bytes, folders: Set[Path]) -> None:
        """A bundle lasts only if its files do: their folders first."""
        self._room.take(len(data))
        partial = self.new_partial()
        try:
            for folder in self._unsynced & {*folders, self.files}:
                sync(folder)
            self._unsynced -= {*folders, self.files}
            partial.write_bytes(data)
            sync(partial)
            self._set_time(partial, digest)
            partial.rename(self._path(digest))
        except OSError as error:
            self._room.give(len(data))
            partial.unlink(missing_ok=True)
            if error.errno in FULL:
                raise CodeFull(f"the server's disk takes no more: {error.strerror}") from None
            raise
        self._room.give(self._known.get(digest, 0))
        self._known[digest] = len(data)
        sync(self._bundles)

    # Names.

    def _path(self, digest: str) -> Path:
        return self._bundles / (digest.removeprefix("sha256:") + _SUFFIX)

    def _all_files(self) -> Iterator[os.DirEntry[str]]:
        for folder in os.scandir(self.files):
            yield from os.scandir(folder)


def _digest_of(path: Path) -> str:
    return "sha256:" + path.name.removesuffix(_SUFFIX)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # removed by hand: long unused
        return 0.0


def unused(used_at: Mapping[str, float], named: Collection[str], now_s: float, keep_s: float) -> list[str]:
    """Of bundles (digest → last use) or files (SHA-256 → when a client last sent or named it) those that are not
    `named`, by a job or a bundle, and were not used for `keep_s`."""
    return [one for one, used_s in used_at.items() if one not in named and used_s <= now_s - keep_s]
