"""One value of one series: what `meters/` and the parts' counters become, what `serving/` renders and `push/` sends.

Pure. `serving.series.samples` makes them of a snapshot, once a poll; families stand together, in the catalogue's order.
"""

from __future__ import annotations

from typing import NamedTuple


class Sample(NamedTuple):
    """A series' newest value. The moment is that of all samples of a poll and goes beside them."""

    name: str
    """Whole: `stoker_gpu_power_watts`."""
    labels: tuple[tuple[str, str], ...]
    """Names and values; empty values are left out."""
    value: float
