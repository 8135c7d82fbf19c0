"""A keyed work queue for reconcile loops, with the semantics of client-go's workqueue.

Owns which keys wait, which are being worked on and which are due later. A key waits once however often it is added;
added while it is worked on, it runs once more after `done`; it is never handed out twice at a time. Work that has begun
goes before new work (`behind`), which still gets every fourth turn. Never runs work itself: controllers loop over `get`
and `done`.

Source: client-go `util/workqueue` (queue.go, delaying_queue.go, default_rate_limiters.go); jitter and lanes are ours.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from .clock import Clock

K = TypeVar("K", bound=Hashable)

_LONGEST_SLEEP_S = 60.0  # asyncio's timers stand still while the machine is suspended; the clock may not

_IN_A_ROW = 3
"""Keys handed out before one of those behind them."""
_FEW = 16
"""Entries that are due no more and not worth a sweep."""


class QueueShutDown(Exception):
    """The queue was shut down and nothing waits in it any more."""


class WorkQueue(Generic[K]):
    """Cost: about 0.5 µs per key through add, get and done (tools/bench/store.py)."""

    def __init__(
        self,
        clock: Clock,
        *,
        base_s: float = 0.1,
        cap_s: float = 60.0,
        jitter: float = 0.2,
        rng: random.Random | None = None,
    ) -> None:
        """The n-th back-off of a key is `base_s * 2**n`, at most `cap_s`, times 1 ± `jitter`."""
        self._clock = clock
        self._base_s, self._cap_s, self._jitter = base_s, cap_s, jitter
        self._rng = rng or random.Random()
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._behind: OrderedDict[K, None] = OrderedDict()
        self._in_a_row = 0
        self._dirty: dict[K, bool] = {}  # wants a run, behind or not: waits, or is added again while at work
        self._at_work: set[K] = set()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._due_at: dict[K, float] = {}
        self._later: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._timer: asyncio.Task[None] | None = None
        self._timer_due_at = 0.0
        self._failures: dict[K, int] = {}
        self._shut = False

    def add(self, key: K, *, behind: bool = False) -> None:
        """Let the key be worked on as soon as a worker is free. `behind`: it begins something, so it may wait for those
        that go on."""
        waits_behind = self._dirty.get(key)
        if self._shut or waits_behind is False or (waits_behind and behind):
            return
        self._dirty[key] = behind
        if key not in self._at_work:
            self._put(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add the key in `delay_s` seconds; of several such the earliest counts."""
        if self._shut:
            return
        if delay_s <= 0:
            self.add(key)
            return
        due_at = self._clock.monotonic() + delay_s
        if self._due_at.get(key, due_at + 1) <= due_at:
            return
        self._due_at[key] = due_at
        heapq.heappush(self._later, (due_at, next(self._order), key))
        if self._timer is None or due_at < self._timer_due_at:
            self._restart_timer()

    def add_backoff(self, key: K) -> float:
        """Add the key after its back-off, which grows with each call until `forget`. Returns: the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(self._cap_s, self._base_s * 2.0 ** min(failures, 60))
        delay_s *= 1 + self._jitter * (2 * self._rng.random() - 1)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """The key went well: its next back-off starts from the beginning."""
        self._failures.pop(key, None)

    def drop_due(self, key: K) -> None:
        """The key is not due any more. What is due for a key that is gone would else be kept until then."""
        self._due_at.pop(key, None)
        if len(self._later) > 2 * len(self._due_at) + _FEW:
            self._later = [entry for entry in self._later if self._due_at.get(entry[2]) == entry[0]]
            heapq.heapify(self._later)

    async def get(self) -> K:
        """The next key, now the caller's until `done(key)`. Raises: QueueShutDown."""
        while not len(self):
            if self._shut:
                raise QueueShutDown
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(woken)
            try:
                await woken
            except asyncio.CancelledError:
                # Woken and cancelled at once: the key this one was woken for must not be left lying.
                if woken.done() and not woken.cancelled() and len(self):
                    self._wake_one()
                raise
        is_behind = not self._ready or (self._in_a_row >= _IN_A_ROW and len(self._behind) > 0)
        self._in_a_row = 0 if is_behind else self._in_a_row + 1
        key, _ = (self._behind if is_behind else self._ready).popitem(last=False)
        del self._dirty[key]
        self._at_work.add(key)
        return key

    def done(self, key: K) -> None:
        """The caller of `get` has finished with the key; it waits again if it was added meanwhile."""
        self._at_work.discard(key)
        if key in self._dirty:
            self._put(key)

    def shutdown(self) -> None:
        """Take no more keys, drop those not due yet, and let `get` raise once the waiting ones are handed out."""
        self._shut = True
        self._later.clear()
        self._due_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._getters:
            self._wake_one()

    def __len__(self) -> int:
        """Keys that wait to be handed out (not those at work or due later)."""
        return len(self._ready) + len(self._behind)

    @property
    def delayed(self) -> int:
        """Keys that are due later."""
        return len(self._due_at)

    def _put(self, key: K) -> None:
        self._behind.pop(key, None)
        (self._behind if self._dirty[key] else self._ready)[key] = None
        self._wake_one()

    def _wake_one(self) -> None:
        while self._getters:
            woken = self._getters.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_at = self._later[0][0]
        self._timer = asyncio.get_running_loop().create_task(self._add_when_due())

    async def _add_when_due(self) -> None:
        while self._later:
            due_at, _, key = self._later[0]
            self._timer_due_at = due_at
            wait_s = due_at - self._clock.monotonic()
            if wait_s > 0:
                await self._clock.sleep(min(wait_s, _LONGEST_SLEEP_S))
                continue
            heapq.heappop(self._later)
            if self._due_at.get(key) == due_at:  # else an earlier entry of this key has come first, or it was dropped
                del self._due_at[key]
                self.add(key)
        self._timer = None
