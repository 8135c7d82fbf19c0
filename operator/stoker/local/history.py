"""The last changes of one kind, and the watches that read along.

Owns a bounded log in the order of resource versions; a watch is no more than a position in it, so a slow reader costs
nothing and gets Gone once the log has moved past it. Never holds current objects. Called by `store.EmbeddedStore`.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from stoker.spec.meta import Resource
from stoker.store.port import Gone, Unavailable, WatchEvent

T = TypeVar("T", bound=Resource)


class History(Generic[T]):
    """Invariant: `_events` holds every change after version `_floor`, oldest first, and `_base` went before them."""

    def __init__(self, floor: int, capacity: int) -> None:
        self._floor = floor
        self._capacity = capacity
        self._base = 0
        self._events: list[tuple[int, WatchEvent[T]]] = []
        self._newest = floor
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._closed = False

    def append(self, version: int, event: WatchEvent[T]) -> None:
        self._events.append((version, event))
        self._newest = version
        if len(self._events) > self._capacity + self._capacity // 4:  # cut in lumps: a cut moves the whole list
            cut = len(self._events) - self._capacity
            self._floor = self._events[cut - 1][0]
            self._base += cut
            del self._events[:cut]

    def wake(self) -> None:
        """Let the watches read what was appended; once per commit, not per change."""
        waiting, self._waiting = self._waiting, {}
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)

    def close(self) -> None:
        """End every watch with Unavailable."""
        self._closed = True
        self.wake()

    def position_after(self, version: int) -> int:
        """Where a watch from `version` starts to read. Raises: Gone."""
        if version < self._floor:
            raise Gone(f"version {version} is older than the oldest kept ({self._floor}): list again")
        low, high = 0, len(self._events)
        while low < high:
            middle = (low + high) // 2
            if self._events[middle][0] <= version:
                low = middle + 1
            else:
                high = middle
        return self._base + low

    async def read(self, position: int) -> WatchEvent[T]:
        """The event at this position, as soon as it is there. Raises: Gone, Unavailable."""
        while True:
            if self._closed:
                raise Unavailable("the store is closed")
            if position < self._base:
                raise Gone("the reader was too slow: list again")
            if position - self._base < len(self._events):
                return self._events[position - self._base][1]
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[woken] = None
            try:
                await woken
            finally:
                self._waiting.pop(woken, None)


class HistoryWatch(Generic[T]):
    """The iterator that `watch` returns; it holds no resource, so it may simply be dropped."""

    def __init__(self, history: History[T], since: str, newest: int) -> None:
        self._history, self._since, self._newest = history, since, newest
        self._position: int | None = None

    def __aiter__(self) -> HistoryWatch[T]:
        return self

    async def __anext__(self) -> WatchEvent[T]:
        if self._position is None:
            self._position = self._history.position_after(self._start())
        event = await self._history.read(self._position)
        self._position += 1
        return event

    def silent_s(self) -> float:
        """Never silent: what is written is read in the same process, so that no news means no change."""
        return 0.0

    def _start(self) -> int:
        """Raises: Gone for a version this store has never given out: it is another store's."""
        if not self._since.isdecimal() or int(self._since) > self._newest:
            raise Gone(f"version {self._since!r} is not of this store: list again")
        return int(self._since)
