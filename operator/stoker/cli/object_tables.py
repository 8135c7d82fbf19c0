"""The tables of queues, runtimes, nodes and secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.spec.names import GPU_RESOURCE
from stoker.spec.quantity import format_bytes, format_cpu

from .job_text import NAME
from .output import DASH, Column, age_text


def _of(used: object, limit: object) -> str:
    return f"{used}/{limit}" if limit is not None else str(used)


def _gpus_of(used: int, limit: int | None, limits: Mapping[str, int] | None, of_types: Mapping[str, int] | None) -> str:
    """'3/8 (h100 2/4)': the types that are limited."""
    named = ", ".join(f"{name} {_of((of_types or {}).get(name, 0), most)}" for name, most in (limits or {}).items())
    return _of(used, limit) + (f" ({named})" if named else "")


def _cores_of(used_milli: int, limit: str | None) -> str:
    return _of(format_cpu(used_milli), limit)


def _memory_of(used_bytes: int, limit: str | None) -> str:
    return _of(format_bytes(used_bytes), limit)


def _projects(names: Sequence[str] | None) -> str:
    return "all" if names is None else ",".join(names)


def _checkpoints_text(claim: str | None, size: str | None) -> str:
    """Where jobs that name no claim keep checkpoints: 'not kept', 'claim scratch', '100Gi each'."""
    if claim is None and size is None:
        return "not kept"
    return f"claim {claim}" if size is None else f"{size} each"


def _troubles(states: Sequence[str] | None, messages: Sequence[str] | None) -> str:
    """What keeps it from taking jobs, or its parent or guarantee from counting."""
    found = zip(states or (), messages or (), strict=True)
    return "; ".join(message for state, message in found if state == "False") or DASH


def _guaranteed(gpus: int | None, types: Mapping[str, int] | None) -> str:
    """'16 (h100 8)'."""
    named = ", ".join(f"{name} {count}" for name, count in (types or {}).items())
    return f"{DASH if gpus is None else gpus}" + (f" ({named})" if named else "")


QUEUES = (
    NAME,
    Column("PARENT", "spec.parent"),
    Column("GPUS", "usage.gpus spec.limit.gpus spec.limit.gpuTypes status.used.gpuTypes", _gpus_of, right=True),
    Column("GUARANTEED", "spec.guarantee.gpus spec.guarantee.gpuTypes", _guaranteed, right=True),
    Column("WEIGHT", "spec.weight", right=True, drops=4),
    Column("HELD", "usage.heldGpus", lambda held: str(held or DASH), right=True, drops=5),
    Column("CORES", "usage.cpuMilli spec.limit.cpu", _cores_of, right=True, drops=2),
    Column("MEMORY", "usage.memoryBytes spec.limit.memory", _memory_of, right=True, drops=3),
    Column("RUNNING", "usage.running", right=True),
    Column("PENDING", "usage.pending", right=True),
    Column("PROJECTS", "spec.projects", _projects, cut=True),
    Column("MESSAGE", "status.conditions.status status.conditions.message", _troubles, cut=True),
)
RUNTIMES = (
    NAME,
    Column("IMAGE", "spec.image", cut=True),
    Column("CHECKPOINTS", "spec.checkpoints.claim spec.checkpoints.template.size", _checkpoints_text),
    Column(
        "NODES",
        "spec.nodeSelector",
        lambda labels: ",".join(f"{name}={value}" for name, value in labels.items()) or "any",
        cut=True,
    ),
    Column("PROJECTS", "spec.projects", _projects, cut=True),
)


def _models_text(models: Sequence[str], simulated: Sequence[bool], resources: Sequence[str]) -> str:
    found = set[str]()
    for model, slot, resource in zip(models, simulated, resources, strict=True):
        note = "simulated" if slot else resource if resource != GPU_RESOURCE else ""
        found.add(f"{model} ({note})" if note else model)
    return ", ".join(sorted(found)) or DASH


_UNMEASURED = {
    "Silent": "its exporter does not report any more",
    "Missing": "no exporter has reported",
}
"""By `spec.rest_nodes.ExporterState`, the import of which takes longer than all the rest."""
_TESTS = {"Waiting": "waits for a burn-in", "Testing": "is tested by job"}
"""By `spec.rest_nodes.BurnInState`."""


def _node_text(
    message: str,
    exporter: str | None,
    numbers: Sequence[int],
    unavailable: Sequence[str],
    blamed: Sequence[int] | None,
    blames: Sequence[Sequence[object]] | None,
    tested: Sequence[int] | None,
    tests: Sequence[str] | None,
    jobs: Sequence[str] | None,
) -> str:
    found = [message, *(f"GPU {number}: {why}" for number, why in zip(numbers, unavailable, strict=True) if why)]
    # That one has failed is in why it is unavailable.
    for number, state, job in zip(tested or (), tests or (), jobs or (), strict=True):
        if state in _TESTS:
            found.append(f"GPU {number} {_TESTS[state]}{f' {job}' if job else ''}")
    for number, gangs in zip(blamed or (), blames or (), strict=True):
        found.append(f"GPU {number} is blamed by {len(gangs)} job{'s' if len(gangs) > 1 else ''}")
    found.append(_UNMEASURED.get(exporter or "", ""))
    return "; ".join(part for part in found if part) or DASH


NODES = (
    NAME,
    Column("READY", "status.ready", lambda ready: "yes" if ready else "no"),
    Column("GPUS", "usage.gpus status.gpus.unavailable", lambda used, lost: _of(used, lost.count("")), right=True),
    Column("CORES", "usage.cpuMilli status.cpuMilli", lambda used, all_: _cores_of(used, format_cpu(all_)), right=True),
    Column(
        "MEMORY",
        "usage.memoryBytes status.memoryBytes",
        lambda used, all_: _memory_of(used, format_bytes(all_)),
        right=True,
    ),
    Column("GPU MODELS", "status.gpus.model status.gpus.simulated status.gpus.resource", _models_text, cut=True),
    Column(
        "MESSAGE",
        "status.message exporter status.gpus.index status.gpus.unavailable status.blamed.index status.blamed.blames"
        " burnIns.index burnIns.state burnIns.job",
        _node_text,
        cut=True,
    ),
)
SECRETS = (
    Column("NAME", "name"),
    Column("KEYS", "keys", lambda keys: ", ".join(keys) or DASH, cut=True),
    Column("AGE", "createdAt", age_text, right=True),
    Column("CHANGED", "changedAt", age_text, right=True),
)
OF = {"queues": QUEUES, "runtimes": RUNTIMES, "nodes": NODES}
