"""Writes of what was decided, begun in order: a few in one turn of the event loop, so many at once.

Owns when a write begins. However much is decided at a time, whatever else the loop has to do, taking in what is newer
first of all, comes after a few of them. Claims, each of which has others stopped, have a line of their own, a few at
once: those begun earlier are carried through beside the next. Where many starts are under way claims are a fifth of
all, for those who preempt are of higher rank than most. Called by `scheduling`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

AT_ONCE = 256
CLAIMS_AT_ONCE = 2
"""At least; else one for every four starts."""
A_TURN = 16

Write = Callable[[], Coroutine[Any, Any, None]]


class DecidedWrites:
    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended`: is called after each, however it ended."""
        self._ended = ended
        self._decided: deque[Write] = deque()
        self._claims: deque[Write] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._claims_under_way: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self.eased = asyncio.Event()
        """So few are left that more may be decided."""
        self.failure: BaseException | None = None
        """Of the first that failed."""

    def __len__(self) -> int:
        """Those that have not ended, without claims: they keep nothing else from being decided."""
        return len(self._decided) + len(self._under_way)

    def add(self, write: Write) -> None:
        self._decided.append(write)
        self.eased.clear()
        self._go_on()

    def add_claim(self, write: Write) -> None:
        self._claims.append(write)
        self._go_on()

    async def close(self) -> None:
        """End those under way; the others never begin."""
        self._decided.clear()
        self._claims.clear()
        under_way = self._under_way | self._claims_under_way
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _go_on(self) -> None:
        if self._turn is None and (self._room() > 0 or self._room_for_claims() > 0):
            self._turn = asyncio.get_running_loop().call_soon(self._begin)

    def _room(self) -> int:
        return min(len(self._decided), AT_ONCE - len(self._under_way))

    def _room_for_claims(self) -> int:
        at_once = max(CLAIMS_AT_ONCE, len(self._under_way) // 4)
        return min(len(self._claims), at_once - len(self._claims_under_way))

    def _begin(self) -> None:
        self._turn = None
        for _ in range(min(A_TURN * 3 // 4, self._room())):
            self._start(self._decided, self._under_way)
        for _ in range(min(A_TURN // 4, self._room_for_claims())):
            self._start(self._claims, self._claims_under_way)
        self._go_on()

    def _start(self, line: deque[Write], under_way: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(line.popleft()())
        under_way.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._claims_under_way.discard(task)
        if not task.cancelled():
            self.failure = self.failure or task.exception()
        if len(self) <= AT_ONCE // 2:
            self.eased.set()
        self._go_on()
        self._ended()
