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
        self._make: Callable[[], bytes] = bytes
        self._plain: bytes | None = None
        self._packed: bytes | None = None
        self._making = threading.Lock()
        self.ready = False
        """Whether there was a first poll; set by the loop, for good."""

    def show(self, make: Callable[[], bytes]) -> None:
        """make: Renders the text. Called once, when first asked for: most polls nobody asks about."""
        self._shown_s = self._clock()
        with self._making:
            self._make, self._plain, self._packed = make, None, None

    def plain(self) -> bytes:
        """Cost: 4 ms for the first who asks after a poll, at 8 GPUs and 50 pods."""
        with self._making:
            return self._text()

    def packed(self) -> bytes:
        """By gzip, likewise. Cost: 2 ms more."""
        with self._making:
            if self._packed is None:
                gzip = zlib.compressobj(level=1, wbits=31)
                self._packed = gzip.compress(self._text()) + gzip.flush()
            return self._packed

    def _text(self) -> bytes:
        if self._plain is None:
            self._plain = self._make()
        return self._plain

    @property
    def silent_s(self) -> float:
        """Units: seconds since the loop last showed something."""
        return self._clock() - self._shown_s

    @property
    def alive(self) -> bool:
        return self.silent_s < ALIVE_S
