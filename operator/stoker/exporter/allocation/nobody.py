"""No allocation: hardware metrics only (`--allocation none`, a node of Slurm's, say)."""

from __future__ import annotations

from stoker.exporter.owners import Allocation

from .moments import Clock, boottime_s


class Nobody:
    """What is held is never known, and nothing is wrong about that."""

    def __init__(self, clock: Clock = boottime_s) -> None:
        self._clock = clock

    def read(self) -> Allocation:
        return Allocation(self._clock(), known=False)
