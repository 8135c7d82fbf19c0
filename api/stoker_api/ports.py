"""What the api asks of its neighbours, as small protocols: worker logs, calls to workers, the scheduler's view.

Never names an implementation: `deps.py` picks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.spec.reasons import Blocker, Explanation
from stoker.spec.rest import NodeUsage, QueueUsage
from stoker.spec.usage import GpuReceipt


class LogPart(Protocol):
    """Part of a worker's log, whatever class the source has for it."""

    @property
    def data(self) -> bytes: ...
    @property
    def size(self) -> int:
        """The whole log's, now."""
        ...

    @property
    def ended(self) -> bool:
        """It will not grow any more."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLogPart:
    """The plain `LogPart`."""

    data: bytes
    size: int
    ended: bool


class LogSource(Protocol):
    """Where the logs of workers are read."""

    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        """At most `limit` bytes from `offset` on; None if there is no such log (yet, or any more)."""
        ...

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        """Return once the log is longer than `offset`, has ended, or `timeout_s` is over."""
        ...


class SessionCaller(Protocol):
    """Calls a worker to a session, where workers do not ask."""

    async def call(self, pod_uid: str, session_id: str) -> None:
        """Raises: OSError."""
        ...

    async def withdraw(self, pod_uid: str, session_id: str) -> None:
        """It has come, or is not to come any more. Raises: OSError."""
        ...


class IdleView(Protocol):
    """What exporters' receipts say of a job's GPUs (`usage/board.py`)."""

    def idle_since(self, uid: str, at: datetime) -> datetime | None:
        """Since when all GPUs of the running attempt are idle; None: they are not, or it is unknown."""
        ...

    def receipts(self, uid: str) -> list[GpuReceipt]: ...


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


class SchedulerView(Protocol):
    """The scheduler's own arithmetic over what the caches hold, for reading only."""

    def never_fits(self, job: TrainingJob) -> list[Blocker]:
        """Why the job could not start even on an idle cluster; [] if it could."""
        ...

    async def explain(self, key: Key, now: datetime) -> Explanation:
        """Raises: KeyError if the scheduler does not know the job (yet)."""
        ...

    async def queue_usage(self, names: Iterable[str]) -> dict[str, QueueUsage]:
        """Zeros for a queue without jobs."""
        ...

    async def node_usage(self, names: Iterable[str]) -> dict[str, NodeUsage]:
        """Without those that are gone meanwhile."""
        ...
