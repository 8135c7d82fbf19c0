"""A folder made ready to be shipped: its manifest and where the bytes are. Called by `Client.ship` and the commands."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stoker.client.errors import BadInput
from stoker.spec.code import CodeFile, CodeManifest

from .folder import FoundFile, SkippedPath, scan
from .hashes import Hashes


@dataclass(frozen=True)
class Bundle:
    """The manifest of a folder, its digest, for each content the first file that has it, and what stays behind."""

    folder: str
    manifest: CodeManifest
    digest: str
    skipped: tuple[SkippedPath, ...] = ()

    @cached_property
    def by_hash(self) -> dict[str, CodeFile]:
        found: dict[str, CodeFile] = {}
        for file in self.manifest.files:
            if file.sha256 is not None:
                found.setdefault(file.sha256, file)
        return found

    @cached_property
    def by_path(self) -> dict[str, CodeFile]:
        return {file.path: file for file in self.manifest.files}


def read_folder(folder: str | os.PathLike[str]) -> Bundle:
    """The folder as it is now; the same files give the same digest on every machine. Raises: BadInput.

    Only content, names, links and who-may-execute count; file times, owners and empty folders don't.
    """
    path = Path(folder).expanduser()
    try:
        path = path.resolve(strict=True)
    except OSError as error:
        raise BadInput(f"can't ship the folder {folder}: {error.strerror}") from None
    if not path.is_dir():
        raise BadInput(f"can't ship {folder}: it is not a folder; name the one that holds it")
    found = scan(str(path))
    hashes = Hashes(str(path))
    manifest = CodeManifest(files=tuple(_entry(file, hashes) for file in found.files))
    hashes.save()
    return Bundle(str(path), manifest, manifest.digest(), tuple(found.skipped))


def _entry(found: FoundFile, hashes: Hashes) -> CodeFile:
    if found.link is not None:
        return CodeFile(path=found.path, link=found.link)
    return CodeFile(
        path=found.path,
        sha256=hashes.of(found.path, found.stat),
        size=found.stat.st_size,
        executable=bool(found.stat.st_mode & stat.S_IXUSR),
    )
