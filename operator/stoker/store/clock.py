"""Time as an argument: the clock that every waiting part is given.

Owns reading the clock and sleeping. `SystemClock` is picked once, in a main file; `ManualClock` is the same thing with
hands that a test (or a simulation) turns. Never schedules work by itself.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_BOOTTIME where there is one (Linux): it goes on while the machine is suspended, so deadlines stay true."""


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall time, aware, UTC. It may jump; use it for what people read and what must outlive the process."""
        ...

    def monotonic(self) -> float:
        """Units: seconds from an arbitrary start; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.clock_gettime(_MONOTONIC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def wait_for(event: asyncio.Event, clock: Clock, most_s: float | None) -> None:
    """Return once the event is set or `most_s` is over; None: as long as it takes."""
    if most_s is None:
        await event.wait()
        return
    timer, come = asyncio.ensure_future(clock.sleep(most_s)), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({timer, come}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        come.cancel()


class ManualClock:
    """A clock that stands still until `advance`; sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), woken))
        self._wake_watchers()
        await woken

    @property
    def sleepers(self) -> int:
        """How many sleep now."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def wait_for_sleepers(self, count: int) -> None:
        """Return once at least `count` sleep: the code under test has come to its wait."""
        if self.sleepers < count:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append((count, reached))
            await reached

    def advance(self, seconds: float) -> None:
        """Turn the hands and wake who is due; what they then do runs when the caller next awaits."""
        self._elapsed_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed_s + 1e-9:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def _wake_watchers(self) -> None:
        asleep = self.sleepers
        for count, reached in self._watchers:
            if asleep >= count and not reached.done():
                reached.set_result(None)
        self._watchers = [(count, reached) for count, reached in self._watchers if not reached.done()]
