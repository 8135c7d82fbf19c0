"""Server-Sent Events as bytes, and the response that sends any stream with care.

Owns the wire format (WHATWG HTML §9.2), the bounds on streams (how many, how long a send may take) and their ends: a
client that goes away, one that does not read, a server that stops. FastAPI's own SSE support pings by a fixed rhythm,
pushes through a queue per stream and has nothing for a follower that does not read; hence this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import weakref
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoker.heap import give_back_heap
from stoker_api.connection import LINE, Connection
from stoker_api.metrics import ApiMetrics
from stoker_api.problems import Problem, ProblemCode

EVENT_STREAM = "text/event-stream"
HEARTBEAT = b": still here\n\n"
RETRY = b"retry: 1000\n\n"
"""How long a browser waits before it comes back; sent first, so that it also opens the stream at once."""
_LAST_WORD_S = 1.0
_MANY = 100
_LINE_ENDS = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    heartbeat_s: float = 15.0
    progress_every_s: float = 0.5
    list_every_s: float = 1.0
    """A followed list is read again at most so often."""
    send_timeout_s: float = 30.0
    """A follower that takes nothing for so long is cut off."""
    linger_s: float = 0.25
    """After a job's end its last events are still on their way."""
    max_streams: int = 2000
    of_caller: int = 100


def frame(event: str, data: str, *, event_id: str | None = None) -> bytes:
    """One event. Line ends of any kind in `data` become several data lines."""
    head = f"event: {event}\n" if event_id is None else f"event: {event}\nid: {event_id}\n"
    if "\n" in data or "\r" in data:
        body = "".join(f"data: {line}\n" for line in _LINE_ENDS.split(data))
    else:
        body = f"data: {data}\n"
    return (head + body + "\n").encode("utf-8", "replace")


@dataclass
class StreamHub:
    """All open streams of the app."""

    metrics: ApiMetrics
    settings: StreamSettings = field(default_factory=StreamSettings)
    most: int = field(init=False)
    of_caller: int = field(init=False)
    _producers: set[asyncio.Task[None]] = field(default_factory=set)
    _peak: int = 0
    _of_caller: Counter[str] = field(default_factory=Counter)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.most, self.of_caller = self.settings.max_streams, self.settings.of_caller

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End every stream cleanly, and each new one at once: followers come back and resume elsewhere or later."""
        self._closed = True
        for producer in self._producers:
            producer.cancel()

    def response(self, kind: str, caller: str, frames: AsyncGenerator[bytes, None], media_type: str) -> Response:
        """`caller`: whose stream it is. Raises: Problem (TooManyOwnStreams, TooManyStreams, Unavailable)."""
        if self._closed:
            raise Problem(ProblemCode.UNAVAILABLE, "The server is stopping; come back shortly.", retry_after_s=1)
        if self._of_caller[caller] >= self.of_caller:
            raise Problem(
                ProblemCode.TOO_MANY_OWN_STREAMS,
                f"{caller!r} has {self._of_caller[caller]} streams open, the most one caller may have; close some.",
                retry_after_s=5,
            )
        if len(self._producers) >= self.most:
            raise Problem(
                ProblemCode.TOO_MANY_STREAMS,
                f"{len(self._producers)} streams are open, the most there may be; close some.",
                retry_after_s=5,
            )
        return _Streaming(self, kind, caller, frames, media_type)

    async def serve(self, kind: str, caller: str, producer: asyncio.Task[None], receive: Receive) -> None:
        """Run `producer` to its end, to the client's, or to the server's."""
        self._producers.add(producer)
        self._of_caller[caller] += 1
        self._peak = max(self._peak, len(self._producers))
        gauge = self.metrics.streams.labels(kind)
        gauge.inc()
        watcher = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({watcher, producer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watcher, producer):
                task.cancel()
            await asyncio.gather(watcher, producer, return_exceptions=True)
            self._producers.discard(producer)
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]
            gauge.dec()
            if self._peak > _MANY and len(self._producers) < self._peak // 4:
                self._peak = len(self._producers)
                asyncio.get_running_loop().call_later(_LAST_WORD_S, give_back_heap)


class _Streaming(Response):
    def __init__(
        self, hub: StreamHub, kind: str, caller: str, frames: AsyncGenerator[bytes, None], media_type: str
    ) -> None:
        self._hub, self._kind, self._caller, self._frames = hub, kind, caller, frames
        self.status_code = 200
        self.background = None
        self.media_type = media_type
        self.body = b""
        self.init_headers({"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found: weakref.ref[Connection] | None = scope.get(LINE)
        line = None if found is None else found()
        if line is not None:
            line.limit_buffers()
        producer = asyncio.create_task(self._produce(send, line))
        try:
            await self._hub.serve(self._kind, self._caller, producer, receive)
        finally:
            await self._frames.aclose()
        if self._cut and line is not None:
            line.abort()
            await _disconnected(receive)
        if not producer.cancelled() and (error := producer.exception()) is not None:
            raise error

    async def _produce(self, send: Send, line: Connection | None) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for part in self._frames:
                if line is None:  # another server's
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    continue
                try:
                    self._cut = not await line.push(part, self._hub.settings.send_timeout_s)
                except TimeoutError:
                    self._hub.metrics.shed.labels(self._kind).inc()
                    self._cut = True
                if self._cut:
                    return  # without the end of the body: the connection is cut
        except asyncio.CancelledError:
            if not self._hub.closed:
                raise
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
