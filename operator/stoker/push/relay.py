"""What a process knows, and what others serve to it, pushed by one loop: the agent of a place without a Prometheus.

Owns the rounds: pages are gathered, read, given their target's labels as a scrape gives them, and offered to `Push`.
Pages of users' code are bounded, keep no label and no name that is ours, and go through a buffer and requests of their
own: whatever they hold, Stoker's series are neither displaced nor refused with them. Called by api and operator.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client.core import Sample

from .exposition import parse
from .sender import Push, PushOptions

log = logging.getLogger("stoker.push")

FETCH_S, AT_ONCE = 3.0, 32
"""For a whole page; pages at once."""
OWN_BYTES, OWN_SERIES = 32 << 20, 500_000
FOREIGN_BYTES, FOREIGN_SERIES = 1 << 20, 5_000
"""Of one worker's page."""
ALL_FOREIGN_SERIES = 100_000
"""Of a round; with more, the largest pages are left out."""
IDENTITY = ("job", "instance", "project", "job_name", "job_uid", "attempt", "worker", "queue")
"""Labels that only a target gives."""
SAMPLES, BUFFERED = "stoker_push_samples_total", "stoker_push_buffered_samples"
FAMILIES = {
    SAMPLES: ("counter", "Samples by what became of them: sent, refused, dropped.", ("of", "outcome")),
    BUFFERED: ("gauge", "Samples that wait to be pushed.", ("of",)),
}
"""What is pushed of pushing itself: type, help, labels. `of`: stoker, or trainers."""
_HEAD_BYTES = 64 << 10
_END_S = 2.0
_OURS = re.compile(r"(?!stoker_train_)(stoker[_:]|DCGM_|ALERTS|up$|scrape_)")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,10})[ \t]*\r")


@dataclass(frozen=True)
class MetricsPage:
    """Something with a page of metrics."""

    labels: Mapping[str, str]
    """`job`, `instance`, and whose it is; they replace the page's own."""
    text: bytes | None = None
    """The page, where this process has it."""
    address: str = ""
    """host:port, where it has not."""
    token: str = field(default="", repr=False)
    foreign: bool = False
    """Users' code serves it."""


class Relay:
    def __init__(self, options: PushOptions, gather: Callable[[], Awaitable[Sequence[MetricsPage]]]) -> None:
        """`gather`: what there is to push now; called on the event loop. Raises: OSError, ssl.SSLError (CA file)."""
        self._options, self._gather = replace(options, up=False), gather
        self._own, self._foreign = Push(self._options), Push(self._options)
        self._failed: frozenset[str] = frozenset()
        """Addresses without a page in the round before: they come last."""

    async def run(self) -> None:
        """Until cancelled; then every series ends, and what waits is sent for a moment."""
        for push in (self._own, self._foreign):
            push.start()
        try:
            while True:
                began_s = time.monotonic()
                try:
                    await self._round()
                except Exception:  # the loop's edge: a round that fails is not the last
                    log.exception("a round of pushing failed")
                await asyncio.sleep(max(0.1, self._options.every_s - (time.monotonic() - began_s)))
        finally:
            await asyncio.gather(*(asyncio.to_thread(push.stop, _END_S) for push in (self._own, self._foreign)))

    async def _round(self) -> None:
        sources = sorted(await self._gather(), key=lambda source: source.address in self._failed)
        at, until_s = time.time(), time.monotonic() + 0.8 * self._options.every_s
        room = asyncio.Semaphore(AT_ONCE)

        async def page(source: MetricsPage) -> bytes | None:
            if source.text is not None:
                return source.text
            async with room:
                return await _fetched(source) if time.monotonic() < until_s else None

        pages = await asyncio.gather(*map(page, sources))
        found = list(zip(sources, pages, strict=True))
        self._failed = frozenset(source.address for source, text in found if text is None)
        await asyncio.to_thread(self._offer, at, found)

    def _offer(self, at: float, found: list[tuple[MetricsPage, bytes | None]]) -> None:
        """Off the loop. Cost: 23 µs a series (docs/monitoring.md)."""
        read = [(source, _read(source, page)) for source, page in found]
        own = [one for one in read if not one[0].foreign]
        self._own.offer(at, [*self._samples(own), *self._counts(own)])
        foreign = sorted((one for one in read if one[0].foreign), key=lambda one: len(one[1] or ()))
        left = ALL_FOREIGN_SERIES
        kept = []
        for source, samples in foreign:
            left -= len(samples or ())
            kept.append((source, samples if left >= 0 else None))
        if left < 0:
            log.warning("trainers serve %d series too many: the largest pages are left out", -left)
        self._foreign.offer(at, list(self._samples(kept)))

    def _samples(self, read: Sequence[tuple[MetricsPage, list[Sample] | None]]) -> Iterator[Sample]:
        for source, samples in read:
            labels = dict(source.labels)
            yield Sample("up", labels, float(samples is not None))
            given = {*labels, *IDENTITY, *self._options.labels} if source.foreign else labels.keys()
            for one in samples or ():
                if source.foreign and _OURS.match(one.name):
                    continue
                own = {key: text for key, text in one.labels.items() if key not in given and not key.startswith("__")}
                yield Sample(one.name, {**own, **labels}, one.value)

    def _counts(self, own: Sequence[tuple[MetricsPage, object]]) -> Iterator[Sample]:
        """What became of the samples so far, as the process' own."""
        if not own:
            return
        whose = own[0][0].labels
        for of, push in (("stoker", self._own), ("trainers", self._foreign)):
            stats = push.stats
            for outcome, count in (("sent", stats.sent), ("refused", stats.refused), ("dropped", stats.dropped)):
                labels = {**whose, "of": of, "outcome": outcome}
                yield Sample(SAMPLES, labels, float(count))
            yield Sample(BUFFERED, {**whose, "of": of}, float(stats.buffered))


def _read(source: MetricsPage, page: bytes | None) -> list[Sample] | None:
    if page is None:
        return None
    try:
        return parse(page, FOREIGN_SERIES if source.foreign else OWN_SERIES)
    except ValueError as error:
        log.debug("%s: its metrics can't be read: %s", source.address or source.labels, error)
        return None


async def _fetched(source: MetricsPage) -> bytes | None:
    try:
        async with asyncio.timeout(FETCH_S):
            return await fetch(source.address, source.token, FOREIGN_BYTES if source.foreign else OWN_BYTES)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        log.debug("%s serves no metrics: %r", source.address, error)
        return None


async def fetch(address: str, token: str, most_bytes: int) -> bytes:
    """The body of GET /metrics, at most so long. No redirects. HTTP/1.0, so that nothing comes in chunks.

    Raises: OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError. The time is the caller's.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_HEAD_BYTES)
    try:
        asks = ["GET /metrics HTTP/1.0", f"Host: {address}", "Accept: text/plain; version=0.0.4", "Connection: close"]
        asks += [f"Authorization: Bearer {token}"] if token else []
        writer.write(("\r\n".join(asks) + "\r\n\r\n").encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.split(b" ", 2)[1:2] != [b"200"] or b"\r\ntransfer-encoding:" in head:
            raise ValueError(f"it answers {head[:80]!r}")
        length = _LENGTH.search(head)
        wanted = int(length[1]) if length else most_bytes + 1
        body = bytearray()
        while len(body) < wanted and (piece := await reader.read(65536)):
            body += piece
            if len(body) > most_bytes:
                raise ValueError(f"more than {most_bytes} bytes")
        if length and len(body) < wanted:
            raise ValueError(f"{len(body)} bytes of {wanted}")
        return bytes(body)
    finally:
        writer.transport.abort()
