"""Endless reading of a server's stream across cut connections, from exactly where the last one ended.

Owns reconnecting and Last-Event-ID; knows nothing of what the frames mean (the caller's `parse` does).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Generic, Self, TypeVar

from .sse import SseFrame, frames
from .wire import TRIES, AnswerStream, ConnectionLost, Wire, pause_s

T = TypeVar("T")
PATIENCE_S = 60.0


class Following(Generic[T]):
    """An iterator over what a stream says, until its `end`; survives cut connections and server restarts.

    `parse(frame)` gives the item, or None for frames that are of no interest. `close` may be called from another
    thread and ends the iteration. Raises while iterating: ApiError, Unreachable (cut off for `patience_s`).
    """

    def __init__(
        self,
        wire: Wire,
        path: str,
        parse: Callable[[SseFrame], T | None],
        *,
        params: Mapping[str, str] | None = None,
        once: frozenset[str] = frozenset(),
        endless: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`once`: parameters that hold for the first connection only, because a resume goes by Last-Event-ID.
        `endless`: only `end` ends it; else the stream's own orderly close does too.
        """
        self._state = _State()
        self._items = _read(self._state, wire, path, parse, dict(params or {}), once, endless, patience_s)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def closed_after(self, timeout_s: float | None) -> Iterator[None]:
        """Within it the iteration ends after `timeout_s` at the latest (None: never); then the stream is closed."""
        timer = threading.Timer(timeout_s or 0, self.close)
        timer.daemon = True
        if timeout_s is not None:
            timer.start()
        try:
            yield
        finally:
            self.close()
            timer.cancel()

    def close(self) -> None:
        """End the iteration and give its connection back, from whichever thread."""
        self._state.abort()
        with contextlib.suppress(ValueError):  # another thread is reading: it was just woken, and does this itself
            self._items.close()


class _State:
    """What both threads know of a stream being read."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.stream: AnswerStream | None = None

    def abort(self) -> None:
        """Wake the reader, and let it end."""
        self.closed.set()
        if (stream := self.stream) is not None:
            stream.abort()


def _read(
    state: _State,
    wire: Wire,
    path: str,
    parse: Callable[[SseFrame], T | None],
    params: Mapping[str, str],
    once: frozenset[str],
    endless: bool,
    patience_s: float,
) -> Generator[T, None, None]:
    """Knows neither its iterator nor the `Following`, so that an abandoned one is closed at once by reference counting.

    Left to the garbage collector, its connection would stay open for as long.
    """
    last_id: str | None = None
    tries, connected_once, cut_at = 0, False, time.monotonic()
    while not state.closed.is_set():
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        sent = {name: value for name, value in params.items() if last_id is None or name not in once}
        try:
            with wire.stream(path, params=sent, headers=headers) as stream:
                state.stream = stream
                if state.closed.is_set():  # closed while we connected: nothing else will abort this one
                    return
                connected_once = True
                for frame in frames(stream.chunks()):
                    tries = 0
                    last_id = frame.id or last_id
                    item = parse(frame)
                    if item is not None:
                        yield item
                    if frame.event == "end" or state.closed.is_set():
                        return
                if not endless:
                    return
                raise ConnectionLost("it closed the stream before its end")
        except ConnectionLost as error:
            lost = error
        finally:
            state.stream = None
        tries += 1
        if tries == 1:
            cut_at = time.monotonic()
        given_up = time.monotonic() - cut_at > patience_s if connected_once else tries >= TRIES
        if given_up and not state.closed.is_set():
            raise wire.unreachable(lost)
        state.closed.wait(pause_s(tries, lost.retry_after_s))
