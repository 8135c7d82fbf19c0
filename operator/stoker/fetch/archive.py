"""What is in an archive, put into a folder: nothing outside it, no links, no devices, no more than there is room for.

Called by `fetching`.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from .errors import Refused

MOST_FILES = 1_000_000
_PART = 1 << 20


def unpack(archive: Path, into: Path, room_for: Callable[[int], None]) -> int:
    """The bytes of its files. `room_for` is asked with the sum so far, before each. Raises: Refused.

    Only files and folders are made, by our own hand, so nothing in the archive can lead a later part of it elsewhere.
    """
    total = 0
    try:
        for number, member in enumerate(_zip(archive) if zipfile.is_zipfile(archive) else _tar(archive)):
            if number >= MOST_FILES:
                raise Refused(f"the archive holds over {MOST_FILES} files")
            total += member.size_bytes
            room_for(total)
            _write(member, into)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise Refused(f"the archive can't be unpacked: {error}"[:300]) from None
    return total


@dataclass(frozen=True)
class _Member:
    path: str
    size_bytes: int = 0
    executable: bool = False
    content: IO[bytes] | None = None
    """None: a folder."""


def _tar(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, "r:*") as opened:
        for member in opened:
            if member.isdir():
                yield _Member(member.name)
            elif member.isreg():
                yield _Member(member.name, member.size, bool(member.mode & 0o100), opened.extractfile(member))
            else:
                raise Refused(f"the archive holds a link or device, which is not unpacked: {member.name[:100]!a}")
            opened.members = []  # type: ignore[attr-defined]  # else all of them are kept


def _zip(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                raise Refused(f"the archive holds a link, which is not unpacked: {member.filename[:100]!a}")
            if member.is_dir():
                yield _Member(member.filename)
            else:
                with opened.open(member) as content:  # gives no more than file_size
                    yield _Member(member.filename, member.file_size, bool(mode & 0o100), content)


def _write(member: _Member, into: Path) -> None:
    path = PurePosixPath(member.path)
    if path.is_absolute() or ".." in path.parts or "\0" in member.path:
        raise Refused(f"the archive names a path outside of it: {member.path[:100]!a}")
    target = into / path
    try:
        if member.content is None:
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            shutil.copyfileobj(member.content, file, _PART)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Refused(f"the archive names a path twice: {member.path[:100]!a} ({error.strerror})") from None
    if member.executable:
        target.chmod(0o755)
