"""A point in time by both clocks. Pure; only `main` reads them."""

from __future__ import annotations

from typing import NamedTuple

NS = 1_000_000_000
"""Nanoseconds of a second."""
UJ = 1_000_000
"""Microjoules of a joule."""


class Moment(NamedTuple):
    at: float
    """Unix seconds."""
    mono_s: float
    """CLOCK_BOOTTIME seconds: goes on while the machine sleeps, begins anew with each boot."""

    @property
    def mono_ns(self) -> int:
        return round(self.mono_s * NS)
