"""Pacing: followers arrive, read and frame one after the other, and everybody else has the loop in between.

Without them a thousand followers of one log are all ready at once, and a request waits behind all of them. Called by
the stream generators.
"""

from __future__ import annotations

import asyncio
import time

_SLICE_S = 0.001
_AFTER_S = 0.000_15
"""What follows a turn and is not in it: sending."""
_REST = 3


class Pacing:
    """`async with pacing:` around what a follower costs; first come, first served.

    Invariant: while others wait, followers take about a quarter of the loop's time, a millisecond at a stretch. A lone
    follower never rests.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._spent_s = self._begun_s = 0.0

    @property
    def crowded(self) -> bool:
        return self._waiting > 0

    async def __aenter__(self) -> None:
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        self._begun_s = time.thread_time()

    async def __aexit__(self, *_: object) -> None:
        self._spent_s += time.thread_time() - self._begun_s + _AFTER_S
        loop = asyncio.get_running_loop()
        if self._waiting == 0:
            self._spent_s = 0.0
            self._lock.release()
        elif self._spent_s < _SLICE_S:
            loop.call_soon(self._lock.release)
        else:
            loop.call_later(_REST * self._spent_s, self._lock.release)
            self._spent_s = 0.0
