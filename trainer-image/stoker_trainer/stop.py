"""Owns the stop signal: from the first moment, also while Python is busy in C code. Used by `__main__`, main, loop.

A Python signal handler runs between two bytecodes of the main thread, which may be seconds away (importing torch,
waiting for another rank). The C-level wake-up file descriptor is written at once, and a thread reads it. Never imports
anything heavy: it must be ready before torch is imported.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from .errors import STOPPED


class StopSignal:
    """Whether this rank was asked to stop.

    Until `begin_training` nothing has been trained that a checkpoint could save, so the process ends at once with exit
    code 75. After it, the flag is only set, and the ranks agree on the step at which they stop.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._training = threading.Event()

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def requested_within(self, seconds: float) -> bool:
        """Whether it was or is yet, by then."""
        return self._requested.wait(seconds)

    def request(self) -> None:
        self._requested.set()
        if not self._training.is_set():
            sys.stderr.write("stopped on request before training began; there was nothing to save\n")
            sys.stderr.flush()
            os._exit(STOPPED)

    def begin_training(self) -> None:
        """From here on a stop request is agreed between the ranks and saves a checkpoint."""
        self._training.set()

    def install(self) -> None:
        """SIGTERM and SIGINT mean stop. Main thread only."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        # The descriptor first: a signal between the two would be taken by the handler, and lost.
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _noted)
        threading.Thread(target=self._listen, args=(read_end,), name="stop-signal", daemon=True).start()

    def _listen(self, read_end: int) -> None:
        wanted = {int(signal.SIGTERM), int(signal.SIGINT)}
        while data := os.read(read_end, 64):
            if wanted & set(data):
                self.request()


def _noted(number: int, frame: FrameType | None) -> None:
    """Without a Python handler the default action would end the process; the listening thread does the rest."""
