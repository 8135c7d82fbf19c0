"""How long events are kept: the newest so many, and the newest so many of each object, so that the file can't grow
without end.

Owns the order in which events came. Kubernetes drops events after an hour; we count instead, so that a quiet machine
still knows last week. Never deletes by itself: `store.EmbeddedStore` asks what is over the limit.
"""

from __future__ import annotations

from collections import defaultdict

from stoker.spec.event import Event
from stoker.spec.meta import Key


class EventRetention:
    """Cost: constant per event."""

    def __init__(self, limit: int, limit_per_object: int) -> None:
        self._limit, self._limit_per_object = limit, limit_per_object
        self._about: dict[Key, str] = {}  # event -> its object, oldest first
        self._of: defaultdict[str, dict[Key, None]] = defaultdict(dict)  # object -> its events, oldest first

    def see(self, event: Event) -> list[Key]:
        """Take note of a new event. Returns: the oldest ones that are too many now; they count as gone from here."""
        about = event.involved_object
        name = about.uid or f"{about.kind}/{about.namespace}/{about.name}"
        self.lose(event.key)
        self._about[event.key] = name
        self._of[name][event.key] = None
        over: list[Key] = []
        if len(self._of[name]) > self._limit_per_object:
            over.append(next(iter(self._of[name])))
            self.lose(over[-1])
        if len(self._about) > self._limit:
            over.append(next(iter(self._about)))
            self.lose(over[-1])
        return over

    def lose(self, key: Key) -> None:
        """The event is gone."""
        name = self._about.pop(key, None)
        if name is not None:
            self._of[name].pop(key, None)
            if not self._of[name]:
                del self._of[name]
