"""What has been seen and must be written: kept by key, tried again until it is done.

For small loops that react to what objects say and may not lose it while the store refuses. Where keys have due times or
several workers, it is `workqueue`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from .clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

AGAIN_S = 5.0


class Backlog(Generic[K, V]):
    """`put` and `drop` may be called at any time, from anywhere on the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[K, V] = {}
        self._woken = asyncio.Event()

    def put(self, key: K, item: V) -> None:
        """In place of what is there for the key."""
        self._left[key] = item
        self._woken.set()

    def drop(self, key: K) -> None:
        self._left.pop(key, None)

    async def run(self, see_to: Callable[[V], Awaitable[bool]]) -> None:
        """Until cancelled. `see_to`: whether the item is done; one that has taken its place meanwhile is not."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            for key, item in list(self._left.items()):
                if await see_to(item) and self._left.get(key) is item:
                    del self._left[key]
            if self._left:
                await self._clock.sleep(AGAIN_S)
                self._woken.set()
