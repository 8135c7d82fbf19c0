"""A watch of the API server that lasts: resumed where it was, whatever closes it.

Owns lines, bookmarks, resuming after a clean end, and the cut-off of a connection that has fallen silent. What can't be
resumed here is raised: Gone (list anew) or Unavailable (`WatchCache` backs off and comes back). Never holds objects.
Called by `store.KubeStore`.

Source: Kubernetes API concepts, "Efficient detection of changes", "Watch bookmarks", "Streaming lists".
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from stoker.spec.meta import Resource
from stoker.store.port import Gone, Page, Unavailable, WatchEvent, WatchType

from .client import Call, KubeClient
from .codec import Bookmark, Codec
from .errors import Status, Throttled, to_error

T = TypeVar("T", bound=Resource)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a watch may last and how long be silent. Units: seconds."""

    silence_s: float = 70.0
    """Bookmarks come about once a minute, so longer silence is a dead connection."""
    lasts_s: tuple[float, float] = (300.0, 600.0)
    """The server ends a watch somewhere between, so that not all end at once and load spreads over its replicas."""
    pause_s: float = 0.1
    """At most, after a clean end."""


async def follow(
    client: KubeClient,
    codec: Codec[T],
    call: Call,
    path: str,
    query: dict[str, str],
    since: str,
    patience: Patience,
    rng: random.Random,
) -> AsyncGenerator[WatchEvent[T], None]:
    """The changes after `since`, without end. Raises: Gone, Unavailable, Forbidden."""
    version, barren = since, 0
    while True:
        began, first = client.clock.monotonic(), version
        async with contextlib.aclosing(_stream(client, codec, call, path, query, version, patience, rng)) as events:
            async for event in events:
                version = event.resource_version
                yield event
        if version != first or client.clock.monotonic() - began > 1.0:
            barren = 0
            await client.clock.sleep(rng.uniform(0.0, patience.pause_s))
        else:  # closed at once, with nothing to say: a server that keeps doing so is left in peace
            barren += 1
            await client.clock.sleep(client.backoff_s(barren))


async def stream_list(
    client: KubeClient, codec: Codec[T], call: Call, path: str, query: dict[str, str], patience: Patience
) -> Page[T]:
    """All objects by a streaming list: decoded one by one as they come, without a copy of the whole on either side.

    Raises: Invalid where the server offers none; Gone, Unavailable, Forbidden.
    """
    asked = query | {
        "watch": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    found: list[T] = []
    async with client.stream(call, path, asked, silence_s=patience.silence_s) as content:
        async for raw in lines(content):
            event = codec.line(raw)
            if isinstance(event, Bookmark):
                if event.initial_end:
                    return Page(tuple(found), event.resource_version)
            elif isinstance(event, Status):
                raise _ended(event, call)
            elif event.type is WatchType.ADDED and event.object is not None:
                found.append(event.object)
            elif event.type is not WatchType.DELETED:
                raise Unavailable(f"{call}: {event.type} before the list was complete")
    raise Unavailable(f"{call}: the stream ended before the list was complete")


async def lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Whole lines; the half one that a broken connection leaves is dropped. Others get a turn between chunks."""
    rest = b""
    while True:
        chunk = await content.readany()
        if not chunk:
            return
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        for part in parts:
            if part:
                yield part
        await asyncio.sleep(0)


async def _stream(
    client: KubeClient,
    codec: Codec[T],
    call: Call,
    path: str,
    query: dict[str, str],
    since: str,
    patience: Patience,
    rng: random.Random,
) -> AsyncGenerator[WatchEvent[T], None]:
    """One connection's events."""
    asked = query | {
        "watch": "true",
        "resourceVersion": since,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(max(1, round(rng.uniform(*patience.lasts_s)))),
    }
    try:
        async with client.stream(call, path, asked, silence_s=patience.silence_s) as content:
            async for raw in lines(content):
                event = codec.line(raw)
                if isinstance(event, WatchEvent):
                    yield event
                elif isinstance(event, Bookmark):
                    yield WatchEvent(WatchType.BOOKMARK, event.resource_version)
                else:
                    raise _ended(event, call)
    except Throttled as error:
        await client.clock.sleep(error.retry_after_s * rng.uniform(1.0, 1.5))
        raise


def _ended(status: Status, call: Call) -> Gone | Unavailable:
    error = to_error(status, str(call))
    return error if isinstance(error, Gone | Unavailable) else Unavailable(str(error))
