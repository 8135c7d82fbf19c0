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

from .sse import Frame, frames
from .wire import TRIES, Lost, Stream, Wire, pause_s

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
        parse: Callable[[Frame], T | None],
        *,
        params: Mapping[str, str] | None = None,
        once: frozenset[str] = frozenset(),
        endless: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`once`: parameters that hold for the first connection only, because a resume goes by Last-Event-ID.
        `endless`: only `end` ends it; else the stream's own orderly close does too.
        """
        self._reader = _Reader(wire, path, parse, dict(params or {}), once, endless, patience_s)
        self._items = self._reader.read()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and give its connection back, from whichever thread."""
        self._reader.abort()
        with contextlib.suppress(ValueError):  # another thread is reading: it was just woken, and does this itself
            self._items.close()


class _Reader(Generic[T]):
    """One stream being read.

    Knows neither its iterator nor the `Following`, so that an abandoned one is closed at once by reference counting.
    Left to the garbage collector, closing the response could happen inside httpcore's own lock and wait for it forever.
    """

    def __init__(
        self,
        wire: Wire,
        path: str,
        parse: Callable[[Frame], T | None],
        params: Mapping[str, str],
        once: frozenset[str],
        endless: bool,
        patience_s: float,
    ) -> None:
        self._wire = wire
        self._path = path
        self._parse = parse
        self._params = params
        self._once = once
        self._endless = endless
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._stream: Stream | None = None

    def abort(self) -> None:
        """Wake the reader, and let it end."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.abort()

    def read(self) -> Generator[T, None, None]:
        last_id: str | None = None
        tries, connected_once, cut_at = 0, False, time.monotonic()
        while not self._closed.is_set():
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
            params = {name: value for name, value in self._params.items() if last_id is None or name not in self._once}
            try:
                with self._wire.stream(self._path, params=params, headers=headers) as stream:
                    self._stream = stream
                    if self._closed.is_set():  # closed while we connected: nothing else will abort this one
                        return
                    connected_once = True
                    for frame in frames(stream.chunks()):
                        tries = 0
                        last_id = frame.id or last_id
                        item = self._parse(frame)
                        if item is not None:
                            yield item
                        if frame.event == "end" or self._closed.is_set():
                            return
                    if not self._endless:
                        return
                    raise Lost("it closed the stream before its end")
            except Lost as error:
                lost = error
            finally:
                self._stream = None
            tries += 1
            if tries == 1:
                cut_at = time.monotonic()
            given_up = time.monotonic() - cut_at > self._patience_s if connected_once else tries >= TRIES
            if given_up and not self._closed.is_set():
                raise self._wire.unreachable(lost)
            self._closed.wait(pause_s(tries, lost.retry_after_s))
