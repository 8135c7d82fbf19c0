"""What the api asks of its neighbours, as small protocols: logs, files, calls to workers, addresses to scrape.

Never names an implementation: `deps.py` picks them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from stoker.spec.job import TrainingJob
from stoker.spec.pod import Pod
from stoker.spec.rest import FileList, ProjectSecret
from stoker.spec.worker import LogPart


class LogSource(Protocol):
    """Where the logs of workers are read."""

    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        """At most `limit` bytes from `offset` on; None if there is no such log (yet, or any more)."""
        ...

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        """Return once the log is longer than `offset`, has ended, or `timeout_s` is over."""
        ...

    async def offset_since(self, pod_uid: str, since_s: float) -> int | None:
        """Where that begins which was written since then (unix time); None: nothing was. 0: no times are known."""
        ...

    async def times(self, pod_uid: str, begin: int, end: int) -> list[tuple[int, float]]:
        """(Offset, unix time) of what stands at `begin`, and of what was written later before `end`; empty: unknown."""
        ...


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a file is at the moment it was opened. `etag`: another as soon as its content is."""

    size: int
    modified_at: datetime
    etag: str


class OpenFile(Protocol):
    @property
    def stamp(self) -> FileStamp: ...

    def pieces(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` up to before `end`. Raises: OSError, TimeoutError where they can't be had."""
        ...

    async def close(self) -> None: ...


class JobFiles(Protocol):
    """What jobs leave behind. Raises everywhere: Problem."""

    def place(self, job: TrainingJob) -> str | None:
        """Where it is, for people; None: nowhere (yet)."""
        ...

    async def list(self, job: TrainingJob, folder: str, limit: int) -> FileList: ...

    async def open(self, job: TrainingJob, path: str) -> OpenFile: ...


class Secrets(Protocol):
    """Where projects' secrets are kept: in the caller's name, and never to be read here. Raises everywhere: StoreError.

    `token`: the caller's own.
    """

    async def listed(self, token: str, project: str) -> Sequence[ProjectSecret]:
        """By name."""
        ...

    async def put(self, token: str, project: str, name: str, key: str, value: str) -> tuple[ProjectSecret, bool]:
        """The secret with one value set; whether it is new."""
        ...

    async def delete(self, token: str, project: str, name: str, key: str | None) -> None:
        """Delete one value, or with None the whole secret. Raises: NotFound."""
        ...


class SessionCaller(Protocol):
    """Calls a worker to a session, where workers do not ask."""

    async def call(self, pod_uid: str, session_id: str) -> None:
        """Raises: OSError."""
        ...

    async def withdraw(self, pod_uid: str, session_id: str) -> None:
        """It has come, or is not to come any more. Raises: OSError."""
        ...


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """Something that serves /metrics."""

    address: str
    """host:port"""
    labels: Mapping[str, str]
    """As Prometheus is to have them; `job` and `instance` replace its own."""


class Scraping(Protocol):
    """Where metrics are served, as far as this api knows."""

    def servers(self) -> Sequence[ScrapeTarget]:
        """Of Stoker's own processes."""
        ...

    def worker(self, pod: Pod) -> str | None:
        """host:port of a worker that runs; None: it serves none now."""
        ...
