"""How crowds take turns on the event loop, so that everything else has room: `Rounds` for requests that come and start,
connections that end and readers that wake; `Pacing` for followers that arrive, read and frame. Both wait a little for
the ordinary requests `UnderWay`.

Without them a thousand followers of one log are all ready at once, and a request waits behind all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator

_PATIENCE_S = 0.004
"""About what a submit takes."""
_LOOK_AGAIN_S = 0.001
_LONG_S = 0.05
_SLICE_S = 0.000_5
_AFTER_S = 0.000_15
"""What follows a turn and is not in it: sending."""
_REST = 3


class UnderWay:
    """The ordinary requests (no streams) that are being answered.

    A submit takes several turns of the loop; a crowd that took its share of each would make it several times as slow.
    """

    def __init__(self) -> None:
        self._begun: dict[object, float] = {}

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A request is under way while inside."""
        itself = object()
        self._begun[itself] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._begun[itself]

    def first(self, then: Callable[[], object], until_s: float | None = None) -> None:
        """Call `then` once no request is under way, in 4 ms at the latest (`until_s`, by the loop's clock).

        One that takes over 50 ms waits for something itself (a body that does not come), and is no longer waited for.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        newest_s = self._begun[next(reversed(self._begun))] if self._begun else now_s - _LONG_S
        until_s = now_s + _PATIENCE_S if until_s is None else until_s
        if now_s < min(until_s, newest_s + _LONG_S):
            loop.call_later(_LOOK_AGAIN_S, self.first, then, until_s)
        else:
            then()


class Rounds:
    """First come, first served; who comes alone never waits.

    A round is a turn of the loop. With `rest_s` a crowd rests between two of them, that what takes others several turns
    (a submit) does not meet it in each; with `under_way` it waits for these too. uvloop counts in milliseconds.
    """

    def __init__(self, at_once: int, rest_s: float = 0.0, under_way: UnderWay | None = None) -> None:
        self._at_once = self._left = at_once
        self._rest_s = rest_s
        self._go_on = self._next if under_way is None else functools.partial(under_way.first, self._next)
        self._waiting: deque[Callable[[], object]] = deque()
        """False: it no longer waits, and its place is another's."""
        self._counting = False

    def call(self, what: Callable[[], None]) -> None:
        """Call it now, or in the next round that has room."""
        if self._take():
            what()
        else:
            self._waiting.append(what)

    async def turn(self) -> None:
        """Go on now, or in the next round that has room."""
        if not self._take():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(functools.partial(_wake, turn))
            await turn

    def _take(self) -> bool:
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def _next(self) -> None:
        self._left = self._at_once
        self._counting = bool(self._waiting)
        if self._counting:
            loop = asyncio.get_running_loop()
            if self._rest_s:
                loop.call_later(self._rest_s, self._go_on)
            else:
                loop.call_soon(self._go_on)
        while self._waiting and self._left:
            if self._waiting.popleft()() is not False:
                self._left -= 1


def _wake(turn: asyncio.Future[None]) -> bool:
    if turn.done():
        return False
    turn.set_result(None)
    return True


class Pacing:
    """`async with pacing:` around what a follower costs; first come, first served.

    Invariant: while others wait, followers take about a quarter of the loop's time, a millisecond at a stretch; less
    while ordinary requests are under way. A lone follower never rests.
    """

    def __init__(self, under_way: UnderWay) -> None:
        self._under_way = under_way
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._spent_s = self._begun_s = 0.0

    @property
    def crowded(self) -> bool:
        return self._waiting > 0

    async def __aenter__(self) -> None:
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        self._begun_s = time.thread_time()

    async def __aexit__(self, *_: object) -> None:
        self._spent_s += time.thread_time() - self._begun_s + _AFTER_S
        loop = asyncio.get_running_loop()
        if self._waiting == 0:
            self._spent_s = 0.0
            self._lock.release()
        elif self._spent_s < _SLICE_S:
            loop.call_soon(self._lock.release)
        else:
            loop.call_later(_REST * self._spent_s, self._under_way.first, self._lock.release)
            self._spent_s = 0.0
