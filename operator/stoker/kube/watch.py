"""A watch of the API server that lasts: resumed where it was when the server ends it.

Owns lines, bookmarks, resuming after a clean end, and streaming lists. What can't be resumed here is raised: Gone (list
anew) or Unavailable (`WatchCache` backs off and comes back). Never holds objects. Called by `store.KubeStore`.

Source: Kubernetes API concepts, "Efficient detection of changes", "Watch bookmarks", "Streaming lists".
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stoker.spec.meta import Resource
from stoker.store.port import Gone, Page, StoreError, Unavailable, WatchEvent, WatchType

from .client import Call, KubeClient
from .codec import Bookmark, Codec
from .errors import Status, Throttled, to_error
from .stream import ByteStream

T = TypeVar("T", bound=Resource)


@dataclass(frozen=True, slots=True)
class WatchPatience:
    """How long a watch may last and how long be silent. Units: seconds."""

    silence_s: float = 100.0
    """Bookmarks come about once a minute (the first was seen after 75 s), so longer silence is a dead connection."""
    lasts_s: tuple[float, float] = (300.0, 600.0)
    """The server ends a watch somewhere between, so that not all end at once and load spreads over its replicas."""
    pause_s: float = 0.1
    """At most, after a clean end."""


@dataclass(frozen=True)
class WatchSource(Generic[T]):
    """What is watched or listed, and how."""

    client: KubeClient
    codec: Codec[T]
    path: str
    query: dict[str, str]
    patience: WatchPatience
    rng: random.Random

    async def open(self, call: Call, query: dict[str, str]) -> ByteStream:
        asked = self.query | {"watch": "true", "allowWatchBookmarks": "true"} | query
        return await self.client.stream(call, self.path, asked, silence_s=self.patience.silence_s)


@dataclass
class LineSplitter:
    """Whole lines out of chunks; the half one that a broken connection leaves is dropped."""

    rest: bytes = b""

    def of(self, chunk: bytes) -> list[bytes]:
        parts = (self.rest + chunk).split(b"\n")
        self.rest = parts.pop()
        return [part for part in parts if part]


@dataclass
class KubeWatch(Generic[T]):
    """The iterator: changes after `version`, without end. It may simply be dropped.

    Raises: Gone, Unavailable, Forbidden.
    """

    source: WatchSource[T]
    version: str
    """How far the stream has been read."""
    _ready: deque[WatchEvent[T]] = field(default_factory=deque)
    _failed: StoreError | None = None
    _stream: ByteStream | None = None
    _lines: LineSplitter = field(default_factory=LineSplitter)
    _barren: int = 0
    _opened_at: float = 0.0
    _opened_version: str = ""
    _heard_at: float = float("-inf")

    def __aiter__(self) -> KubeWatch[T]:
        return self

    async def __anext__(self) -> WatchEvent[T]:
        while not self._ready:
            if self._failed is not None:
                raise self._taken_failure()
            if not self.version.isdecimal():
                raise Gone(f"version {self.version!r} is not of this store: list again")
            if self._stream is None:
                await self._open()
            else:
                await self._read(self._stream)
        return self._ready.popleft()

    def silent_s(self) -> float:
        """Since the server last opened this watch or sent something on it. Grows to `WatchPatience.silence_s` and
        beyond only while the server can't be reached."""
        return self.source.client.clock.monotonic() - self._heard_at

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def _open(self) -> None:
        source = self.source
        call = Call("watch", str(source.codec.kind))
        lasts_s = max(1, round(source.rng.uniform(*source.patience.lasts_s)))
        query = {"resourceVersion": self.version, "timeoutSeconds": str(lasts_s)}
        self._opened_at, self._opened_version, self._lines = (
            source.client.clock.monotonic(),
            self.version,
            LineSplitter(),
        )
        try:
            self._stream = await source.open(call, query)
            self._heard_at = source.client.clock.monotonic()
        except Throttled as error:
            await source.client.clock.sleep(error.retry_after_s * source.rng.uniform(1.0, 1.5))
            raise

    async def _read(self, stream: ByteStream) -> None:
        chunk = await stream.read()
        if not chunk:
            self.close()
            await self._pause()
            return
        self._heard_at = self.source.client.clock.monotonic()
        for raw in self._lines.of(chunk):
            try:
                event = self.source.codec.line(raw)
            except ValueError as error:
                self._fail(Unavailable(f"watch of {self.source.codec.kind}: {raw[:100]!r} is no event: {error}"))
                return
            if isinstance(event, Bookmark):
                event = WatchEvent(WatchType.BOOKMARK, event.resource_version)
            elif isinstance(event, Status):
                self._fail(_ended(event, f"watch {self.source.codec.kind}"))
                return
            self.version = event.resource_version
            self._ready.append(event)

    def _fail(self, error: StoreError) -> None:
        """Raised once what came before it has been handed out."""
        self._failed = error
        self.close()

    def _taken_failure(self) -> StoreError:
        """Not held any more: its traceback will hold this watch and all that came by it."""
        assert self._failed is not None
        try:
            return self._failed
        finally:
            self._failed = None

    async def _pause(self) -> None:
        """Before the watch is opened again. A server that ends it at once, with nothing to say, is left in peace."""
        client, source = self.source.client, self.source
        if self.version != self._opened_version or client.clock.monotonic() - self._opened_at > 1.0:
            self._barren = 0
            await client.clock.sleep(source.rng.uniform(0.0, source.patience.pause_s))
        else:
            self._barren += 1
            await client.clock.sleep(client.backoff_s(self._barren))


async def stream_list(source: WatchSource[T]) -> Page[T]:
    """All objects by a streaming list: decoded one by one as they come, no copy of the whole on either side.

    Raises: Invalid where the server offers none; Gone, Unavailable, Forbidden.
    """
    call, found, lines = Call("list", str(source.codec.kind), timeout_s=60.0), [], LineSplitter()
    with await source.open(call, {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}) as stream:
        while chunk := await stream.read():
            for raw in lines.of(chunk):
                try:
                    event = source.codec.line(raw)
                except ValueError as error:
                    raise Unavailable(f"{call}: {raw[:100]!r} is no event: {error}") from error
                if isinstance(event, Status):
                    raise _ended(event, str(call))
                if isinstance(event, WatchEvent):
                    if event.type is WatchType.ADDED and event.object is not None:
                        found.append(event.object)
                elif event.initial_end:
                    return Page(tuple(found), event.resource_version)
    raise Unavailable(f"{call}: the stream ended before the list was complete")


def _ended(status: Status, what: str) -> StoreError:
    error = to_error(status, what)
    return error if isinstance(error, Gone | Unavailable) else Unavailable(str(error))
