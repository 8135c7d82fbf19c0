"""One index of a watch cache: value -> the objects found under it.

Called by `cache.WatchCache` only. Never calls anybody but the function that says an object's values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from stoker.spec.meta import Key, Resource

T = TypeVar("T", bound=Resource)


class Index(Generic[T]):
    """Invariant: an object is under exactly the values it had when it was last replaced, and no bucket is empty."""

    def __init__(self, values_of: Callable[[T], Iterable[Hashable]]) -> None:
        self._values_of = values_of
        self._buckets: dict[Hashable, dict[Key, T]] = {}
        self._under: dict[Key, tuple[Hashable, ...]] = {}

    def replace(self, old: T | None, new: T | None) -> None:
        """Let `new` stand where `old` stood. Raises: what the function raised; then `new` is under no value."""
        gone = old or new
        assert gone is not None
        before = self._under.pop(gone.key, ())
        try:
            after = () if new is None else tuple(dict.fromkeys(self._values_of(new)))
        except Exception:
            self._drop(gone.key, before)
            raise
        self._drop(gone.key, [value for value in before if value not in after])
        if new is not None and after:
            self._under[new.key] = after
            for value in after:
                self._buckets.setdefault(value, {})[new.key] = new

    def find(self, value: Hashable) -> Collection[T]:
        bucket = self._buckets.get(value)
        return () if bucket is None else bucket.values()

    def _drop(self, key: Key, values: Iterable[Hashable]) -> None:
        for value in values:
            bucket = self._buckets[value]
            del bucket[key]
            if not bucket:
                del self._buckets[value]
