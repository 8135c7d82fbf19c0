"""The exporter's clock between polls, as an argument."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


def boottime_s() -> float:
    """CLOCK_BOOTTIME seconds: goes on while the machine sleeps, never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
