"""So many of a kind in one round of the event loop: what comes in waves leaves room for everything else.

Used for requests that start (`middleware/starts.py`), connections that end (`connection.py`) and followers of a log
that grew (`worker_logs/source.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Rounds:
    """First come, first served; who comes alone never waits."""

    def __init__(self, at_once: int) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[Callable[[], None]] = deque()
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
            self._waiting.append(lambda: None if turn.done() else turn.set_result(None))
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
            asyncio.get_running_loop().call_soon(self._next)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
