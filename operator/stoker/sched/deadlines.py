"""When each of some jobs is due.

Owns the times and their order; every change can be undone. Called by `state`.
"""

from __future__ import annotations

from datetime import datetime

from stoker.spec.meta import Key

from .journal import Journal
from .sorted_list import SortedList


class Deadlines:
    """Cost: O(sqrt n) for a change; O(due) to ask who is."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._due: dict[Key, tuple[datetime, Key]] = {}
        self._sorted: SortedList[tuple[datetime, Key]] = SortedList()
        """The same objects: the first is then found without a search."""

    def set(self, key: Key, at: datetime | None) -> None:
        """None: never."""
        old = self._due.get(key)
        if old is not None:
            self._sorted.remove(old)
            self._journal.note(self._sorted.add, old)
            self._journal.drop(self._due, key)
        if at is not None:
            due = at, key
            self._sorted.add(due)
            self._journal.note(self._sorted.remove, due)
            self._journal.put(self._due, key, due)

    def at(self, key: Key) -> datetime | None:
        due = self._due.get(key)
        return None if due is None else due[0]

    @property
    def first(self) -> datetime | None:
        return self._sorted.first()[0] if self._sorted else None

    def due(self, now: datetime) -> list[Key]:
        found = []
        for at, key in self._sorted:
            if at > now:
                break
            found.append(key)
        return found
