"""What waits to be pushed: bounded, small, oldest first out.

Owns the samples not yet taken by the receiver, and staleness markers of series that end. A series' labels are encoded
once; a poll is one array of values beside a list of series that it shares with its neighbours as long as nothing
changes: 8 bytes a sample, 12 where series come and go at every poll. Never sends. `add` is called by the polling
thread, the rest by the sender's.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import Sample

from . import protobuf

_STRAY_SERIES = 4096
"""Encoded series that nothing refers to any more, before they are looked for and let go."""
LABEL_BYTES = 64 << 20
"""Of all series that wait, so that ever new labels in an outage take no more than that."""


@dataclass(slots=True)
class _Poll:
    """Samples of one moment."""

    at_ms: int
    series: array[int]
    values: array[float] | None
    """None: each is a staleness marker."""
    begin: int = 0
    """Those before it have been taken already."""

    def __len__(self) -> int:
        return len(self.series) - self.begin


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """The oldest samples, out of the buffer and not yet with the receiver."""

    count: int
    request: bytes
    """Protobuf, not compressed."""


class Buffer:
    """At most `most` samples; with one more the oldest go, a whole poll's at a time."""

    def __init__(self, most: int, more: Mapping[str, str]) -> None:
        """`more`: labels that every series gets unless it has them."""
        self._most, self._more = most, dict(more)
        self._polls: deque[_Poll] = deque()
        self._held = self._label_bytes = 0
        self.in_flight = 0
        """Of the batch taken last; the sender's to reset. With `len`, asked for first, never less than what waits."""
        self._dropped = 0
        self._number: dict[bytes, int] = {}
        self._labels: dict[int, bytes] = {}
        self._next = 0
        self._now: array[int] = array("I")
        """The series of the newest poll."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._held

    @property
    def dropped(self) -> int:
        """Samples that fell out for want of room."""
        return self._dropped

    def add(self, at: float, samples: Iterable[Sample]) -> None:
        """All samples of a poll at `at` (unix seconds). Series that were there before and are not now end here.

        Of a series that comes twice the last counts: a receiver refuses the whole request for one with both.
        """
        encoded = {protobuf.series(one.name, one.labels, self._more): one.value for one in samples}
        with self._lock:
            now = array("I", [self._number_of(labels) for labels in encoded])
            ended = array("I", sorted(set(self._now).difference(now))) if now != self._now else array("I")
            if now == self._now:
                now = self._now  # shared, not kept twice
            self._now = now
            self._put(_Poll(round(at * 1000), ended, None))
            self._put(_Poll(round(at * 1000), now, array("d", encoded.values())))
            self._forget_series()
            while self._label_bytes > LABEL_BYTES and self._polls:
                for _ in range(1 + len(self._polls) // 4):
                    self._drop_oldest()
                self._forget_series(at_once=True)

    def end(self, at: float) -> None:
        """Every series ends at `at`."""
        self.add(at, ())

    def take(self, most: int) -> SampleBatch | None:
        """Up to `most` of the oldest samples, or None where there are none."""
        with self._lock:
            found: dict[int, bytearray] = {}
            count = 0
            while self._polls and count < most:
                poll = self._polls[0]
                until = min(poll.begin + most - count, len(poll.series))
                for place in range(poll.begin, until):
                    value = protobuf.STALE if poll.values is None else protobuf.double(poll.values[place])
                    found.setdefault(poll.series[place], bytearray()).extend(protobuf.sample(value, poll.at_ms))
                count += until - poll.begin
                poll.begin = until
                if not len(poll):
                    self._polls.popleft()
            self.in_flight = count
            self._held -= count
            if not count:
                return None
            return SampleBatch(
                count, protobuf.request((self._labels[series], bytes(found[series])) for series in found)
            )

    def _put(self, poll: _Poll) -> None:
        if not len(poll):
            return
        self._polls.append(poll)
        self._held += len(poll)
        while self._held > self._most:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        gone = len(self._polls.popleft())
        self._held -= gone
        self._dropped += gone

    def _number_of(self, labels: bytes) -> int:
        number = self._number.get(labels)
        if number is None:
            number = self._next
            self._next += 1
            self._number[labels], self._labels[number] = number, labels
            self._label_bytes += len(labels)
        return number

    def _forget_series(self, at_once: bool = False) -> None:
        if not at_once and len(self._labels) <= 2 * len(self._now) + _STRAY_SERIES:
            return
        used = set(self._now).union(*(poll.series for poll in self._polls))
        self._labels = {number: labels for number, labels in self._labels.items() if number in used}
        self._number = {labels: number for number, labels in self._labels.items()}
        self._label_bytes = sum(map(len, self._number))
