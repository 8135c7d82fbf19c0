"""What the api asks of its neighbours, as small protocols: worker logs, calls to workers, addresses to scrape.

Never names an implementation: `deps.py` picks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stoker.spec.pod import Pod
from stoker.spec.worker import LogPart


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
