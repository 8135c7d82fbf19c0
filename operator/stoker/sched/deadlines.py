"""When each of some jobs is due.

Owns the times and their order; every change can be undone. Called by `state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stoker.spec.meta import Key

from .journal import Journal
from .sorted_list import SortedList


class Deadlines:
    """Many are due at one time: what was decided together. Cost: O(sqrt times) for a change; O(due) to ask who is."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._due: dict[Key, datetime] = {}
        self._at: dict[datetime, dict[Key, None]] = {}
        """The same by time."""
        self._times: SortedList[tuple[datetime]] = SortedList()
        """Those of `_at`."""

    def set(self, key: Key, at: datetime | None) -> None:
        """None: never."""
        old = self._due.get(key)
        if old is not None and old != at:
            keys = self._at[old]
            self._journal.drop(keys, key)
            self._journal.drop(self._due, key)
            if not keys:
                self._journal.drop(self._at, old)
                self._times.remove((old,))
                self._journal.note(self._times.add, (old,))
        if at is not None and old != at:
            self.add((key,), at)

    def add(self, keys: Sequence[Key], at: datetime) -> None:
        """For those of which none is due yet."""
        if at not in self._at:
            self._journal.put(self._at, at, {})
            self._times.add((at,))
            self._journal.note(self._times.remove, (at,))
        self._journal.put_all(self._at[at], dict.fromkeys(keys))
        self._journal.put_all(self._due, dict.fromkeys(keys, at))

    def at(self, key: Key) -> datetime | None:
        return self._due.get(key)

    @property
    def first(self) -> datetime | None:
        return self._times.first()[0] if self._times else None

    def due(self, now: datetime) -> list[Key]:
        found = list[Key]()
        for (at,) in self._times:
            if at > now:
                break
            found += sorted(self._at[at])
        return found
