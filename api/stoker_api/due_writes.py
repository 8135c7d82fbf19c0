"""When each job's status is to be written next, and how often it may be.

Plain state, time as an argument (monotonic seconds). Kept by the boards of progress (`jobs/progress.py`) and of usage
(`usage/board.py`), each for its own part of the status.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

WRITE_EVERY_S = 60.0
RETRY_S = 5.0


class DueWrites:
    """By the job's uid, at most one time each: the earliest that was asked for."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    @property
    def next_s(self) -> float | None:
        """No write is due before; None: none is due at all."""
        return self._heap[0][0] if self._heap else None

    def add(self, uid: str, at_s: float) -> None:
        if at_s < self._at_s.get(uid, float("inf")):
            self._at_s[uid] = at_s
            heapq.heappush(self._heap, (at_s, uid))

    def remove(self, uid: str) -> None:
        self._at_s.pop(uid, None)

    def take(self, now_s: float) -> Iterator[str]:
        """The jobs whose time has come, each once."""
        while self._heap and self._heap[0][0] <= now_s:
            at_s, uid = heapq.heappop(self._heap)
            if self._at_s.get(uid) == at_s:  # else removed, or due at another time
                del self._at_s[uid]
                yield uid
