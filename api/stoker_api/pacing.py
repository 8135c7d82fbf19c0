"""How crowds take turns on the event loop, so that everything else has room: `Rounds` for requests that start,
connections that end and readers that wake; `Pacing` for followers that arrive, read and frame.

Without them a thousand followers of one log are all ready at once, and a request waits behind all of them.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable

_SLICE_S = 0.000_5
_AFTER_S = 0.000_15
"""What follows a turn and is not in it: sending."""
_REST = 3


class Rounds:
    """First come, first served; who comes alone never waits.

    A round is a turn of the loop. With `rest_s` a crowd rests between two of them, that what takes others several turns
    (a submit) does not meet it in each. uvloop counts in milliseconds.
    """

    def __init__(self, at_once: int, rest_s: float = 0.0) -> None:
        self._at_once = self._left = at_once
        self._rest_s = rest_s
        self._waiting: deque[Callable[[], object]] = deque()
        """False: it waits no more, and its place is another's."""
        self._counting = False

    def call(self, what: Callable[[], None]) -> None:
        """Call it now, or in the next round that has room."""
        if self._take():
            what()
        else:
            self._waiting.append(what)

    async def turn(self) -> None:
        """Go on now, or in the next round that has room."""
        if not self._take():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(functools.partial(_wake, turn))
            await turn

    def _take(self) -> bool:
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def _next(self) -> None:
        self._left = self._at_once
        self._counting = bool(self._waiting)
        if self._counting:
            loop = asyncio.get_running_loop()
            if self._rest_s:
                loop.call_later(self._rest_s, self._next)
            else:
                loop.call_soon(self._next)
        while self._waiting and self._left:
            if self._waiting.popleft()() is not False:
                self._left -= 1


def _wake(turn: asyncio.Future[None]) -> bool:
    if turn.done():
        return False
    turn.set_result(None)
    return True


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
