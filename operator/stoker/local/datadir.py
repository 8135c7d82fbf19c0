"""The data folder of an embedded Stoker: where each thing lies, who may read it, and who holds it.

Owns the folder's layout, its lock and its private files. Never reads the store. Called by `stoker up`, the node agent
(workers/) and the api (tokens, report key); the CLI only reads `endpoint` and `token`.

    <data folder>/            0700, one user's
      lock                    flock held by the running `stoker up`; holds its pid
      stoker.db               the store (plus SQLite's -wal)
      token, tokens.json      what people and the api authenticate with (tokens.lock: for its writers)
      scrape.token            a reader's, for Prometheus
      report.key              signs the workers' and the exporter's report tokens
      usage.db                what jobs had of GPUs (docs/usage.md)
      curves.db               what jobs reported of their training (docs/curves.md)
      exporter/               the exporter's: ledger, spool, log
      endpoint.json           where the api listens
      code/<project>/         users' code (docs/code.md)
      environments/<project>/ packages that jobs list, installed (docs/environments.md)
      secrets/<project>/      secrets of projects, one file each (docs/secrets.md)
      workers/<pod-uid>/      one worker each (docs/worker-contract.md)
      jobs/<job-uid>/checkpoints, jobs/<job-uid>/output
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import tempfile
import time
from pathlib import Path

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
_REPORT_KEY_BYTES = 32
_LETS_GO_S = 5.0


class DataDirError(Exception):
    """The folder can't be used; the message says what to do."""


class DataDirLocked(DataDirError):
    """Another process holds the folder. `pid`: which, if known."""

    def __init__(self, path: Path, pid: int | None) -> None:
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is in use by {who}: stop it first, or choose another data folder")
        self.pid = pid


class DataDir:
    """A folder made ready on construction: there, ours, closed to others. Raises: DataDirError."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._lock: int | None = None
        try:
            self._make_ready()
        except OSError as error:
            raise DataDirError(f"can't use {self.path} as data folder: {error}") from error

    @property
    def db(self) -> Path:
        return self.path / "stoker.db"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens.json"

    @property
    def endpoint(self) -> Path:
        return self.path / "endpoint.json"

    @property
    def workers(self) -> Path:
        return self.path / "workers"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def data(self) -> Path:
        """What was fetched for jobs."""
        return self.path / "data"

    @property
    def environments(self) -> Path:
        """What was installed for jobs, by project."""
        return self.path / "environments"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    def worker(self, pod_uid: str) -> Path:
        """The worker's folder; not made here."""
        return self.workers / _checked(pod_uid)

    def checkpoints(self, job_uid: str) -> Path:
        """The job's folder for checkpoints, made if need be."""
        return _made(self.jobs / _checked(job_uid) / "checkpoints")

    def output(self, job_uid: str) -> Path:
        """The job's folder for what it leaves behind, made if need be."""
        return _made(self.jobs / _checked(job_uid) / "output")

    def lock(self) -> None:
        """Hold the folder until `unlock` or this process's end, whatever ends it. Raises: DataDirLocked."""
        if self._lock is not None:
            return
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(fd)
        except BaseException:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock = fd

    def _take(self, fd: int) -> None:
        """A holder that was killed has it for a moment longer where a child of its own is between fork and exec."""
        give_up_at = time.monotonic() + _LETS_GO_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = os.pread(fd, 20, 0).strip()
                holder = int(text) if text.isdigit() else None
                if holder is None or _lives(holder) or time.monotonic() > give_up_at:
                    raise DataDirLocked(self.path, holder) from None
                time.sleep(0.01)
            else:
                return

    def unlock(self) -> None:
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # closing is not enough while a child is between fork and exec
            os.close(self._lock)
            self._lock = None

    def report_key(self) -> bytes:
        """32 random bytes, the same at every start. Call it with the lock held."""
        path = self.path / "report.key"
        with contextlib.suppress(FileNotFoundError):
            key = path.read_bytes()
            if len(key) == _REPORT_KEY_BYTES:
                return key
        key = secrets.token_bytes(_REPORT_KEY_BYTES)
        write_private(path, key)
        return key

    def _make_ready(self) -> None:
        new = not self.path.exists()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.path.stat()
        if found.st_uid != os.getuid():
            raise DataDirError(f"{self.path} belongs to another user: choose a data folder of your own")
        if new or found.st_mode & 0o077:
            names = {entry.name for entry in self.path.iterdir()}
            if not new and names and not names & {"lock", "stoker.db"}:
                raise DataDirError(
                    f"{self.path} is open to others and holds something else: choose a new or empty data folder"
                )
            self.path.chmod(0o700)
        self.workers.mkdir(mode=0o700, exist_ok=True)
        self.jobs.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Replace the whole file, readable by its owner only: a reader sees the old or the new content."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # made 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Let the renames in the folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _made(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _checked(uid: str) -> str:
    """Raises: ValueError for what is no uid: it becomes a folder's name."""
    if not _UID.fullmatch(uid):
        raise ValueError(f"{uid!r} is no uid")
    return uid
