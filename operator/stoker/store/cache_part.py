"""The objects of one model out of a watch cache that holds several: one watch of the store, a cache for each model.

Owns the division only; listing, watching and their versions are the whole cache's. Called by who composes a process
(`kube.views.cluster_pods`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from stoker.spec.meta import Kind, Resource

from .cache import Change, WatchCache

T = TypeVar("T", bound=Resource)


class CachePart(WatchCache[T]):
    """Invariant: it holds exactly the whole's objects of its kind's model."""

    def __init__(
        self,
        whole: WatchCache[Any],
        kind: Kind[T],
        turn: asyncio.Lock,
        *,
        indexes: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
    ) -> None:
        """`turn`: shared by the parts; whichever of them runs first keeps the whole current for all."""
        super().__init__(whole._store, kind, clock=whole._clock, indexes=indexes)
        self._whole, self._turn = whole, turn
        self._synced = whole._synced
        whole.subscribe(self._take)

    async def run(self) -> None:
        async with self._turn:
            await self._whole.run()

    @property
    def resource_version(self) -> str:
        return self._whole.resource_version

    @property
    def stale_s(self) -> float:
        return self._whole.stale_s

    async def at_least(self, resource_version: str, *, timeout_s: float | None = None) -> None:
        await self._whole.at_least(resource_version, timeout_s=timeout_s)

    async def wait_for(self, predicate: Callable[[WatchCache[T]], bool], *, timeout_s: float | None = None) -> None:
        await self._whole.wait_for(lambda _: predicate(self), timeout_s=timeout_s)

    def _take(self, change: Change[Any]) -> None:
        """An object may cross over from one part to another."""
        old = change.old if isinstance(change.old, self._kind.model) else None
        new = change.new if isinstance(change.new, self._kind.model) else None
        if old is not None or new is not None:
            self._apply(old, new)
