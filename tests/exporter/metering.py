"""Words for the meters' tests: frames, allocations and moments of a small node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.exporter.clock import Moment
from stoker.exporter.meters.ledger import Ledger
from stoker.exporter.meters.node import NodeMeters
from stoker.exporter.owners import Allocation, Holding, Owner
from stoker.nvml.frames import Frame, GpuReading, MigReading, Process

BEGIN_AT, BEGIN_S = 1_800_000_000.0, 5000.0
SEVEN = [0, 1, 2, 3, 4, 5, 6, 7]
WORKING = {"busy_ratio": 1.0, "sm_active_ratio": 0.5, "memory_used_bytes": 8e9, "memory_total_bytes": 80e9}


def moment(s: float) -> Moment:
    """So many seconds after the tests' beginning."""
    return Moment(BEGIN_AT + s, BEGIN_S + s)


def owner(name: str, *, job: bool = True) -> Owner:
    if not job:
        return Owner("other", name, f"uid-{name}")
    return Owner("vision", f"{name}-1-0", f"pod-{name}", f"job-{name}", "vision", name, 1, 0)


def held(*holdings: Holding, s: float = 0.0, **more: object) -> Allocation:
    return Allocation(BEGIN_S + s, holdings, **more)  # type: ignore[arg-type]


def reading(
    values: Mapping[str, float],
    *,
    index: int = 0,
    processes: tuple[Process, ...] | None = (Process(7),),
    mig: Sequence[MigReading] = (),
    lost: str = "",
) -> GpuReading:
    shown = {} if lost else dict(values)
    return GpuReading(index, f"GPU-{index}", lost, {"model": "H200"}, shown, processes, tuple(mig))


def frame(s: float, *readings: GpuReading, number: int = 1, refused: Mapping[str, int] | None = None) -> Frame:
    now = moment(s)
    return Frame(number, now.at, now.mono_s, 0.01, "580.65", "13.0", readings, dict(refused or {}))


def meters(ledger: Ledger | None = None, s: float = 0.0, **options: object) -> NodeMeters:
    now = moment(s)
    ledger = ledger or Ledger("ledger-1", "node-a", "boot-1", now.at, now)
    return NodeMeters(ledger, interval_s=1.0, now=now, **options)  # type: ignore[arg-type]


def run(node: NodeMeters, seconds: Sequence[float], values: Mapping[str, float], watts: float = 100.0) -> None:
    """One frame at each of these seconds, of one GPU whose energy counter rises by `watts`."""
    for s in seconds:
        node.frame(frame(s, reading({**values, "energy_joules_total": 1e6 + watts * s})))


def job(node: NodeMeters, name: str = "a") -> Mapping[str, float]:
    (found,) = [job for job in node.books().jobs if job.owner.job_name == name]
    return found.values


def energy(values: Mapping[str, float]) -> float:
    """Of all methods."""
    return sum(joules for name, joules in values.items() if name.startswith("energy_joules_total"))


def accounts(node: NodeMeters, uuid: str = "GPU-0") -> Mapping[str, float]:
    return node.books().accounts[uuid]
