"""Sending a bundle: only what the server lacks, in packs, each repeated until it is answered.

Owns the order of the calls (docs/code.md, "Protocol") and the packs' form. A file that is no longer what its manifest
says is noticed before the last of its bytes is sent. Called by `calls.py`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stoker.client.errors import ApiError, StokerError
from stoker.client.wire import Wire
from stoker.spec.code import PACK_TYPE, CodeFile

from .bundle import Bundle
from .hashes import changed

PACK_BYTES = 4 << 20
"""Of content in one pack; a file that is larger has one of its own."""
PACK_FILES = 1000
ROUNDS = 3
"""A server may lose files between two calls (it cleans up); more often than this is a fault of its."""
_PART = 256 << 10
INCOMPLETE = "CodeIncomplete"

Progress = Callable[[int, int], object]
"""Called with content sent so far and to send in all; units: bytes. A repeat starts the pack's count anew."""


class Pack:
    """Some files as one request body. Each iteration reads the files anew, so that a lost request can be repeated."""

    def __init__(self, folder: str, files: list[CodeFile], moved: Callable[[int], object]) -> None:
        self.content_bytes = sum(file.size for file in files)
        self.sent_bytes = 0
        self._folder = folder
        self._files = files
        self._moved = moved

    def __iter__(self) -> Iterator[bytes]:
        gzip = zlib.compressobj(wbits=31)
        read = 0
        for part in self._plain():
            read += len(part)
            yield from self._out(gzip.compress(part))
            self._moved(min(read, self.content_bytes))
        yield from self._out(gzip.flush())

    def _out(self, data: bytes) -> Iterator[bytes]:
        if data:
            self.sent_bytes += len(data)
            yield data

    def _plain(self) -> Iterator[bytes]:
        for file in self._files:
            yield b"%s %d\n" % ((file.sha256 or "").encode(), file.size)
            yield from self._content(file)

    def _content(self, file: CodeFile) -> Iterator[bytes]:
        """The file's bytes; the last part is kept back until the whole is known to be what the manifest says."""
        digest, left, held = hashlib.sha256(), file.size, b""
        try:
            with Path(self._folder, file.path).open("rb", buffering=0) as source:
                while part := source.read(_PART):
                    digest.update(part)
                    left -= len(part)
                    if left < 0:
                        raise changed(file.path)
                    yield held
                    held = part
        except OSError:
            raise changed(file.path) from None
        if left or digest.hexdigest() != file.sha256:
            raise changed(file.path)
        yield held


def send(wire: Wire, route: str, bundle: Bundle, progress: Progress | None = None) -> int:
    """Make the server hold the bundle; how many bytes that took, manifest included. 0: it held it already.

    Raises: ApiError, Unreachable; BadInput when a file changes meanwhile.
    """
    path = f"{route}/{bundle.digest}"
    if _is_there(wire, path):
        return 0
    manifest = bundle.manifest.canonical()
    sent = 0
    for _ in range(ROUNDS):
        sent += len(manifest)
        missing = _offer(wire, path, manifest)
        if missing is None:
            return sent
        lacking = set(missing)
        files = [file for name, file in bundle.by_hash.items() if name in lacking]
        sent += _send_files(wire, route, bundle, files, progress)
    raise StokerError(f"{wire.endpoint.url} asks for files again that it was sent; its log may say why")


def _is_there(wire: Wire, path: str) -> bool:
    try:
        wire.call("GET", path)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def _offer(wire: Wire, path: str, manifest: bytes) -> list[str] | None:
    """The hashes of what the server lacks; None: it has all, and keeps the bundle."""
    try:
        wire.call("PUT", path, content=manifest, headers={"Content-Type": "application/json"})
    except ApiError as error:
        if error.code == INCOMPLETE:
            return [name for name in _listed(error.more.get("missing")) if isinstance(name, str)]
        if error.status == 405 or (error.status == 404 and "There is nothing at" in error.detail):
            raise ApiError(
                error.status,
                error.code,
                f"{wire.endpoint.url} takes no code: its Stoker is older than this client. Upgrade it, or run with "
                "--no-code what the workers have already",
            ) from None
        raise
    return None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _send_files(wire: Wire, route: str, bundle: Bundle, files: list[CodeFile], progress: Progress | None) -> int:
    """Send the files in packs; how many bytes went out, repeats included."""
    total, before, sent = sum(file.size for file in files), 0, 0
    for group in packed(files):

        def moved(count: int, before: int = before) -> None:
            if progress is not None:
                progress(before + count, total)

        pack = Pack(bundle.folder, group, moved)
        wire.call(
            "POST", f"{route}/files", content=pack, headers={"Content-Type": PACK_TYPE, "Content-Encoding": "gzip"}
        )
        before += pack.content_bytes
        sent += pack.sent_bytes
    return sent


def packed(files: Iterable[CodeFile]) -> Iterator[list[CodeFile]]:
    """The files in groups of at most PACK_BYTES and PACK_FILES; each group holds at least one."""
    group: list[CodeFile] = []
    size = 0
    for file in files:
        if group and (size + file.size > PACK_BYTES or len(group) >= PACK_FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield group
