"""The jobs of a soak and how each must end. Pure: all of it follows from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PROJECTS = ("alpha", "beta", "gamma")
TTL_S = 150.0
"""What is kept has to be bounded for anything else to show. Longer than a client repeats a call: an idempotency key
lives as long as its job."""
QUEUES: dict[str, dict[str, Any]] = {
    "default": {},
    "narrow": {"limit": {"gpus": 12}},
    "shared": {"limit": {"gpus": 40}, "ttlAfterFinished": f"{TTL_S:.0f}s"},
}
KINDS = {"single": 58, "gang": 14, "flaky": 6, "failing": 6, "cancelled": 6, "suspended": 6, "deleted": 4}
ENDS = {"failing": "Failed", "cancelled": "Cancelled", "deleted": ""}
"""'': it is deleted before its end. All others succeed."""


@dataclass(frozen=True)
class Planned:
    """One job. Units: seconds."""

    name: str
    project: str
    kind: str
    spec: dict[str, Any]
    lines: int
    """What each worker prints."""
    lasts_s: float
    fails: int = 0
    """So many of its attempts, the first ones, end with exit code 3."""
    attempts: range = range(1, 2)
    """How many it may take where nothing but the job itself ends one."""
    acts: tuple[tuple[float, str], ...] = ()
    """After a wait what is asked of it: cancel, suspend, resume, delete."""

    @property
    def ends(self) -> str:
        return ENDS.get(self.kind, "Succeeded")


def planned(seed: int, count: int, most_gpus: int) -> Iterator[Planned]:
    """`most_gpus`: of one node."""
    rng = random.Random(seed)
    for number in range(count):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        gang = kind == "gang"
        spec: dict[str, Any] = {
            "queue": rng.choices(list(QUEUES), (6, 1, 3))[0],
            "priority": rng.choice((0, 0, 0, 10)),
            "workers": rng.choice((2, 2, 3, 4)) if gang else 1,
            "gpusPerWorker": rng.choice((1, 1, 2)) if gang else rng.choice((0, 1, 1, 1, 2, most_gpus)),
            "cpu": "100m",
            "memory": "64Mi",
        }
        if spec["queue"] != "shared":  # that one says it itself
            spec["ttlAfterFinished"] = f"{TTL_S:.0f}s"
        lines = 20_000 if rng.random() < 0.01 else rng.randint(0, 20)
        how: dict[str, Any] = {"lasts_s": min(6.0, rng.expovariate(1.0))}
        if kind in ("cancelled", "deleted"):
            act = (rng.uniform(0.3, 6), "cancel" if kind == "cancelled" else "delete")
            how = {"lasts_s": 3600.0, "attempts": range(2), "acts": (act,)}
        elif kind == "suspended":
            acts = ((rng.uniform(0.3, 4), "suspend"), (rng.uniform(0.5, 3), "resume"))
            how = {"lasts_s": 5.0, "attempts": range(1, 3), "acts": acts}
        elif kind in ("flaky", "failing"):
            limit, fails = (3, rng.choice((1, 2))) if kind == "flaky" else (1, 1000)
            spec["retry"] = {"rules": [{"categories": ["UserError"], "limit": limit, "backoff": "1s"}]}
            last = min(fails, limit) + 1
            how |= {"fails": fails, "attempts": range(last, last + 1)}
        yield Planned(f"j{number:05}", rng.choice(PROJECTS), kind, spec, lines, **how)
