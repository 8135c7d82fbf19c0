"""The newest text, as every scraper gets it, and whether the poll loop lives. Written by the loop, read by requests."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable

ALIVE_S = 30.0
"""A poll loop that showed nothing for so long does not live. It needs no GPU to show something."""


class Page:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_s = self._shown_s = clock()
        self._plain = b""
        self._packed: bytes | None = None
        self._packing = threading.Lock()
        self.ready = False
        """Whether there was a first poll; set by the loop, for good."""

    def show(self, text: bytes) -> None:
        self._shown_s = self._clock()
        with self._packing:
            self._plain, self._packed = text, None

    @property
    def plain(self) -> bytes:
        return self._plain

    def packed(self) -> bytes:
        """By gzip; packed once, when first asked for. Cost: 4 ms per 200 KB."""
        with self._packing:
            if self._packed is None:
                gzip = zlib.compressobj(level=1, wbits=31)
                self._packed = gzip.compress(self._plain) + gzip.flush()
            return self._packed

    @property
    def silent_s(self) -> float:
        """Units: seconds since the loop last showed something."""
        return self._clock() - self._shown_s

    @property
    def alive(self) -> bool:
        return self.silent_s < ALIVE_S
