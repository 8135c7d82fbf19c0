"""Several streams of several jobs as one: threads read, one consumer gets everything in order of arrival.

Owns the threads. Called by `run`, `follow` and the demo. The queue between them is short, so that a job printing
100 MB is held back by its reader, not held in memory.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stoker.client.errors import StokerError
from stoker.client.following import Following
from stoker.client.log_lines import LogChunk

if TYPE_CHECKING:
    from stoker.client.client import Client
    from stoker.client.updates import JobUpdate


@dataclass(frozen=True, slots=True)
class FeedItem:
    """What a stream said. `what` None: this stream has ended (or `error` ended it)."""

    job: str
    log: bool
    what: JobUpdate | LogChunk | None
    error: StokerError | None = None


class Feed:
    """Iterates over all streams until each has ended; `close` (or leaving the `with`) ends them all."""

    def __init__(self, client: Client | None = None) -> None:
        """`client`: None where only `follow` is called."""
        self._client = client
        self._items: queue.Queue[FeedItem] = queue.Queue(maxsize=64)
        self._followings: list[Following[Any]] = []
        self._threads: list[threading.Thread] = []
        self.open = 0
        """Streams that have not ended."""
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def follow_events(self, job: str) -> None:
        assert self._client is not None
        self._start(job, False, self._client.events(job))

    def follow_logs(self, job: str, worker: int, *, tail: int | None) -> None:
        assert self._client is not None
        self.follow(job, self._client.logs(job, worker=worker, tail=tail))

    def follow(self, job: str, log: Following[LogChunk]) -> None:
        self._start(job, True, log)

    def get(self, timeout_s: float | None = None) -> FeedItem | None:
        """The next item, or None when none came in time."""
        try:
            item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if item.what is None:
            self.open -= 1
        return item

    def close(self) -> None:
        self._closed = True
        for following in self._followings:
            following.close()
        while any(thread.is_alive() for thread in self._threads):
            self.get(timeout_s=0.02)  # a reader may be waiting for room

    def _start(self, job: str, log: bool, following: Following[Any]) -> None:
        self._followings.append(following)
        self.open += 1
        thread = threading.Thread(target=self._read, args=(job, log, following), name=f"feed-{job}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(self, job: str, log: bool, following: Following[Any]) -> None:
        error: StokerError | None = None
        try:
            for what in following:
                self._items.put(FeedItem(job, log, what))
                if self._closed:
                    break
        except StokerError as met:
            error = met
        self._items.put(FeedItem(job, log, None, error))
