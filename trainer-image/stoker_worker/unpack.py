"""A bundle of a user's code (`stoker.spec.code`) on its way from a stream into a folder. Trusts nothing it reads.

Owns the format and, once more, every rule of a manifest: what is written here lies within the folder, whatever made the
bundle. Knows no network. Called by `usercode`, on its thread.
"""

from __future__ import annotations

import hashlib
import os

from .light_stdlib import parse_json

MYPY = False
if MYPY:
    from typing import Any, Callable

    Read = Callable[[int], bytes]
    """Up to so many bytes; none: the end."""

MAX_FILES = 10_000
MAX_BYTES = 64 << 20
MAX_PATH = 1024
MAX_MANIFEST = 32 << 20
_PIECE = 1 << 17
_HEX = frozenset("0123456789abcdef")
_NAMES = frozenset(("path", "sha256", "size", "executable", "link"))


class Torn(Exception):
    """The stream ended early: worth another try."""


class Damaged(Exception):
    """The stream holds something else than its digests say."""


class Malformed(Exception):
    """The manifest is the one that was asked for, and breaks the rules: another try would bring the same."""


class CantKeep(Exception):
    """The disk does not take it; the text says why."""


class ManifestEntry:
    """One file or symbolic link of a manifest. Raises: Malformed."""

    __slots__ = ("executable", "link", "path", "sha256", "size")

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict) or not _NAMES.issuperset(data):
            raise Malformed("an entry is none of those that this worker knows: it may be older than the server")
        self.path = _text(data.get("path"))
        self.sha256: str | None = data.get("sha256")
        self.link: str | None = data.get("link")
        self.size: int = data.get("size", 0)
        self.executable: bool = data.get("executable", False)
        parts = self.path.split("/")
        if {"", ".", ".."} & set(parts):
            raise Malformed("%r is no path within the folder" % self.path)
        if type(self.size) is not int or not 0 <= self.size <= MAX_BYTES or type(self.executable) is not bool:
            raise Malformed("%r: its size or mode is none" % self.path)
        if (self.sha256 is None) == (self.link is None):
            raise Malformed("%r is neither a file nor a link" % self.path)
        if self.link is not None:
            if self.size or self.executable:
                raise Malformed("%r is a link and a file" % self.path)
            if not _stays_inside(len(parts) - 1, _text(self.link)):
                raise Malformed("%r: the link leads out of the folder" % self.path)
        elif not isinstance(self.sha256, str) or len(self.sha256) != 64 or not _HEX.issuperset(self.sha256):
            raise Malformed("%r has no SHA-256" % self.path)


def read_manifest(read: Read, digest: str) -> list[ManifestEntry]:
    """The entries, checked. Raises: Torn, Damaged, Malformed, and what `read` raises."""
    head = b""
    while not head.endswith(b"\n"):
        byte = read(1)
        if not byte:
            raise Torn("the bundle ended in its first line")
        head += byte
        if len(head) > 10 or not (byte.isdigit() or (byte == b"\n" and len(head) > 1)):
            raise Damaged("the answer is no bundle of code")
    size = int(head)
    if size > MAX_MANIFEST:
        raise Damaged("the bundle's manifest is said to have %d bytes" % size)
    manifest = b"".join(_pieces(read, size))
    if "sha256:" + hashlib.sha256(manifest).hexdigest() != digest:
        raise Damaged("the bundle that came is another one than %s" % digest)
    return check_manifest(manifest)


def check_manifest(manifest: bytes) -> list[ManifestEntry]:
    """Raises: Malformed."""
    try:
        document = parse_json(manifest.decode("utf-8"))
    except ValueError:
        raise Malformed("the manifest is no JSON") from None
    listed = document.get("files") if isinstance(document, dict) and len(document) == 1 else None
    if not isinstance(listed, list) or len(listed) > MAX_FILES:
        raise Malformed("the manifest is none that this worker knows, or names too many files")
    entries = [ManifestEntry(data) for data in listed]
    paths = [entry.path for entry in entries]
    known = set(paths)
    if paths != sorted(known):
        raise Malformed("the files are not sorted, or one is there twice")
    sizes: dict[str, int] = {}
    for entry in entries:
        above = entry.path
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in known:
                raise Malformed("%r lies below %r, which is no folder" % (entry.path, above))
        if entry.sha256 is not None and sizes.setdefault(entry.sha256, entry.size) != entry.size:
            raise Malformed("%r is said to have two sizes" % entry.path)
    if sum(entry.size for entry in entries) > MAX_BYTES:
        raise Malformed("the files hold more than %d bytes" % MAX_BYTES)
    return entries


def write_files(entries: list[ManifestEntry], read: Read, folder: str) -> None:
    """Fill `folder`, which must be there and empty. Raises: Torn, Damaged, CantKeep, and what `read` raises."""
    root = os.fsencode(folder)
    made = {root}
    first: dict[str, ManifestEntry] = {}
    for entry in entries:
        if entry.sha256 is None:
            continue
        path = _place(root, entry, made)
        earlier = first.setdefault(entry.sha256, entry)
        if earlier is entry:
            _write(path, entry, _checked(read, entry))
        else:  # a copy, not a second name: a change of one must not change the other
            _copy(_inside(root, earlier), path, entry)
    # Links last: while files are written no path leads through one.
    for entry in entries:
        if entry.link is not None:
            path = _place(root, entry, made)
            try:
                os.symlink(entry.link.encode(), path)
            except OSError as error:
                raise CantKeep(_why(error, entry)) from None


def _pieces(read: Read, size: int) -> Any:
    left = size
    while left:
        data = read(min(left, _PIECE))
        if not data:
            raise Torn("the bundle ended early")
        left -= len(data)
        yield data


def _checked(read: Read, entry: ManifestEntry) -> Any:
    """The file's bytes from the stream; at their end it is known whether they are right."""
    seen = hashlib.sha256()
    for data in _pieces(read, entry.size):
        seen.update(data)
        yield data
    if seen.hexdigest() != entry.sha256:
        raise Damaged("%r came with other bytes than the bundle names" % entry.path)


def _copy(source: bytes, path: bytes, entry: ManifestEntry) -> None:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise CantKeep(_why(error, entry)) from None
    try:
        _write(path, entry, _checked(lambda size: os.read(fd, size), entry))
    finally:
        os.close(fd)


def _write(path: bytes, entry: ManifestEntry, pieces: Any) -> None:
    fd = -1
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        for data in _guarded(pieces):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o755 if entry.executable else 0o644)
    except _FromStream as error:
        raise error.args[0] from None
    except OSError as error:
        raise CantKeep(_why(error, entry)) from None
    finally:
        if fd >= 0:
            os.close(fd)


class _FromStream(Exception):
    """What reading raised: a broken connection is an OSError too, and no fault of the disk's."""


def _guarded(pieces: Any) -> Any:
    try:
        for data in pieces:
            yield data
    except GeneratorExit:
        raise
    except Exception as error:  # noqa: BLE001 (handed on as it is, by `_write`)
        raise _FromStream(error) from None


def _place(root: bytes, entry: ManifestEntry, made: set[bytes]) -> bytes:
    """Where the entry goes, with the folders above it made."""
    path = _inside(root, entry)
    above = os.path.dirname(path)
    missing = []
    while above not in made:
        missing.append(above)
        above = os.path.dirname(above)
    try:
        for folder in reversed(missing):
            os.mkdir(folder, 0o700)
            os.chmod(folder, 0o755)
            made.add(folder)
    except OSError as error:
        raise CantKeep(_why(error, entry)) from None
    return path


def _inside(root: bytes, entry: ManifestEntry) -> bytes:
    return root + b"/" + entry.path.encode()


def _why(error: OSError, entry: ManifestEntry) -> str:
    return "%s can't be written: %s" % (entry.path, error.strerror or error)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATH:
        raise Malformed("a path is no text, empty or too long")
    if any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in value):
        raise Malformed("%a holds control characters" % value)
    return value


def _stays_inside(depth: int, link: str) -> bool:
    """Whether a link that lies `depth` folders deep points into the bundle: every `..` stands at its beginning."""
    parts = link.split("/")
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    below = parts[up:]
    return up <= depth and bool(below) and not {"", ".", ".."} & set(below)
