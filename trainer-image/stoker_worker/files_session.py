"""A job's files carried over a session: the api asks, one request after the other, for lists and pieces of files.

Owns the one file that is open. What may be listed and opened is `result_files`' business. Never touches the WebSocket
but by the `send` it is given. Called by the session's loop (`session`).

A request is a binary message of JSON, `{"list": folder, "limit": N}`, `{"open": path}` or `{"read": [start, end]}`; the
answer messages whose first byte is PIECE, then one whose first byte is END (`docs/worker-contract.md`, Sessions).
"""

from __future__ import annotations

import os

from .light_stdlib import parse_json, render_json
from .result_files import MOST_LISTED, NoSuchFile, ResultFiles

MYPY = False
if MYPY:
    from typing import Any, Callable

PIECE, END = range(2)
PIECE_BYTES = (1 << 16) - 1  # with the first byte: 64 KiB
MOST_WAITING = 8


class Files:
    def __init__(self, files: ResultFiles, send: Callable[[bytes], None]) -> None:
        self._files = files
        self._send = send
        self._waiting: list[bytes] = []
        self._fd = -1
        self._listed = b""
        """What is left of a list."""
        self._at = self._end = 0
        """What is left of a piece that is being read."""
        self._answering = False
        self._has_room = True
        self.done = False

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST_WAITING

    def message(self, data: bytes) -> None:
        self._waiting.append(data)

    def interests(self, room: bool) -> list[tuple[int, int]]:
        """A file can always be read: `due` has the loop come again at once, as long as there is room."""
        self._has_room = room
        return []

    def ready(self, fd: int, events: int) -> None:
        """Nothing is waited for."""

    def turn(self, now: float, room: Callable[[], bool]) -> None:
        while not self.done and room() and (self._answering or self._waiting):
            if not self._answering:
                self._begin(self._waiting.pop(0))
            else:
                self._go_on()

    def due(self) -> float | None:
        return 0.0 if self._has_room and (self._answering or self._waiting) else None

    def stop(self, now: float) -> None:
        """The worker ends: the api asks elsewhere, or again."""
        self.leave(now)

    def leave(self, now: float) -> None:
        self._close()
        self.done = True

    def _begin(self, request: bytes) -> None:
        try:
            self._answer(parse_json(request.decode("utf-8", "replace")))
        except NoSuchFile as error:
            self._finish({"error": str(error), "code": "NoFile"})
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = error.strerror if isinstance(error, OSError) else ""
            self._finish({"error": why or str(error) or type(error).__name__, "code": "Failed"})

    def _answer(self, request: Any) -> None:
        """Raises: NoSuchFile, OSError, ValueError, TypeError, KeyError."""
        if not isinstance(request, dict):
            raise ValueError("the request is no object")
        if "list" in request:
            found = self._files.listing(str(request["list"]), min(int(request["limit"]), MOST_LISTED))
            files = [[one.path, one.kind, one.size, one.modified_at] for one in found.files]
            document = {"files": files, "folder": found.folder, "truncated": found.truncated}
            self._listed = render_json(document).encode()
            self._answering = True
        elif "open" in request:
            self._close()
            self._fd, stat = self._files.open(str(request["open"]))
            self._finish({"size": stat.st_size, "mtimeNs": stat.st_mtime_ns, "inode": stat.st_ino})
        elif "read" in request:
            start, end = request["read"]
            if self._fd < 0 or not 0 <= int(start) <= int(end):
                raise ValueError("no file is open")
            self._at, self._end = int(start), int(end)
            self._answering = True
        else:
            raise ValueError("this worker knows no such request")

    def _go_on(self) -> None:
        if self._listed:
            piece, self._listed = self._listed[:PIECE_BYTES], self._listed[PIECE_BYTES:]
        elif self._at < self._end:
            try:
                piece = os.pread(self._fd, min(PIECE_BYTES, self._end - self._at), self._at)
            except OSError as error:
                self._finish({"error": error.strerror or str(error), "code": "Failed"})
                return
            self._at = self._at + len(piece) if piece else self._end
        else:
            piece = b""
        if piece:
            self._send(bytes((PIECE,)) + piece)
        else:
            self._finish({})

    def _finish(self, document: dict[str, Any]) -> None:
        self._answering = False
        self._send(bytes((END,)) + render_json(document).encode())

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
