"""`python -m stoker.nvml`: polls on a steady schedule, or once, and writes each poll as a line to stdout.

Ends with its parent: the kernel kills it when the thread that spawned it ends, and a closed pipe ends it at its next
line. Exit codes: 0 the parent is gone; 3 only a new process helps.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import sys
import threading
import time

from . import sees_all_pids
from .frames import COLLECTORS, Message, Trouble
from .poller import BeginAnew, Choice, Poller

ANEW = 3
MIN_INTERVAL_S = 0.2
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """SIGKILL when the thread of the parent that spawned us ends (prctl(2)); else the pipe must do."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class LineWriter:
    """Our stdout, written by more than one thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, message: Message) -> None:
        """Ends the process if the reader is gone."""
        data = memoryview(message.line().encode() + b"\n")
        try:
            with self._lock:
                while data:
                    data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            os._exit(0)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stoker.nvml", description="Print what NVML knows.")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two polls (default 1)")
    parser.add_argument(
        "--collectors", default=",".join(COLLECTORS), help=f"what to read beside the core: {', '.join(COLLECTORS)}"
    )
    parser.add_argument("--expected", type=int, help="GPUs that should be here; none found is then trouble")
    parser.add_argument("--once", action="store_true", help="end after the first poll")
    parser.add_argument(
        "--pids",
        choices=("auto", "all", "own"),
        default="auto",
        help="all: every process on the GPUs is seen from this pid namespace; own: not (auto: if it is the first)",
    )
    options = parser.parse_args(arguments)
    options.collectors = frozenset(filter(None, options.collectors.split(",")))
    if unknown := options.collectors - set(COLLECTORS):
        parser.error(f"--collectors: {', '.join(sorted(unknown))} is not one of {', '.join(COLLECTORS)}")
    if not options.interval >= MIN_INTERVAL_S:
        parser.error(f"--interval: at least {MIN_INTERVAL_S} seconds")
    return options


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    die_with_parent()
    lines = LineWriter(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no line of ours
    choice = Choice(
        options.collectors, options.expected, options.pids == "all" or (options.pids == "auto" and sees_all_pids())
    )
    poller = Poller(choice, lines.say, time.monotonic)
    gc.collect()
    gc.freeze()
    number, begin_s = 0, time.monotonic()
    while True:
        at, mono_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            lines.say(poller.poll(number, at, mono_s))
        except BeginAnew as error:
            lines.say(Trouble(at, "BEGIN_ANEW", str(error)))
            return ANEW
        if options.once:
            return 0
        number += 1
        # Steady: after a poll that took too long the next stands where it would have stood.
        behind_s = time.monotonic() - begin_s
        time.sleep(options.interval - behind_s % options.interval)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # not through the interpreter's end: a thread may hang in the driver
