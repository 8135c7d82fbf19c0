"""A stored bundle on its way to a worker (`BUNDLE_TYPE`): its manifest, then each distinct file, a piece at a time.

Owns the form in which it is sent. Never holds more of it than a piece. Called by `project.py` (making) and
`routes/code.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Content:
    """A distinct file's bytes. Units: bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StoredBundle:
    """As heavy as its manifest: the workers of a gang share one. `contents`: in the order of their first naming."""

    digest: str
    manifest: bytes
    files: int
    """Entries of the manifest, links among them."""
    size: int
    """Bytes of all files of the manifest; the same content twice counts twice."""
    contents: tuple[Content, ...]

    @classmethod
    def read(cls, digest: str, manifest: bytes) -> StoredBundle:
        """From a manifest that was checked when it was stored."""
        listed = json.loads(manifest)["files"]
        sizes = {file["sha256"]: file.get("size", 0) for file in listed if "sha256" in file}
        return cls(
            digest,
            manifest,
            len(listed),
            sum(file.get("size", 0) for file in listed),
            tuple(Content(sha256, size) for sha256, size in sizes.items()),
        )

    @property
    def length(self) -> int:
        """Units: bytes on the wire."""
        return len(_head(self)) + len(self.manifest) + sum(content.size for content in self.contents)


def pieces(bundle: StoredBundle, files: Path) -> Iterator[bytes]:
    """What is sent, blocking, in pieces of about `PIECE_BYTES`: small files together, large ones apart.

    Raises: OSError, EOFError if a file is gone or shorter than it was.
    """
    root, held = os.fspath(files), bytearray(_head(bundle))
    for at in range(0, len(bundle.manifest), PIECE_BYTES):
        held += bundle.manifest[at : at + PIECE_BYTES]
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    for content in bundle.contents:
        left = content.size
        fd = os.open(name_of(root, content.sha256), os.O_RDONLY | os.O_CLOEXEC)
        try:
            while left:
                if len(held) >= PIECE_BYTES:
                    yield bytes(held)
                    held.clear()
                data = os.read(fd, min(left, PIECE_BYTES))
                if not data:
                    raise EOFError(f"{content.sha256} is {left} bytes short")
                held += data
                left -= len(data)
        finally:
            os.close(fd)
    if held:
        yield bytes(held)


def _head(bundle: StoredBundle) -> bytes:
    return b"%d\n" % len(bundle.manifest)


def name_of(files: str, sha256: str) -> str:
    """Where a file of this content lies, within the folder `files`. (A Path would cost more than the system call.)"""
    return f"{files}/{sha256[:2]}/{sha256}"


def path_of(files: Path, sha256: str) -> Path:
    return Path(name_of(os.fspath(files), sha256))
