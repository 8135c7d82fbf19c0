"""The pipe that ends a poll: signals write into it (`signal.set_wakeup_fd`), and other threads with news."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os


class WakePipe:
    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        _signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def poke(self) -> None:
        """From any thread."""
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:
            pass  # full: it is awake

    def drain(self) -> None:
        try:
            while os.read(self.fd, 512):
                pass
        except BlockingIOError:
            pass
