"""Memory, descriptors, threads and disk over a run, and their slopes by Theil and Sen.

Source: P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Sample(NamedTuple):
    jobs: int
    """Accepted so far."""
    value: float
    pid: int
    """0 for what outlives processes."""


class Meter:
    """One series for each name."""

    def __init__(self) -> None:
        self.series: dict[str, list[Sample]] = defaultdict(list)

    def take(self, jobs: int, processes: Mapping[str, int], sizes: Mapping[str, float]) -> None:
        """`processes`: name → pid, of the live ones; `sizes`: name with unit → value."""
        for name, pid in processes.items():
            for what, value in _of_process(pid).items():
                self.series[f"{name}: {what}"].append(Sample(jobs, value, pid))
        for name, value in sizes.items():
            self.series[name].append(Sample(jobs, value, 0))

    def growth(self, name: str, begin: int, end: int) -> tuple[float, float, float] | None:
        """From job to job, of the process that lives at the end: the medians of the first and the last tenth, the slope
        per 1,000 jobs. None: too few samples."""
        found = [one for one in self.series[name] if begin <= one.jobs <= end]
        found = [one for one in found if one.pid == found[-1].pid]
        some = found[:: max(1, len(found) // 200)]
        apart = max(1, (found[-1].jobs - found[0].jobs) // 20) if found else 1  # pairs too close say only noise
        pairs = [(a, b) for a, b in combinations(some, 2) if b.jobs - a.jobs >= apart]
        if len(pairs) < 5:
            return None
        tenth = max(1, len(found) // 10)
        first, last = (median(one.value for one in part) for part in (found[:tenth], found[-tenth:]))
        return first, last, 1000 * median((b.value - a.value) / (b.jobs - a.jobs) for a, b in pairs)


def folder_mib(folder: Path) -> float:
    """What its files hold; those that go meanwhile are left out."""
    du = subprocess.run(["du", "-sk", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    return int(du.stdout.split()[0]) / 1024 if du.stdout else 0.0


def _of_process(pid: int) -> dict[str, float]:
    """Empty where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
        fields = dict(line.split(":\t", 1) for line in lines)
        return {
            "RSS, MiB": int(fields["VmRSS"].split()[0]) / 1024,
            "descriptors": descriptors,
            "threads": float(fields["Threads"]),
        }
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return {}
