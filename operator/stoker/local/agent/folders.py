"""The workers' folders: the truth about every worker, which survives the agent.

Owns their reading, writing and the lock's state. Blocking and small: called from the agent's threads. Each write passes
the fault seam.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue, ValidationError

from stoker.spec.meta import StatusModel
from stoker.spec.worker import EXIT_FILE, LAUNCH_FILE, LOCK_FILE, STARTED_FILE, ExitRecord, Launch
from stoker.store.seam import Seam
from stoker_worker.folder import read_launch
from stoker_worker.kept_files import keep_files

_TRASH = ".removing-"


class Places(Protocol):
    """Where the data folder keeps what is the agent's."""

    @property
    def workers(self) -> Path: ...
    @property
    def jobs(self) -> Path: ...
    @property
    def secrets(self) -> Path: ...
    @property
    def data(self) -> Path: ...
    @property
    def environments(self) -> Path: ...


class Started(StatusModel):
    """started.json: who the supervisor is."""

    pid: int
    start_ticks: int
    boot_id: str
    at: float


@dataclass(frozen=True, slots=True)
class FoundWorker:
    """A worker's folder as it stands."""

    pod_uid: str
    launch: Launch | None
    held: bool
    started: Started | None
    ended: bool
    """There is an exit record."""


class WorkerFolder:
    """One worker's folder, by the pod's uid."""

    def __init__(self, workers: Path, pod_uid: str) -> None:
        self.pod_uid = pod_uid
        self.path = workers / pod_uid

    def look(self) -> FoundWorker:
        """What the folder says. The lock first: what is written after it was seen free does not count."""
        held = self.is_held()
        return FoundWorker(
            self.pod_uid, self.read_launch(), held, self.read_started(), (self.path / EXIT_FILE).exists()
        )

    def write_launch(self, launch: Launch, job_folder: Path, seam: Seam) -> None:
        """Make the folders and put the order in place. Raises: OSError.

        The job's folders last: the order names the job, so that none of them is forgotten if we die in between.
        """
        with seam.crossing("agent.folder", self.pod_uid):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with seam.crossing("agent.launch", self.pod_uid):
            self.replace_launch(launch)
            for name in ("checkpoints", "output"):
                (job_folder / name).mkdir(parents=True, exist_ok=True)

    def replace_launch(self, launch: Launch) -> None:
        """Raises: OSError."""
        temporary = self.path / (LAUNCH_FILE + ".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it holds a token and the job's env
        with os.fdopen(fd, "w") as file:
            file.write(launch.model_dump_json(by_alias=True, exclude_none=True))
        temporary.replace(self.path / LAUNCH_FILE)

    def take_lock(self) -> int | None:
        """The lock, held by the file descriptor that comes back, or None if a supervisor holds it. Raises: OSError."""
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def is_held(self) -> bool:
        """Whether a supervisor lives here. Raises: OSError other than a missing file."""
        try:
            fd = os.open(self.path / LOCK_FILE, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            # Shared: two who look at once don't take each other for a supervisor.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def read_launch(self) -> Launch | None:
        try:
            return Launch.model_validate_json((self.path / LAUNCH_FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def read_started(self) -> Started | None:
        try:
            return Started.model_validate_json((self.path / STARTED_FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def read_exit(self) -> ExitRecord | None:
        """The exit record; without its progress if a user's script wrote one that is none."""
        try:
            data = (self.path / EXIT_FILE).read_bytes()
        except OSError:
            return None
        with contextlib.suppress(ValidationError):
            return ExitRecord.model_validate_json(data)
        with contextlib.suppress(ValidationError):
            return _Bare.model_validate_json(data).as_record()
        return None

    def keep_files(self) -> list[str]:
        """In place of a supervisor that was killed: keep what its command wrote beside its code, once nothing of it is
        left. Returns: what could not be kept."""
        try:
            launch = read_launch(str(self.path / LAUNCH_FILE))
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return keep_files(str(self.path), launch) if launch.code else []

    def remove(self, seam: Seam) -> None:
        """Raises: OSError."""
        with seam.crossing("agent.remove", self.pod_uid):
            trash = self.path.with_name(_TRASH + self.pod_uid)
            with contextlib.suppress(FileNotFoundError):
                self.path.rename(trash)  # at once and whole: half a folder would be misread
            shutil.rmtree(trash, ignore_errors=True)


def remove_unused(job_folder: Path) -> None:
    """Remove the folder of a job that saved nothing; what a job saved stays."""
    for folder in (job_folder / "checkpoints", job_folder / "output", job_folder):
        with contextlib.suppress(OSError):
            folder.rmdir()


class _Bare(ExitRecord):
    """An exit record whose progress is left unread."""

    progress: JsonValue = None  # type: ignore[assignment]

    def as_record(self) -> ExitRecord:
        return ExitRecord.model_validate(self.model_dump(exclude={"progress"}))


def look_at_all(workers: Path) -> list[FoundWorker]:
    """All folders. Also finishes removals that were interrupted. Cost: ~0.2 ms a folder."""
    found = []
    for entry in sorted(workers.iterdir()) if workers.exists() else ():
        if entry.name.startswith(_TRASH):
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.is_dir():
            found.append(WorkerFolder(workers, entry.name).look())
    return found
