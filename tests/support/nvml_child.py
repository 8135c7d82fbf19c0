"""Runs the exporter's real NVML child against a scenario and keeps what it says, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from stoker.nvml.frames import Frame, GpuEvent, Message, Trouble, parse

S = TypeVar("S", Frame, GpuEvent, Trouble)
INTERVAL_S = 0.25
HOLDER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
if libc.ptrace(0x4206, int(sys.argv[1]), 0, 0):  # PTRACE_SEIZE
    sys.exit(ctypes.get_errno())
print("held", flush=True)
time.sleep(300)
"""
"""A tracer of the process argv[1], which to its parent outlives SIGKILL, as in uninterruptible sleep."""


class Heard:
    """All lines of one child so far, and waiting for the next that answers to something."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.all: list[Message] = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.all.append(parse(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def finish(self) -> None:
        """Kill the child and take in what it said last."""
        self.process.kill()
        self._thread.join()

    def wait(
        self, kind: type[S], check: Callable[[S], object] = lambda _: True, *, new: bool = False, within_s: float = 30.0
    ) -> S:
        """The first such line that `check` takes; new: of those that come after this was asked.

        Raises: TimeoutError with what was said last.
        """
        deadline, seen = time.monotonic() + within_s, len(self.all) if new else 0
        with self._news:
            while True:
                for said in self.all[seen:]:
                    if isinstance(said, kind) and check(said):
                        return said
                seen = max(seen, len(self.all))
                if time.monotonic() > deadline or not self._thread.is_alive():
                    raise TimeoutError(f"no such {kind.__name__}; the newest line: {str(self.all[-1:])[:1000]}")
                self._news.wait(0.2)

    def frames(self, count: int) -> list[Frame]:
        """The first `count` frames."""
        self.wait(Frame, lambda frame: frame.number >= count - 1)
        return [said for said in self.all if isinstance(said, Frame)][:count]


def command(*options: str, interval_s: float = INTERVAL_S) -> list[str]:
    return [sys.executable, "-m", "stoker.nvml", "--interval", str(interval_s), *options]


@contextmanager
def listening(environment: Mapping[str, str], *options: str, interval_s: float = INTERVAL_S) -> Iterator[Heard]:
    """The real child, ended with the block."""
    child = command(*options, interval_s=interval_s)
    with subprocess.Popen(child, stdout=subprocess.PIPE, env={**os.environ, **environment}) as process:
        heard = Heard(process)
        try:
            yield heard
        finally:
            heard.finish()
