"""Who submits what when, and what the GPUs do meanwhile. Plain data; `drive` plays it.

Eight H200: 0 to 6 are for jobs, one of them is lost in the run, 7 is split into two MIG devices, which `stoker up` does
not lease. A gang really trains (on the CPU); what its GPUs do is made up, as for all others.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30
POWER_CAP, HW_THERMAL = 0x4, 0x40
PRICE = 3.5
GPUS = 8
MIG_GPU = 7
USERS = {"ada": "vision", "grace": "speech", "alan": "proteins"}
"""Name of the token → its project."""
QUEUES: dict[str, dict[str, Any]] = {"research": {"limit": {"gpus": 4}}, "products": {}}

Values = dict[str, float]
Profile = Callable[[int, float, random.Random], Values]
"""(worker, seconds since it holds the GPU, dice) → what the GPU does from now on."""

_TELL = """
import json, os, sys, time
def tell(step, **more):
    path = os.environ['STOKER_PROGRESS_FILE']
    with open(path + '.new', 'w') as file: json.dump({'step': step, **more}, file)
    os.replace(path + '.new', path)
"""


def _ends_after(seconds: float) -> str:
    return _TELL + f"for step in range({int(seconds)}): tell(step, totalSteps={int(seconds)}); time.sleep(1)"


def _works(watts: float, sm: float, used_gib: float, busy: float = 97) -> Profile:
    def profile(worker: int, age_s: float, dice: random.Random) -> Values:
        """Three seconds of loading, then work that varies a little, and less every 40 s (an evaluation)."""
        if age_s < 3:
            return {"watts": 130, "busy": 0, "sm": 0, "used": 2 * GIB, "temp": 38}
        much = (0.55 if age_s % 40 > 35 else 1.0) * (1 - 0.04 * worker) * dice.uniform(0.95, 1.0)
        return {
            "watts": round(watts * much, 1), "busy": round(min(100, busy * (0.7 + 0.3 * much))),
            "sm": round(sm * much, 1), "occ": round(sm * much * 0.5, 1), "tensor": round(sm * much * 0.55, 1),
            "dram": round(sm * much * 0.6, 1), "mem_busy": round(sm * much * 0.5), "used": used_gib * GIB,
            "temp": round(34 + watts * much / 18), "mem_temp": round(40 + watts * much / 18),
            "margin": round(52 - watts * much / 18), "pcie_tx": 0.6e9 * much, "pcie_rx": 1.8e9 * much,
            "nvlink_tx": 40e9 * much if worker >= 0 else 0.0, "nvlink_rx": 40e9 * much, "reasons": 0,
        }  # fmt: skip

    return profile


def _hot(worker: int, age_s: float, dice: random.Random) -> Values:
    """Held down by its power limit half of the time, by its temperature in the other."""
    hot = age_s % 30 > 15
    held_down = {"reasons": HW_THERMAL, "sm_clock": 1200, "temp": 91, "margin": 0} if hot else {}
    return _works(690, 55, 90)(worker, age_s, dice) | {"reasons": POWER_CAP, "sm_clock": 1755} | held_down


def _idle(worker: int, age_s: float, dice: random.Random) -> Values:
    """Only memory, once somebody has begun."""
    return {"watts": 115, "busy": 0, "sm": 0, "used": 12 * GIB if age_s > 20 else 0, "temp": 36}


RESTING: Values = {
    "watts": 75, "busy": 0, "sm": 0, "occ": 0, "tensor": 0, "dram": 0, "mem_busy": 0, "used": 0, "temp": 33,
    "mem_temp": 36, "margin": 54, "pcie_tx": 0, "pcie_rx": 0, "nvlink_tx": 0, "nvlink_rx": 0, "reasons": 1,
    "sm_clock": 1980,
}  # fmt: skip
"""What a GPU does that nobody uses. A profile names what is different."""


@dataclass(frozen=True)
class Job:
    name: str
    user: str
    queue: str
    begin: float
    """Share of the run after which it is submitted."""
    spec: dict[str, Any]
    profile: Profile
    until: float = 9.0
    """Share of the run after which it is cancelled."""
    process_after_s: float = 0.0
    """Its program opens the GPU so long after the worker's begin."""

    @property
    def project(self) -> str:
        return USERS[self.user]


def _command(script: str, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    trainer = {"command": [sys.executable, "-c", script], "workingDir": "/"}
    return {"trainer": trainer, "gpusPerWorker": gpus, "cpu": "100m", "memory": "64Mi", **spec}


def jobs(length_s: float) -> list[Job]:
    """Of a run of so many seconds."""
    epochs = int(25 * length_s)  # more than any machine does in that time
    trains = {
        "workers": 2, "gpusPerWorker": 1, "cpu": "1", "memory": "1Gi", "checkpoint": {"every": "15s"},
        "trainer": {"recipe": "image-classification", "config": {"data": "mnist5k", "epochs": epochs}},
    }  # fmt: skip
    retry = {"rules": [{"categories": ["UserError"], "limit": 2, "backoff": "5s"}]}
    once = {"rules": [{"categories": ["Stalled"], "limit": 1, "backoff": "1s"}]}
    stalls = (
        _TELL
        + "for step in range(5): tell(step); time.sleep(1)\ndef waits_for_ever(): time.sleep(3600)\nwaits_for_ever()"
    )
    stall_s = max(10, int(length_s / 16))
    return [
        Job("digits-gang", "ada", "research", 0.0, trains, _works(640, 66, 62)),
        Job("hot", "grace", "research", 0.0, _command(_ends_after(0.55 * length_s)), _hot),
        Job("notebook", "grace", "products", 0.02, _command("import time; time.sleep(86400)"), _idle,
            process_after_s=20),
        Job("wide", "alan", "research", 0.12, _command(_ends_after(2 * length_s), 2), _works(330, 21, 11, 60)),
        Job("crashes", "alan", "products", 0.08, _command(_TELL + "tell(1); time.sleep(12); sys.exit(3)", retry=retry),
            _works(420, 40, 30)),
        Job("stuck", "grace", "products", 0.3, _command(stalls, stall={"after": f"{stall_s}s"}, retry=once),
            _works(240, 8, 40, 100)),
        Job("urgent", "ada", "research", 0.7, _command(_ends_after(0.12 * length_s), 2, priority=10),
            _works(600, 58, 70)),
        *(Job(f"quick-{number}", "alan", "default", 0.05 + number * 0.14, _command(_ends_after(8)), _works(380, 35, 20))
          for number in range(6)),
    ]  # fmt: skip


@dataclass(frozen=True)
class Incident:
    """Something that happens to a GPU. `to`: a job's name (its first GPU), or "" for one that nobody holds."""

    share: float
    to: str
    what: str
    values: Values = field(default_factory=dict)


INCIDENTS = (
    Incident(0.25, "crashes", "xid 31"),
    Incident(0.4, "hot", "values", {"ecc_uncorrected_volatile": 2, "remap_pending": 1, "recovery": 4}),
    Incident(0.4, "hot", "xid 94"),
    Incident(0.45, "wide", "values", {"pcie_replay": 7, "nvlink_replay": 3}),
    Incident(0.6, "", "lost"),
    Incident(0.8, "", "stray process", {"used": 9 * GIB, "watts": 120.0}),
)
