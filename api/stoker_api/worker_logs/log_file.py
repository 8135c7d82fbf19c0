"""One worker's shipped log on disk: an append-only file whose size is the truth, and a small index beside it.

Owns both files' format and what a post at any offset does to them. The process may be killed between any two bytes: the
next one finds a prefix of the log and goes on behind it. Not for two threads at once; `storage` ensures it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.spec.pod import Pod
from stoker.spec.worker_pod import identity
from stoker_api.disk import FULL
from stoker_worker.log_times import SUFFIX, LogTimes, offset_since, times_of

INDEX_VERSION = 1


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Whose log it is: what the pod's labels say."""

    project: str
    job_name: str
    job_uid: str
    attempt: int
    worker: int

    @classmethod
    def of(cls, pod: Pod) -> Self | None:
        worker = identity(pod.metadata)
        return cls(**worker._asdict()) if worker is not None else None


@dataclass(frozen=True, slots=True)
class Jump:
    """A place where bytes of the worker's log are missing for good: a line about it stands before `at`."""

    at: int
    """Where the file goes on behind the line."""
    offset: int
    """Which byte of the worker's log that is."""
    notice: str


class Gap(Exception):
    """The post begins behind what is held; `wanted` is the offset to go on at."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"the next byte wanted is {wanted}")
        self.wanted = wanted


class DiskFull(Exception):
    """Nothing more can be kept now."""


@dataclass(slots=True)
class StoredLog:
    """Files `<pod uid>.log`, `<pod uid>.times` (when what came) and `<pod uid>.json` in `folder`."""

    folder: Path
    pod_uid: str
    owner: LogOwner
    jumps: list[Jump] = field(default_factory=list)
    complete: bool = False
    """Nothing more will come, from nowhere."""
    pulled: bool = False
    """Begun from the kubelet's copy: the worker has no supervisor."""

    @property
    def path(self) -> Path:
        return self.folder / f"{self.pod_uid}.log"

    @property
    def times_file(self) -> Path:
        return self.folder / f"{self.pod_uid}{SUFFIX}"

    @property
    def index(self) -> Path:
        return self.folder / f"{self.pod_uid}.json"

    @classmethod
    def create(cls, folder: Path, pod_uid: str, owner: LogOwner) -> StoredLog:
        """A new, empty log. Its index is there before its first byte. Raises: DiskFull, OSError."""
        stored = cls(folder, pod_uid, owner)
        stored._write_index()
        os.close(os.open(stored.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return stored

    @classmethod
    def load(cls, index: Path) -> StoredLog:
        """Raises: OSError, ValueError (not an index of ours)."""
        data: dict[str, Any] = json.loads(index.read_bytes())
        if data.get("version") != INDEX_VERSION:
            raise ValueError(f"{index} is of version {data.get('version')!r}, not {INDEX_VERSION}")
        try:
            owner = LogOwner(**data["owner"])
            jumps = [Jump(**jump) for jump in data["jumps"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{index}: {error!r}") from None
        return cls(index.parent, index.stem, owner, jumps, bool(data.get("complete")), bool(data.get("pulled")))

    def size(self) -> int:
        """Bytes in the file."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def held(self) -> int:
        """How much of the worker's log is held or given up: where the next post is to begin."""
        return self._held(self.size())

    def append(self, offset: int, data: bytes, *, lost: bool = False) -> int:
        """Take what is new in `data`; where the next post is to begin.

        `lost`: the worker has nothing before `offset` any more, so what is missing is given up, and a line says so.
        Raises: Gap, DiskFull (what fitted is kept), OSError.
        """
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = self._complete_notice(fd, os.fstat(fd).st_size)
            held = self._held(size)
            if offset > held:
                if not lost:
                    raise Gap(held)
                size = self._jump(fd, size, offset, offset - held)
                held = offset
            if held - offset < len(data):
                self._note_time(size)
            size += _write(fd, size, data[held - offset :])
        finally:
            os.close(fd)
        return self._held(size)

    def offset_since(self, since_s: float) -> int | None:
        """Where that begins which came since then (unix time); None: nothing did. Raises: OSError (no times)."""
        return offset_since(str(self.times_file), since_s)

    def times(self, begin: int, end: int) -> list[tuple[int, float]]:
        """(Offset, unix time) of what stands at `begin`, and of what came later before `end`. Raises: OSError."""
        return times_of(str(self.times_file), begin, end)

    def read(self, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes of the file from `offset` on, and its size. Raises: FileNotFoundError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            return (os.pread(fd, max(0, min(limit, size - offset)), offset) if 0 <= offset < size else b""), size
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Remember that nothing more will come. Raises: DiskFull, OSError."""
        if not self.complete:
            self.complete = True
            self._write_index()

    def mark_pulled(self, pulled: bool) -> None:
        """Remember where it comes from. Raises: DiskFull, OSError."""
        if self.pulled != pulled:
            self.pulled = pulled
            self._write_index()

    def remove(self) -> None:
        """Raises: OSError."""
        self.path.unlink(missing_ok=True)
        self.times_file.unlink(missing_ok=True)
        self.index.unlink(missing_ok=True)

    def _note_time(self, size: int) -> None:
        try:
            times = LogTimes(str(self.times_file))
        except OSError:
            return  # the log is worth more than its times
        try:
            if times.due(now_s := time.time()):
                times.note(size, now_s)
        finally:
            times.close()

    def _held(self, size: int) -> int:
        if not self.jumps:
            return size
        last = self.jumps[-1]
        return last.offset + max(0, size - last.at)

    def _jump(self, fd: int, size: int, offset: int, missing: int) -> int:
        """Index first, then the line: if the process dies in between, `_complete_notice` writes the rest of it."""
        at_line_start = size == 0 or self.read(size - 1, 1)[0] == b"\n"
        notice = (
            "" if at_line_start else "\n"
        ) + f"[stoker] {missing} bytes of output are missing here: they were lost\n"
        self.jumps.append(Jump(size + len(notice), offset, notice))
        try:
            self._write_index()
        except BaseException:
            self.jumps.pop()
            raise
        return self._complete_notice(fd, size)

    def _complete_notice(self, fd: int, size: int) -> int:
        """Write what is missing of the last jump's line."""
        if not self.jumps or size >= self.jumps[-1].at:
            return size
        last = self.jumps[-1]
        return size + _write(fd, size, last.notice.encode()[len(last.notice) - (last.at - size) :])

    def _write_index(self) -> None:
        text = json.dumps(
            {
                "version": INDEX_VERSION,
                "owner": asdict(self.owner),
                "jumps": [asdict(jump) for jump in self.jumps],
                "complete": self.complete,
                "pulled": self.pulled,
            }
        )
        temporary = self.index.with_suffix(".tmp")
        try:
            temporary.write_text(text)
            temporary.replace(self.index)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno in FULL:
                raise DiskFull(error.strerror) from None
            raise


def _write(fd: int, at: int, data: bytes) -> int:
    """Write at the file's end; how much. Raises: DiskFull, OSError."""
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(fd, data[written:], at + written)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(error.strerror) from None
        raise
    return written
