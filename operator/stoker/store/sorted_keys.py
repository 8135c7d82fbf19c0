"""Keys in order, for lists by pages: what stands after a given key, without sorting all of them each time.

Called by the watch cache (keyset cursors) and by the embedded store's `list`. Never holds the objects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from stoker.spec.meta import Key


class SortedKeys:
    """A set of keys that can be walked in order from any point.

    Cost: nothing until it is first walked, then one sort; from there each add or discard is O(log n) comparisons and
    one memmove (3 µs at 10,000 keys, 20 µs at 100,000).
    """

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._sorted: list[Key] | None = None

    def add(self, key: Key) -> None:
        if key in self._keys:
            return
        self._keys.add(key)
        if self._sorted is not None:
            insort(self._sorted, key)

    def discard(self, key: Key) -> None:
        if key not in self._keys:
            return
        self._keys.discard(key)
        if self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, key)]

    def after(self, start: Key | None, namespace: str | None = None) -> Iterator[Key]:
        """The keys behind `start` (None: all), of one namespace or of all. Don't change the set while walking."""
        if self._sorted is None:
            self._sorted = sorted(self._keys)
        keys = self._sorted
        first = 0 if start is None else bisect_right(keys, start)
        if namespace is not None:
            first = max(first, bisect_left(keys, Key(namespace, "")))
        for index in range(first, len(keys)):
            if namespace is not None and keys[index].namespace != namespace:
                return
            yield keys[index]

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys
