"""The supervisor's own stdout as a second place for the log, so that `kubectl logs` shows it. Never slows the ranks.

Owns the descriptor's non-blocking mode and a bounded buffer. What stdout does not take in time is left out there and
only there; it goes on at the start of a line. Called by `spool` with every byte of the log, and by the loop when it can
go on.
"""

from __future__ import annotations

import os
import stat

_BUFFER_BYTES = 8 << 20
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


class Mirror:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._skipping = False
        self._closed = False
        self.trouble = ""
        """The first reason why stdout is not complete; '': it is."""
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode):
                return  # a file takes everything; its mode may be shared with others
            os.set_blocking(fd, False)
            if stat.S_ISFIFO(mode):
                _widen(fd)
        except OSError:
            self._closed = True  # there is no stdout

    @property
    def waiting(self) -> bool:
        """Whether something is to be written once stdout takes it."""
        return self._waiting_bytes > 0

    def write(self, data: bytes | memoryview) -> None:
        """Write, or keep for later, or leave out."""
        if self._closed:
            return
        if self._skipping:
            if self._waiting_bytes:
                return
            cut = bytes(data).find(b"\n") + 1
            if not cut:
                return
            data = data[cut:]
            self._skipping = False
        if not self._waiting_bytes:
            data = data[self._take(data) :]
        if not data or self._closed:
            return
        if self._waiting_bytes + len(data) > _BUFFER_BYTES:
            self._skipping = True
            self.trouble = self.trouble or "it is not read as fast as the worker prints"
            return
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)

    def flush(self) -> None:
        """Write what waits, as far as stdout takes it now."""
        while self._waiting and not self._closed:
            first = self._waiting[0]
            taken = self._take(first)
            self._waiting_bytes -= taken
            if taken < len(first):
                self._waiting[0] = first[taken:]
                return
            del self._waiting[0]

    def _take(self, data: bytes | memoryview) -> int:
        """How many bytes stdout took."""
        taken = 0
        view = memoryview(data)
        try:
            while taken < len(view):
                taken += os.write(self.fd, view[taken:])
        except BlockingIOError:
            pass
        except OSError as error:
            self._closed = True
            self._waiting, self._waiting_bytes = [], 0
            self.trouble = self.trouble or error.strerror or str(error)
        return taken


def _widen(fd: int) -> None:
    """Room for bursts: the usual 64 KiB are full before a reader gets its turn."""
    try:
        import fcntl

        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass
