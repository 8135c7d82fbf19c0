"""Reads a pack as it comes in: `<sha256> <size>\\n<bytes>` for each file, in pieces of any length, gzipped or not.

Owns the format and its limits, and checks each file's SHA-256. Holds no file: bytes go to a `Sink` as they come. Pure.
Called by `upload.py`.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import Protocol

from stoker.spec.code import MAX_BYTES, MAX_FILES

MAX_HEADER = 64 + 1 + len(str(MAX_BYTES)) + 1
"""The longest head of a record, with its line feed."""
MAX_PACK = MAX_BYTES + MAX_FILES * MAX_HEADER
_HEADER = re.compile(rb"([0-9a-f]{64}) (0|[1-9][0-9]*)")
_GZIP = 31  # zlib's word for: a gzip header and trailer, and nothing else
_PIECE = 256 << 10


class BadPack(Exception):
    """The text says where it is wrong and what to do."""


class Sink(Protocol):
    """Where the files go; `end` is called once all of a file's bytes came and its SHA-256 was right."""

    def begin(self, sha256: str, size: int) -> None: ...
    def write(self, data: memoryview) -> None: ...
    def end(self) -> None: ...


class PackReader:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._head = bytearray()
        self._record = 0
        """How many records have begun."""
        self._sha256 = ""
        self._hash = hashlib.sha256()
        self._left: int | None = None
        """Bytes that the record at hand still lacks; None: a head is next."""
        self._content = 0

    def feed(self, data: bytes) -> None:
        """Raises: BadPack, and what the sink raises. Nothing may be fed after that."""
        view = memoryview(data)
        while len(view):
            if self._left is None:
                view = self._read_head(view)
            else:
                piece = view[: self._left]
                self._hash.update(piece)
                self._sink.write(piece)
                self._left -= len(piece)
                view = view[len(piece) :]
                self._end_if_whole()

    def finish(self) -> None:
        """The pack is over. Raises: BadPack if it stopped within a record."""
        if self._left is not None:
            raise BadPack(f"{self._where()}: the pack ends {self._left} bytes short of its size; send the file whole")
        if self._head:
            raise BadPack(f"record {self._record + 1}: the pack ends within its head; send it whole")

    def _read_head(self, view: memoryview) -> memoryview:
        piece = bytes(view[: MAX_HEADER - len(self._head)])
        cut = piece.find(b"\n")
        self._head += piece if cut < 0 else piece[:cut]
        if cut >= 0:
            self._begin(bytes(self._head))
            self._head.clear()
            return view[cut + 1 :]
        if len(self._head) >= MAX_HEADER:
            self._begin(bytes(self._head))  # longer than any: refused
        return view[len(piece) :]

    def _begin(self, head: bytes) -> None:
        self._record += 1
        match = _HEADER.fullmatch(head)
        if match is None:
            raise BadPack(
                f"record {self._record} begins with {head[:80]!r}; it must begin with the SHA-256 in lower-case hex, a "
                "blank, the size in decimal and a line feed"
            )
        size = int(match[2])
        if self._record > MAX_FILES:
            raise BadPack(f"a pack may hold {MAX_FILES} files; send the rest in another")
        if self._content + size > MAX_BYTES:
            raise BadPack(f"record {self._record}: a pack may hold {MAX_BYTES} bytes; send the rest in another")
        self._content += size
        self._sha256, self._hash, self._left = match[1].decode(), hashlib.sha256(), size
        self._sink.begin(self._sha256, size)
        self._end_if_whole()

    def _end_if_whole(self) -> None:
        if self._left == 0:
            self._left = None
            if self._hash.hexdigest() != self._sha256:
                raise BadPack(
                    f"{self._where()}: its bytes have another SHA-256, {self._hash.hexdigest()}; the file changed "
                    "while it was read, make a new manifest"
                )
            self._sink.end()

    def _where(self) -> str:
        return f"record {self._record} ({self._sha256[:12]}…)"


class Inflater:
    """Undoes gzip in pieces of bounded length, so that a bomb is met by the pack's limits piece by piece."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_GZIP)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises: BadPack."""
        while data:
            if self._zlib.eof:
                raise BadPack("bytes follow the end of the gzip stream; send one stream")
            try:
                piece = self._zlib.decompress(data, _PIECE)
            except zlib.error as error:
                raise BadPack(
                    f"the body is no gzip stream ({error}); leave Content-Encoding out or compress it"
                ) from None
            data = self._zlib.unconsumed_tail or self._zlib.unused_data
            if piece:
                yield piece

    def finish(self) -> None:
        """Raises: BadPack if the stream was cut off."""
        if not self._zlib.eof:
            raise BadPack("the gzip stream ends early; send it whole")
