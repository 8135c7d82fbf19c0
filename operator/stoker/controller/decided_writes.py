"""Writes of what was decided, begun in order: a few in one turn of the event loop, so many at once.

Owns when a write begins. However much is decided at a time, whatever else the loop has to do, taking in what is newer
first of all, comes after a few of them. Called by `scheduling`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

AT_ONCE = 256
A_TURN = 16

Write = Callable[[], Coroutine[Any, Any, None]]


class DecidedWrites:
    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended`: is called after each, however it ended."""
        self._ended = ended
        self._decided: deque[Write] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self.eased = asyncio.Event()
        """So few are left that more may be decided."""
        self.failure: BaseException | None = None
        """Of the first that failed."""

    def __len__(self) -> int:
        """Those that have not ended."""
        return len(self._decided) + len(self._under_way)

    def add(self, write: Write) -> None:
        self._decided.append(write)
        self.eased.clear()
        self._go_on()

    async def close(self) -> None:
        """End those under way; the others never begin."""
        self._decided.clear()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _go_on(self) -> None:
        if self._turn is None and self._decided and len(self._under_way) < AT_ONCE:
            self._turn = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._turn = None
        for _ in range(min(A_TURN, len(self._decided), AT_ONCE - len(self._under_way))):
            task = asyncio.create_task(self._decided.popleft()())
            self._under_way.add(task)
            task.add_done_callback(self._end)
        self._go_on()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            self.failure = self.failure or task.exception()
        if len(self) <= AT_ONCE // 2:
            self.eased.set()
        self._go_on()
        self._ended()
