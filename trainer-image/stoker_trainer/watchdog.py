"""Owns the end of a rank that makes no progress: a collective that hangs, a driver that does not return. Started by
`main`, fed by the loop. The time-outs of collectives come first; this is for what they don't see.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time

from .errors import STALLED


class Watchdog:
    """Exit code 78 and every thread's stack on stderr, if `beat` is not called for `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._last = limit_s, time.monotonic()
        self._done = threading.Event()

    def start(self) -> None:
        self.beat()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        self._last = time.monotonic()

    def stop(self) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(min(5.0, self._limit_s / 4)):
            if time.monotonic() - self._last > self._limit_s:
                faulthandler.dump_traceback(file=sys.__stderr__ or 2)
                os.write(2, f"stoker-trainer: error: no progress for {self._limit_s:g} s\n".encode())
                os._exit(STALLED)
