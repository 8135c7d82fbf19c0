"""Memory, descriptors, threads and disk over a run, and their slopes by Theil and Sen.

Owns the samples. Never judges. Called by `__main__`.
Source: P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Sample:
    at_s: float
    jobs: int
    """Accepted so far."""
    value: float
    life: int
    """The process's pid; 0 for what outlives processes."""


@dataclass(frozen=True)
class Growth:
    first: float
    last: float
    """Medians of the first and the last tenth."""
    slope: float
    """Per 1,000 jobs."""
    samples: int


class Meter:
    """One series for each name."""

    def __init__(self) -> None:
        self.series: dict[str, list[Sample]] = defaultdict(list)

    def take(self, at_s: float, jobs: int, processes: Mapping[str, int], sizes: Mapping[str, float]) -> None:
        """`processes`: name → pid, of the live ones; `sizes`: name with unit → value."""
        for name, pid in processes.items():
            for what, value in _of_process(pid).items():
                self.series[f"{name}: {what}"].append(Sample(at_s, jobs, value, pid))
        for name, value in sizes.items():
            self.series[name].append(Sample(at_s, jobs, value, 0))

    def growth(self, name: str, from_s: float, until_s: float) -> Growth | None:
        """Of the process that lives at the end of the time. None: too few samples."""
        found = [one for one in self.series[name] if from_s <= one.at_s <= until_s]
        found = [one for one in found if one.life == found[-1].life]
        if len(found) < 5:
            return None
        some = found[:: max(1, len(found) // 200)]
        apart = max(1, (found[-1].jobs - found[0].jobs) // 20)  # pairs too close say only noise
        pairs = [(a, b) for a, b in combinations(some, 2) if b.jobs - a.jobs >= apart]
        slopes = [(b.value - a.value) / (b.jobs - a.jobs) for a, b in pairs]
        if not slopes:
            return None
        tenth = max(1, len(found) // 10)
        first, last = (median(one.value for one in part) for part in (found[:tenth], found[-tenth:]))
        return Growth(first, last, 1000 * median(slopes), len(found))


def folder_mib(folder: Path) -> float:
    """What its files hold; those that go meanwhile are left out."""
    total = 0
    for here, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(here) / name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total / 2**20


def _of_process(pid: int) -> dict[str, float]:
    """Empty where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        rss_mib = int(fields["VmRSS"].split()[0]) / 1024
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return {}
    return {"RSS, MiB": rss_mib, "descriptors": descriptors, "threads": float(fields["Threads"])}
