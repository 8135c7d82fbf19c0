"""How many requests are under way at once: one limit for the whole process, which learns from the API server.

Owns the window (requests under way), its growth and its cuts, and the order of waiting requests. Never sends, retries
or measures requests itself. Called by `client.KubeClient` around every request.

There is no rate: a server that answers in 2 ms gets more from the same window than one that needs 200. The window grows
by one per round of good answers while it is what holds us back, and is halved, once per round, when the server says 429
or gives no answer in time: additive increase, multiplicative decrease, as TCP does (Chiu and Jain, 1989). Lanes keep
small reads and lease renewals from standing in line behind thousands of creates.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from enum import Enum

from stoker.store.clock import Clock


class RequestLane(Enum):
    """Requests that wait in one line."""

    URGENT = "urgent"
    """Lease renewals: never wait here at all (the server keeps a priority level of its own for them too)."""
    READ = "read"
    WRITE = "write"
    BACKGROUND = "background"
    """Events: a courtesy, so a fifth of the turns while the others wait."""


_TURNS = (RequestLane.READ, RequestLane.WRITE, RequestLane.READ, RequestLane.WRITE, RequestLane.BACKGROUND)


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """One request's leave to be under way."""

    lane: RequestLane
    round: int


class AdaptiveLimit:
    """Cost: 2.6 µs per request that need not wait."""

    def __init__(self, clock: Clock, *, start: int = 16, most: int = 128, rng: random.Random | None = None) -> None:
        """`start`: the first window; `most`: the widest."""
        self._clock, self._most, self._rng = clock, most, rng or random.Random()
        self._window = float(start)
        self._under_way = 0
        self._round = 0
        self._turn = 0
        self._waiting: dict[RequestLane, deque[asyncio.Future[None]]] = {
            lane: deque() for lane in dict.fromkeys(_TURNS)
        }
        self._paused_until = 0.0
        self._wake: asyncio.Task[None] | None = None
        self.refusals = 0
        """Answers so far that said: too many (429), or that did not come in time."""

    @property
    def window(self) -> int:
        """Requests that may be under way now."""
        return int(self._window)

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return sum(len(line) for line in self._waiting.values())

    async def enter(self, lane: RequestLane) -> RequestSlot:
        """Leave to send one request, as soon as there is room. Hand it back to `leave`, whatever comes of it."""
        if lane is RequestLane.URGENT:
            return RequestSlot(lane, self._round)
        if self._has_room() and not self.waiting:
            self._under_way += 1
            return RequestSlot(lane, self._round)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[lane].append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # let in and cancelled at once: pass the room on
                self._under_way -= 1
                self._let_in()
            raise
        return RequestSlot(lane, self._round)

    def leave(self, slot: RequestSlot, *, refused: bool = False, retry_after_s: float = 0.0) -> None:
        """The request is over. `refused`: the server had too much to do (429) or did not answer in time."""
        if slot.lane is RequestLane.URGENT:
            return
        full = self._under_way >= self.window
        self._under_way -= 1
        if refused:
            self.refusals += 1
            self._narrow(slot, retry_after_s)
        elif full:
            self._window = min(float(self._most), self._window + 1 / self._window)
        self._let_in()

    def _narrow(self, slot: RequestSlot, retry_after_s: float) -> None:
        if self.window == 1:  # nothing left to give up but time: everybody waits as the server asks
            pause_s = max(retry_after_s, 0.1) * self._rng.uniform(1.0, 1.25)
            self._paused_until = max(self._paused_until, self._clock.monotonic() + pause_s)
        if slot.round == self._round:  # others of the same round say the same thing: once is enough
            self._round += 1
            self._window = max(1.0, self._window / 2)

    def _has_room(self) -> bool:
        return self._under_way < self.window and self._clock.monotonic() >= self._paused_until

    def _let_in(self) -> None:
        while self.waiting and self._under_way < self.window:
            pause_s = self._paused_until - self._clock.monotonic()
            if pause_s > 0:
                if self._wake is None:
                    self._wake = asyncio.get_running_loop().create_task(self._wake_after(pause_s))
                return
            turn = self._next()
            if turn is not None:
                self._under_way += 1
                turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """The next in line; None: it has gone away."""
        while True:
            line = self._waiting[_TURNS[self._turn]]
            self._turn = (self._turn + 1) % len(_TURNS)
            if line:
                turn = line.popleft()
                return None if turn.done() else turn

    async def _wake_after(self, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        self._wake = None
        self._let_in()
