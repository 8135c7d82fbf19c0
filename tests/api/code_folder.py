"""A folder of code as a client and a worker see it: its manifest, packs of its files, and a bundle read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stoker.spec.code import CodeFile, CodeManifest


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pack(contents: Iterable[bytes]) -> bytes:
    return b"".join(b"%s %d\n%s" % (sha(data).encode(), len(data), data) for data in contents)


@dataclass(frozen=True)
class Folder:
    files: Mapping[str, bytes]

    @property
    def manifest(self) -> CodeManifest:
        return CodeManifest(
            files=tuple(
                CodeFile(path=path, sha256=sha(data), size=len(data)) for path, data in sorted(self.files.items())
            )
        )

    @property
    def digest(self) -> str:
        return self.manifest.digest()

    @property
    def missing(self) -> list[str]:
        """All of it, as a server that has none of it says."""
        return sorted({sha(data) for data in self.files.values()})

    def pack(self, wanted: Iterable[str] | None = None) -> bytes:
        names = self.missing if wanted is None else wanted
        by_sha = {sha(data): data for data in self.files.values()}
        return pack(by_sha[name] for name in names)


def unpack(stream: bytes) -> tuple[str, dict[str, bytes]]:
    """The digest and the files of a bundle, as a worker reads it."""
    size, _, rest = stream.partition(b"\n")
    raw, rest = rest[: int(size)], rest[int(size) :]
    known: dict[str, bytes] = {}
    files = {}
    for file in json.loads(raw)["files"]:
        if file["sha256"] not in known:
            length = file.get("size", 0)
            known[file["sha256"]], rest = rest[:length], rest[length:]
        assert sha(known[file["sha256"]]) == file["sha256"]
        files[file["path"]] = known[file["sha256"]]
    assert rest == b""
    return "sha256:" + sha(raw), files
