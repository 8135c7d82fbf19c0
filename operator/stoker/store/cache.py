"""The watch cache: every object of one kind in memory, kept current, with indexes and subscribers.

Owns listing, watching, resuming and relisting, and the difference a relist makes. Readers see a consistent, slightly
old state; `at_least` waits for one's own writes. Never writes to the store and never retries a subscriber's work: a
subscriber puts keys into a work queue and returns. Called by controllers, the api and the node agent.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from stoker.spec.meta import Key, Kind, Resource

from .clock import Clock
from .index import Index
from .port import Gone, Store, StoreError, Watching, WatchType
from .sorted_keys import SortedKeys

T = TypeVar("T", bound=Resource)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """An object before and after; one of them is None when it came or went."""

    old: T | None
    new: T | None

    @property
    def key(self) -> Key:
        one = self.new or self.old
        assert one is not None
        return one.key


Handler = Callable[[Change[T]], None]


class WatchCache(Generic[T]):
    """Cost: about 9 µs per change with one index and one subscriber (tools/bench/store.py)."""

    def __init__(
        self,
        store: Store,
        kind: Kind[T],
        *,
        clock: Clock,
        indexes: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
        backoff_s: tuple[float, float] = (0.1, 30.0),
        rng: random.Random | None = None,
    ) -> None:
        """`indexes`: name -> the values under which an object is found. `backoff_s`: the first and the longest."""
        self._store, self._kind, self._clock = store, kind, clock
        self._backoff_s, self._rng = backoff_s, rng or random.Random()
        self._objects: dict[Key, T] = {}
        self._uids: dict[str, T] = {}
        self._keys = SortedKeys()
        self._indexes = {name: Index(values) for name, values in (indexes or {}).items()}
        self._handlers: dict[object, Handler[T]] = {}
        self._version: str | None = None
        self._watch: Watching[T] | None = None
        self._confirmed_at = clock.monotonic()
        self._failures = 0
        self._synced = asyncio.Event()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    # Reading: plain functions, no await, so a caller sees one state until it awaits.

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def by_uid(self, uid: str) -> T | None:
        return self._uids.get(uid)

    def values(self) -> Collection[T]:
        """All objects: a live view, so copy it before awaiting while walking it."""
        return self._objects.values()

    def by_index(self, name: str, value: Hashable) -> Collection[T]:
        """The objects under this value: a live view, as `values`. Raises: KeyError for an unknown index."""
        return self._indexes[name].find(value)

    def page(
        self,
        *,
        after: Key | None = None,
        limit: int,
        namespace: str | None = None,
        where: Callable[[T], bool] | None = None,
    ) -> list[T]:
        """At most `limit` objects behind `after`, by (namespace, name); the last one's key is the next cursor."""
        found: list[T] = []
        for key in self._keys.after(after, namespace):
            obj = self._objects[key]
            if where is None or where(obj):
                found.append(obj)
                if len(found) >= limit:
                    break
        return found

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def resource_version(self) -> str:
        """How far the cache has come; '' before the first list."""
        return self._version or ""

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def stale_s(self) -> float:
        """Seconds since the store last said where it stands: by a list, a change, a bookmark, a watch it opened.

        Counted from the beginning before the first list. 0 while a store in this process is followed.
        """
        age_s = max(0.0, self._clock.monotonic() - self._confirmed_at)
        watch = self._watch
        return age_s if watch is None else min(age_s, watch.silent_s())

    # Waiting and following.

    async def synced(self) -> None:
        """Return once the first list is in."""
        await self._synced.wait()

    async def at_least(self, resource_version: str, *, timeout_s: float | None = None) -> None:
        """Return once the cache has seen this version of an object of its kind: one's own write can be read.

        Raises: TimeoutError. Source: Kubernetes KEP-5504, resource versions may be compared as numbers.
        """
        wanted = int(resource_version)
        await self._until(lambda: self._version is not None and int(self._version) >= wanted, timeout_s)

    async def wait_for(self, predicate: Callable[[WatchCache[T]], bool], *, timeout_s: float | None = None) -> None:
        """Return once `predicate(cache)` holds; it is asked after each change. Raises: TimeoutError."""
        await self._until(lambda: predicate(self), timeout_s)

    def subscribe(self, handler: Handler[T]) -> Callable[[], None]:
        """Call `handler` with every change from now on, first with one addition for each object there is.

        It must not block; what it raises is recorded and stops no other handler. Returns: the way to unsubscribe.
        """
        token = object()
        self._handlers[token] = handler
        for obj in tuple(self._objects.values()):
            self._call(handler, Change(None, obj))

        def unsubscribe() -> None:
            self._handlers.pop(token, None)

        return unsubscribe

    # Keeping current.

    async def run(self) -> None:
        """Keep the cache current until cancelled."""
        while True:
            began = self._clock.monotonic()
            try:
                if self._version is None:
                    await self._relist()
                await self._follow()
            except Gone:
                # The first time at once; a store that keeps saying so is left in peace.
                logger.info("the watch of %s is too old; listing again", self._kind)
                self._version = None
                if self._failures == 0:
                    self._failures = 1
                    continue
            except StoreError as error:
                self._record(f"watch of {self._kind}", error)
            except Exception as error:  # noqa: BLE001 - the loop's edge: whatever it was, list anew and go on
                self._record(f"watch of {self._kind}", error)
                self._version = None
            if self._clock.monotonic() - began > self._backoff_s[1]:
                self._failures = 0  # it went well for long: this is a new trouble, not the old one
            await self._clock.sleep(self._next_backoff_s())

    async def _relist(self) -> None:
        """Take all there is, then make the difference to what was known into changes."""
        page = await self._store.snapshot(self._kind)
        listed = {obj.key: obj for obj in page.items}
        for key in [key for key in self._objects if key not in listed]:
            self._apply(self._objects[key], None)
        for key, new in listed.items():
            old = self._objects.get(key)
            if old is not None and old.uid != new.uid:
                self._apply(old, None)
                old = None
            if old is None or old.metadata.resource_version != new.metadata.resource_version:
                self._apply(old, new)
        self._confirmed_at = self._clock.monotonic()
        self._advance(page.resource_version)
        self._synced.set()

    async def _follow(self) -> None:
        """Apply the watch's events from the version we have, until it ends."""
        assert self._version is not None
        watch = self._watch = self._store.watch(self._kind, since=self._version)
        try:
            async for event in watch:
                if event.object is not None:
                    old = self._objects.get(event.object.key)
                    new = None if event.type is WatchType.DELETED else event.object
                    if old is not None or new is not None:
                        self._apply(old, new)
                self._failures = 0
                self._advance(event.resource_version)
        finally:
            self._watch = None
            self._confirmed_at = max(self._confirmed_at, self._clock.monotonic() - watch.silent_s())

    def _apply(self, old: T | None, new: T | None) -> None:
        if new is not None:
            self._objects[new.key] = self._uids[new.uid] = new
            self._keys.add(new.key)
        if old is not None and (new is None or new.uid != old.uid):
            self._uids.pop(old.uid, None)
            if new is None:
                self._objects.pop(old.key, None)
                self._keys.discard(old.key)
        for name, index in self._indexes.items():
            try:
                index.replace(old, new)
            except Exception as error:  # noqa: BLE001 - one object that an index can't read must not stop the rest
                self._record(f"index {name}", error)
        change = Change(old, new)
        for handler in tuple(self._handlers.values()):
            self._call(handler, change)

    def _call(self, handler: Handler[T], change: Change[T]) -> None:
        try:
            handler(change)
        except Exception as error:  # noqa: BLE001 - a failing handler is recorded, the others go on
            self._record(f"subscriber {getattr(handler, '__qualname__', handler)!s} at {change.key}", error)

    def _record(self, where: str, error: Exception) -> None:
        if isinstance(error, StoreError):
            logger.warning("%s: %s", where, error)
        else:
            logger.error("%s", where, exc_info=error)

    def _next_backoff_s(self) -> float:
        first_s, longest_s = self._backoff_s
        delay_s = min(longest_s, first_s * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return delay_s * self._rng.uniform(0.5, 1.0)

    def _advance(self, version: str) -> None:
        self._version = version
        if not self._waiters:
            return
        for holds, reached in self._waiters:
            if not reached.done():
                try:
                    if holds():
                        reached.set_result(None)
                except Exception as error:  # noqa: BLE001 - the asker's predicate failed, so the asker hears of it
                    reached.set_exception(error)
        self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]

    async def _until(self, holds: Callable[[], bool], timeout_s: float | None) -> None:
        if holds():
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((holds, reached))
        async with asyncio.timeout(timeout_s):
            await reached
