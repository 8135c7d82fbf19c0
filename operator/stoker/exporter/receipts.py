"""What a job has had of one GPU, as it is sent to the api and spooled on disk. Pure.

Cumulative from the ledger's begin, so that posting twice or losing one costs nothing: of one key the highest `seq`
counts. A fresh ledger (the exporter's state was lost) is another key; the api adds them up. The same JSON is
`stoker.spec.usage.GpuReceipt`; `tests/contract/test_receipts.py` holds both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

IDLE_CLASSES = ("no_process", "no_activity", "low_activity")
"""no_process: nothing runs on it (no process, or where those can't be seen under 64 MiB of memory used). no_activity: a
process, but no kernel. low_activity: SM activity (before Hopper: duty cycle) under a tenth."""
THROTTLE_REASONS = ("sw_power_cap", "hw_power_brake", "sw_thermal", "hw_thermal", "sync_boost")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Seconds are GPU-seconds: of a GPU that is shared, this job's share."""

    ledger: str
    """The id of the ledger that counted it."""
    node: str
    uuid: str
    job_uid: str
    attempt: int
    worker: int
    project: str
    job_name: str
    pod_uid: str
    model: str
    seq: int
    begin_at: float
    """Unix seconds of the first moment accounted."""
    at: float
    """Unix seconds of the last."""
    final: bool
    """The GPU is not this worker's any more."""
    allocated_s: float
    unobserved_s: float
    """Part of allocated_s about which nothing is known."""
    busy_s: float | None = None
    """A kernel ran (NVML's duty cycle). None: never known."""
    sm_active_s: float | None = None
    tensor_active_s: float | None = None
    dram_active_s: float | None = None
    idle_s: dict[str, float] = field(default_factory=dict)
    """By IDLE_CLASSES; part of allocated_s."""
    throttled_s: dict[str, float] = field(default_factory=dict)
    energy_j: float | None = None
    unobserved_energy_j: float = 0.0
    """Part of energy_j: used between two polls too far apart to say how, while no other pod held the GPU."""
    method: str = "exclusive"
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    idle_since: float | None = None
    """Unix seconds since when it has been idle without a break; None: it is not."""
    simulated: bool = False

    def as_json(self) -> dict[str, Any]:
        """With camelCase names and without what is None."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {_camel(name): value for name, value in fields.items() if value is not None}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
