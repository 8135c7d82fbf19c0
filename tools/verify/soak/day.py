"""What is submitted when on a compressed day, and how each job must end. Pure: all of it follows from the seed.

The shape is made up: quiet nights, a peak before and a lower one after noon, bursts of one moment. The highest peak and
the largest bursts come before noon, so that what grows after it is no matter of more jobs at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

HOURLY = (4, 3, 3, 3, 4, 5, 7, 10, 16, 20, 20, 18, 13, 12, 15, 16, 15, 13, 10, 8, 7, 6, 5, 5)
"""Arrivals by hour, in proportion."""
BURSTS = ((8.2, 60), (9.1, 80), (10.4, 80), (11.3, 60), (13.5, 40), (15.0, 60), (16.2, 40), (18.6, 30))
"""At what hour how many jobs come in one moment, of 10,000; every second one a gang."""
KILLS_END_H, STEADY_H = 9.5, 12.0
"""No kill after the first, so that each process lives long enough for a slope; it is measured from the second on."""
PROJECTS = ("alpha", "beta", "gamma")
QUEUES: dict[str, dict[str, Any]] = {
    "default": {},
    "narrow": {"limit": {"gpus": 12}},
    "shared": {"limit": {"gpus": 40}, "ttlAfterFinished": "90s"},
}
TTL_S = 90.0
"""An ended job is deleted after it: what is kept has to be bounded for anything else to show. Longer than a client
repeats a call, for an idempotency key lives as long as its job."""
FOREVER_S = 3600.0
ALWAYS = 1000
KINDS = {"single": 58, "gang": 14, "flaky": 6, "failing": 6, "cancelled": 6, "suspended": 6, "deleted": 4}


@dataclass(frozen=True)
class Planned:
    """One job. Units: seconds."""

    name: str
    project: str
    kind: str
    at_s: float
    lasts_s: float
    fails: int
    """So many of its attempts, the first ones, end with exit code 3."""
    lines: int
    """What each worker prints."""
    acts: tuple[tuple[float, str], ...]
    """After a wait what is asked of it: cancel, suspend, resume, delete."""
    spec: dict[str, Any]

    @property
    def ends(self) -> str:
        """The phase it must end in; '' where it is deleted before."""
        special = {"failing": "Failed", "cancelled": "Cancelled", "deleted": ""}
        return special.get(self.kind, "Succeeded")

    @property
    def attempts(self) -> range:
        """How many it may take where nothing but the job itself ends one."""
        special = {"flaky": range(self.fails + 1, self.fails + 2), "failing": range(2, 3), "cancelled": range(2)}
        return (special | {"suspended": range(1, 3)}).get(self.kind, range(1, 2))


def whole_day(seed: int, jobs: int, length_s: float, most_gpus: int) -> list[Planned]:
    """In the order of arrival. `most_gpus`: of one node."""
    rng = random.Random(seed)
    hour_s = length_s / 24
    bursts = [(hour, round(count * jobs / 10_000)) for hour, count in BURSTS]
    spread = jobs - sum(count for _hour, count in bursts)
    hours = rng.choices(range(24), HOURLY, k=spread)
    times = [((hour + rng.random()) * hour_s, False) for hour in hours]
    times += [(hour * hour_s, True) for hour, count in bursts for _ in range(count)]
    return [_job(rng, number, at, burst, most_gpus) for number, (at, burst) in enumerate(sorted(times))]


def _job(rng: random.Random, number: int, at_s: float, burst: bool, most_gpus: int) -> Planned:
    kind = rng.choice(("gang", "single")) if burst else rng.choices(list(KINDS), list(KINDS.values()))[0]
    lasts_s = min(15.0, rng.expovariate(1 / 3.0))
    acts: tuple[tuple[float, str], ...] = ()
    if kind in ("cancelled", "deleted"):
        lasts_s, acts = FOREVER_S, ((rng.uniform(0.3, 8), "cancel" if kind == "cancelled" else "delete"),)
    elif kind == "suspended":
        lasts_s, acts = 6.0, ((rng.uniform(0.3, 5), "suspend"), (rng.uniform(0.5, 4), "resume"))
    fails = {"flaky": rng.choice((1, 2)), "failing": ALWAYS}.get(kind, 0)
    workers = rng.choice((2, 2, 3, 4)) if kind == "gang" else 1
    spec: dict[str, Any] = {
        "queue": rng.choices(list(QUEUES), (6, 1, 3))[0],
        "priority": rng.choice((0, 0, 0, 10)),
        "workers": workers,
        "gpusPerWorker": rng.choice((1, 1, 2)) if kind == "gang" else rng.choice((0, 1, 1, 1, 2, most_gpus)),
        "cpu": "100m",
        "memory": "64Mi",
    }
    if fails:
        limit = 3 if kind == "flaky" else 1
        spec["retry"] = {"rules": [{"categories": ["UserError"], "limit": limit, "backoff": "1s"}]}
    if spec["queue"] != "shared":  # that one says it itself
        spec["ttlAfterFinished"] = f"{TTL_S:.0f}s"
    lines = 20_000 if rng.random() < 0.02 else rng.randint(0, 20)
    return Planned(f"j{number:05}", rng.choice(PROJECTS), kind, at_s, lasts_s, fails, lines, acts, spec)
