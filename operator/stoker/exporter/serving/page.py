"""The newest poll's page of metrics, and whether the poll loop lives. Written by the loop, read by requests.

prometheus_client renders it, as text 0.0.4 or, where a scraper asks for that, as OpenMetrics with units.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

ALIVE_S = 30.0
"""A poll loop that has shown nothing for so long is dead. It needs no GPU to show something."""
_OPENMETRICS = "application/openmetrics-text"
_FORMATS = {
    False: choose_encoder(""),
    True: choose_encoder(f"{_OPENMETRICS}; version=1.0.0; escaping=allow-utf-8"),
}
"""Whether it is OpenMetrics → renderer, media type. Two, whatever versions and escapings clients ask for: our names
need no escaping."""


class _Poll(Collector):
    """What one poll shows, rendered at most once in each form."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families
        self._bodies: dict[tuple[bool, bool], bytes] = {}
        self._rendering = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def body(self, openmetrics: bool, gzip: bool) -> bytes:
        with self._rendering:
            if (openmetrics, False) not in self._bodies:
                self._bodies[openmetrics, False] = _FORMATS[openmetrics][0](self)
            if (openmetrics, gzip) not in self._bodies:
                packer = zlib.compressobj(level=1, wbits=31)
                self._bodies[openmetrics, gzip] = packer.compress(self._bodies[openmetrics, False]) + packer.flush()
            return self._bodies[openmetrics, gzip]


class RenderedPage:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown_s = clock()
        self._poll = _Poll(tuple)
        self.ready = False
        """Whether there was a first poll; set by the loop, for good."""

    def show(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Never waits for a render. families: called when the page is first asked for, which most polls never are."""
        self._shown_s = self._clock()
        self._poll = _Poll(families)

    def body(self, accept: str = "", *, gzip: bool = False) -> tuple[str, bytes]:
        """Media type and page, by a request's Accept header."""
        openmetrics = _OPENMETRICS in accept
        return _FORMATS[openmetrics][1], self._poll.body(openmetrics, gzip)

    @property
    def silent_s(self) -> float:
        """Units: seconds since the loop last showed something."""
        return self._clock() - self._shown_s

    @property
    def alive(self) -> bool:
        return self.silent_s < ALIVE_S
