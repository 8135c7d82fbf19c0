"""The ranks' output on its way into the log: complete, in order, in bounded memory.

Owns the log file and the pipes' reading ends. One rank alone is passed through byte by byte; several get `[rank N] `
before each line. A full disk loses output (and the log says how much), never the training.
"""

from __future__ import annotations

import os
import time

MYPY = False
if MYPY:
    from .log_times import LogTimes
    from .masking import Masking

READ_BYTES = 262_144
TURN_BYTES = 8 * READ_BYTES
LINE_BYTES = 65_536
"""A line longer than this is written in pieces."""
HOLD_S = 0.3
"""How long a piece of a line waits for its end before it is written as it is."""
TAIL_BYTES = 4096

_F_SETPIPE_SZ = 1031


class Log:
    """The log file, append only."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lost = 0
        self._why = ""
        self.at_line_start = True
        self.unfinished_rank = -1
        """The rank whose unfinished line stands at the end of the file; -1: none."""
        self.times: LogTimes | None = None
        """Where it is noted when what was written."""

    @property
    def lossy(self) -> bool:
        return self._lost > 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`; what the disk refuses is counted as lost."""
        if self._lost and not self.report_loss():
            self._lost += len(data)
            return
        self._append(data)

    def report_loss(self) -> bool:
        """Write how much was lost, if anything was and the disk takes it; whether writing works."""
        if not self._lost:
            return True
        notice = b"[stoker] %d bytes of output are missing here: %s\n" % (self._lost, self._why.encode())
        if not self.at_line_start:
            notice = b"\n" + notice
        lost, self._lost = self._lost, 0
        self._append(notice)
        if self._lost:
            self._lost = lost
            return False
        self.unfinished_rank = -1
        return True

    def finish(self) -> None:
        """Nothing comes after this: write what can still be written."""
        self.report_loss()

    def say(self, text: str) -> None:
        """A line of the supervisor's own."""
        data = b"[stoker] " + text.encode("utf-8", "replace") + b"\n"
        self.write(data if self.at_line_start else b"\n" + data)
        self.unfinished_rank = -1

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def _append(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        if self.times is not None and view:
            now_s = time.time()
            if self.times.due(now_s):
                self.times.note(os.fstat(self._fd).st_size, now_s)
        try:
            while view:
                written = os.write(self._fd, view)
                self.at_line_start = view[written - 1] == 10
                view = view[written:]
        except OSError as error:
            self._lost += len(view)
            self._why = error.strerror or str(error)


class RankOutput:
    """One rank's stdout and stderr, which share a pipe so that their order stays."""

    def __init__(self, rank: int, log: Log, prefixed: bool, masking: Masking | None = None) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        try:
            import fcntl

            fcntl.fcntl(self.read_fd, _F_SETPIPE_SZ, READ_BYTES)
        except OSError:
            pass  # over the user's limit for pipes: the usual size does too
        self.rank = rank
        self._log = log
        self._masking = masking
        self._prefix = b"[rank %d] " % rank if prefixed else b""
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._held = b""
        self._tail = b""
        self._kept: bytearray | None = None
        self._keep_bytes = 0
        self.held_since: float | None = None
        """When the piece of a line that waits for its end came in."""
        self.open = True

    def close_write(self) -> None:
        os.close(self.write_fd)
        self.write_fd = -1

    def pump(self, now: float) -> bool:
        """Carry what is there, one turn's worth at most; whether there may be more at once."""
        carried = 0
        while carried < TURN_BYTES:
            try:
                count = os.readv(self.read_fd, [self._buffer])
            except BlockingIOError:
                return False
            except OSError:
                count = 0
            if count == 0:
                self.close()
                return False
            carried += count
            self._carry(self._masked(count), now)
        return True

    def close(self) -> None:
        """Write what is held and let go of the pipe."""
        if self.open:
            if self._masking is not None:
                self._carry(self._masking.flush(), time.monotonic())
            self.flush()
            os.close(self.read_fd)
            self.open = False
            self._view.release()
            self._buffer = bytearray()

    def flush(self) -> None:
        """Write the piece of a line that was held for its end."""
        held, self._held, self.held_since = self._held, b"", None
        if held:
            self._write_lines(held)

    def keep(self, limit_bytes: int) -> None:
        """From here on also keep what is printed, for `kept`."""
        self._kept, self._keep_bytes = bytearray(), limit_bytes

    def kept(self) -> bytes:
        """What was printed since `keep` or the last call, from its beginning."""
        found = b"" if self._kept is None else bytes(self._kept)
        if self._kept is not None:
            self._kept, self._keep_bytes = bytearray(), self._keep_bytes - len(found)
        return found

    def last_line(self) -> str:
        """The last line with something in it, cut to a readable length."""
        for line in reversed(self._tail.splitlines()):
            text = line.decode("utf-8", "replace").strip()
            if text:
                return "".join(c if c.isprintable() else " " for c in text)[-1000:]
        return ""

    def _masked(self, count: int) -> bytes | memoryview:
        data = self._view[:count]
        return data if self._masking is None else self._masking.feed(bytes(data))

    def _carry(self, data: bytes | memoryview, now: float) -> None:
        if len(data) >= TAIL_BYTES:
            self._tail = bytes(data[len(data) - TAIL_BYTES :])
        else:
            self._tail = (self._tail + bytes(data))[-TAIL_BYTES:]
        if self._kept is not None:
            self._kept += data[: max(0, self._keep_bytes - len(self._kept))]
        if not self._prefix:
            self._log.write(data)
            return
        text = self._held + bytes(data) if self._held else bytes(data)
        end = text.rfind(b"\n") + 1
        if end:
            self._held = b""
            self._write_lines(text[:end])
        self._held = text[end:]
        if not self._held:
            self.held_since = None
        elif end or self.held_since is None:
            self.held_since = now
        if len(self._held) > LINE_BYTES:
            self.flush()

    def _write_lines(self, text: bytes) -> None:
        """Write `text` with the prefix before each line, going on with our own unfinished line where one stands."""
        log = self._log
        if not self._prefix:
            log.write(text)
            return
        ends = text.endswith(b"\n")
        body = (text[:-1] if ends else text).replace(b"\n", b"\n" + self._prefix) + (b"\n" if ends else b"")
        if log.unfinished_rank != self.rank:
            body = self._prefix + body
            if log.unfinished_rank >= 0 and not log.at_line_start:
                body = b"\n" + body  # another rank's line is unfinished: end it
        log.unfinished_rank = -1 if ends else self.rank
        log.write(body)
