"""Results of remote calls, kept for a while: one call at a time per key, a few at once in all.

Never keeps a failure. Called by the api's `cluster_identity` and the operator's `scrape_auth`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from stoker.store.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST = 20_000
AT_ONCE = 32


class TTLCache(Generic[K, V]):
    """`keep_s(answer)`: how long an answer holds, counted from the question."""

    def __init__(self, clock: Clock, keep_s: Callable[[V], float], *, most: int = MOST, at_once: int = AT_ONCE) -> None:
        self._clock, self._keep_s, self._most = clock, keep_s, most
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[V]] = {}
        self._room = asyncio.Semaphore(at_once)

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer, asked for only if none holds. Raises what `ask` raises, to all who wait for it."""
        kept = self._kept.get(key)
        if kept is not None and self._clock.monotonic() < kept[0]:
            return kept[1]
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key, ask))
            asking.add_done_callback(lambda task: self._asked(key, task))
        # Shielded: a client that goes away must not take the answer from the others who wait for it.
        return await asyncio.shield(asking)

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        async with self._room:
            asked_s = self._clock.monotonic()
            answer = await ask()
        self._kept[key] = (asked_s + self._keep_s(answer), answer)
        self._kept.move_to_end(key)
        self._drop()
        return answer

    def _drop(self) -> None:
        """Forget the oldest answers: those that hold no more, and any above the most. A short one may wait behind a
        long one."""
        now_s = self._clock.monotonic()
        while self._kept:
            holds_until_s, _ = next(iter(self._kept.values()))
            if now_s < holds_until_s and len(self._kept) <= self._most:
                return
            self._kept.popitem(last=False)

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._kept)

    def _asked(self, key: K, task: asyncio.Task[V]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # every caller may be gone
