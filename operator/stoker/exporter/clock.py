"""A point in time by both clocks, and units of time and energy. `meters/` gets the time as an argument."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

NS = 1_000_000_000
"""Nanoseconds of a second."""
UJ = 1_000_000
"""Microjoules of a joule."""

Clock = Callable[[], float]


def boottime_s() -> float:
    """CLOCK_BOOTTIME seconds: goes on while the machine sleeps, never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Moment(NamedTuple):
    at: float
    """Unix seconds."""
    mono_s: float
    """As `boottime_s`; begins anew with each boot."""

    @property
    def mono_ns(self) -> int:
        return round(self.mono_s * NS)


def now() -> Moment:
    return Moment(time.time(), boottime_s())


def process_began() -> Moment:
    """When this process was started, which is before Python was. Source: proc_pid_stat(5), starttime."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    at, mono_s = now()
    ago_s = max(0.0, mono_s - int(ticks) / os.sysconf("SC_CLK_TCK"))
    return Moment(at - ago_s, mono_s - ago_s)
