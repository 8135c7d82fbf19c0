"""A watch cache whose objects have put into them what another cache holds under the same key.

Owns when an object is joined anew: when either of the two changes. Lists and watches are the two caches' own; an object
that only the other cache holds is not there. Called by `node_health`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from stoker.spec.meta import Resource

from .cache import Change, WatchCache

T = TypeVar("T", bound=Resource)
S = TypeVar("S", bound=Resource)


class JoinedCache(WatchCache[T], Generic[T, S]):
    """Invariant: it holds `join(object, what is beside it or None)` of each of `whole`'s objects."""

    def __init__(self, whole: WatchCache[T], beside: WatchCache[S], join: Callable[[T, S | None], T]) -> None:
        super().__init__(whole._store, whole._kind, clock=whole._clock)
        self._whole, self._beside, self._join = whole, beside, join
        whole.subscribe(self._take)
        beside.subscribe(self._take_beside)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._whole.run())
            tasks.create_task(self._beside.run())

    async def synced(self) -> None:
        await self._whole.synced()
        await self._beside.synced()

    @property
    def is_synced(self) -> bool:
        return self._whole.is_synced and self._beside.is_synced

    @property
    def resource_version(self) -> str:
        return self._whole.resource_version

    @property
    def stale_s(self) -> float:
        return max(self._whole.stale_s, self._beside.stale_s)

    async def at_least(self, resource_version: str, *, timeout_s: float | None = None) -> None:
        await self._whole.at_least(resource_version, timeout_s=timeout_s)

    async def wait_for(self, predicate: Callable[[WatchCache[T]], bool], *, timeout_s: float | None = None) -> None:
        """It is asked after changes of either."""
        async with asyncio.timeout(timeout_s):
            waits = [
                asyncio.create_task(cache.wait_for(lambda _: predicate(self))) for cache in (self._whole, self._beside)
            ]
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                done.pop().result()
            finally:
                for wait in waits:
                    wait.cancel()

    def _take(self, change: Change[T]) -> None:
        new = change.new
        self._apply(
            self._objects.get(change.key), None if new is None else self._join(new, self._beside.get(change.key))
        )

    def _take_beside(self, change: Change[S]) -> None:
        whole = self._whole.get(change.key)
        if whole is not None:
            self._apply(self._objects.get(change.key), self._join(whole, change.new))
