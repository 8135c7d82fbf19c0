"""How usage looks: tables and facts for people, CSV for spreadsheets. Fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stoker.spec.quantity import format_bytes, format_duration

from .output import DASH, Column, facts, harmless, values


def _ratio(part: float | None, whole: float) -> str:
    return DASH if part is None or whole <= 0 else f"{part / whole:.0%}"


def _idle_ratio(idle: Mapping[str, float], whole: float) -> str:
    return _ratio(sum(idle.values()), whole)


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"


# Sums over jobs

_REPORT = "by currency rows totals rows.simulated totals.simulated"
_UID = "job_uid"
_GROUPS = {
    "user": Column("USER", "user", cut=True),
    "queue": Column("QUEUE", "queue"),
    "project": Column("PROJECT", "project"),
    "job": Column("JOB", "job", cut=True),
    _UID: Column("JOB_UID", "jobUid"),
    "model": Column("MODEL", "model", cut=True),
    "day": Column("DAY", "day"),
    "hour": Column("HOUR", "hour"),
}
"""What a row may be the sum of."""
_FIGURES = (
    Column("GPU-HOURS", "gpuHours", _number, right=True),
    Column("BUSY", "busyHours gpuHours", _ratio, right=True),
    Column("SM ACTIVE", "efficiency", lambda share: _ratio(share, 1), right=True),
    Column("IDLE", "idleHours gpuHours", _idle_ratio, right=True),
    Column("UNOBSERVED", "unobservedHours gpuHours", _ratio, right=True, drops=3),
    Column("KWH", "energyKwh", _number, right=True, drops=2),
    Column("COST", "cost", _number, right=True),
    Column("JOBS", "jobs", right=True, drops=4),
)
_KIND = Column("GPUS", "simulated", lambda simulated: "simulated" if simulated else "devices")
_CSV = {
    "simulated": "simulated",
    "jobs": "jobs",
    "gpu_hours": "gpuHours",
    "busy_hours": "busyHours",
    "sm_active_hours": "smActiveHours",
    "tensor_active_hours": "tensorActiveHours",
    "idle_no_process_hours": "idleHours.no_process",
    "idle_no_activity_hours": "idleHours.no_activity",
    "idle_low_activity_hours": "idleHours.low_activity",
    "unobserved_hours": "unobservedHours",
    "energy_kwh": "energyKwh",
    "unobserved_energy_kwh": "unobservedEnergyKwh",
    "cost": "cost",
    "unpriced_hours": "unpricedHours",
    "efficiency": "efficiency",
}


def usage_table(report: Any) -> tuple[list[Column], list[list[str]]]:
    """One row per group, and the totals below."""
    by, currency, groups, totals, *simulated = values(report, _REPORT)
    names = [_GROUPS[name] for name in _shown(by) if name != _UID]
    marks = [_KIND] if any(map(any, simulated)) else []
    rows = [[column.read(row) for column in (*names, *_FIGURES, *marks)] for row in groups]
    for total in totals if names and groups else ():
        rows.append(["total", *[""] * (len(names) - 1), *(column.read(total) for column in (*_FIGURES, *marks))])
    figures = [replace(c, title=f"COST {currency}") if currency and c.title == "COST" else c for c in _FIGURES]
    return [*names, *figures, *marks], rows


def usage_csv(report: Any) -> str:
    """Every row with all its figures, in hours; what is not known is empty. No totals: a spreadsheet makes its own."""
    import csv
    import io

    by, currency, groups, *_ = values(report, _REPORT)
    fields = {name: _GROUPS[name].fields for name in _shown(by)} | _CSV
    header = list(fields)
    header.insert(header.index("cost") + 1, "currency")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for group in groups:
        row = dict(zip(fields, values(group, " ".join(fields.values())), strict=True), currency=currency)
        writer.writerow([_safe(name, row[name]) for name in header])
    return out.getvalue()


def no_formula(text: str) -> str:
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _safe(name: str, value: object) -> object:
    """A user's name is anybody's text: none becomes a formula where the file is opened."""
    if isinstance(value, str):
        return no_formula(value)
    if value is None:
        return 0.0 if name.startswith("idle_") else ""
    return str(value).lower() if isinstance(value, bool) else value


def _shown(by: Iterable[str]) -> list[str]:
    """The fields that name rows, in the order asked for; a job's with its project and uid."""
    wanted: list[str] = []
    for name in by:
        wanted += ["project", "job", _UID] if name == "job" else [name]
    return [name for name in dict.fromkeys(wanted) if name in _GROUPS]


# One job


def _summary(
    gpu_s: float,
    sm_active_s: float | None,
    busy_s: float | None,
    idle_s: Mapping[str, float],
    unobserved_s: float,
    joules: float | None,
    simulated: bool,
    state: str,
) -> str:
    """'12.50 GPU-hours, SM active 43%, idle 5%, 3.10 kWh, final'."""
    parts = [f"{_hours(gpu_s)} GPU-hours"]
    if sm_active_s is not None:
        parts.append(f"SM active {_ratio(sm_active_s, gpu_s)}")
    elif busy_s is not None:
        parts.append(f"busy {_ratio(busy_s, gpu_s)}")
    for name, value_s in (("idle", sum(idle_s.values())), ("unobserved", unobserved_s)):
        if value_s:
            parts.append(f"{name} {_ratio(value_s, gpu_s)}")
    if joules is not None:
        parts.append(f"{joules / 3.6e6:.2f} kWh")
    return ", ".join(parts) + (" (simulated)" if simulated else "") + f", {state}"


def _part(value_s: float | None, whole_s: float) -> str:
    return "" if value_s is None else f"{_hours(value_s)} GPU-hours ({_ratio(value_s, whole_s)})"


def _cost_text(cost: float | None, currency: str | None, unpriced_hours: float) -> str:
    if cost is None:
        return ""
    without = f" (without {unpriced_hours:.2f} GPU-hours that have no price)" if unpriced_hours else ""
    return f"{cost:.2f} {currency}{without}"


def _of_energy(unobserved_j: float | None) -> str:
    return f"GPUs alone; {unobserved_j / 3.6e6:.3f} kWh of it unobserved" if unobserved_j else "GPUs alone"


SUMMARY = Column(
    "usage",
    "gpuSeconds smActiveSeconds busySeconds idleSeconds unobservedSeconds energyJoules simulated state",
    _summary,
)
COST = Column("cost", "cost currency unpricedHours", _cost_text)
_JOB_FACTS = (
    Column("job", "job deleted", lambda name, deleted: f"{name}{' (deleted)' if deleted else ''}"),
    Column("project", "project"),
    Column("queue", "queue"),
    Column("user", "user"),
    Column(
        "usage", "usage.state usage.simulated", lambda state, slots: state + (", of simulated GPUs" if slots else "")
    ),
    Column("allocated", "usage.gpuSeconds", lambda gpu_s: f"{_hours(gpu_s)} GPU-hours" if gpu_s else ""),
    Column("busy", "usage.busySeconds usage.gpuSeconds", _part),
    Column("SM active", "usage.smActiveSeconds usage.gpuSeconds", _part),
    Column("tensor active", "usage.tensorActiveSeconds usage.gpuSeconds", _part),
    Column(
        "idle",
        "usage.idleSeconds",
        lambda idle: ", ".join(f"{name.replace('_', ' ')} {format_duration(part_s)}" for name, part_s in idle.items()),
    ),
    Column("unobserved", "usage.unobservedSeconds", lambda part_s: format_duration(part_s) if part_s else ""),
    Column(
        "energy",
        "usage.energyJoules usage.unobservedEnergyJoules",
        lambda joules, unobserved: "" if joules is None else f"{joules / 3.6e6:.3f} kWh ({_of_energy(unobserved)})",
    ),
    Column(
        "memory peak",
        "usage.memoryPeakBytes usage.memoryTotalBytes",
        lambda peak, total: f"{format_bytes(peak)} of {format_bytes(total)}" if peak is not None and total else "",
    ),
    COST,
    Column("note", "note"),
)
GPUS = (
    Column("ATTEMPT", "attempt", right=True),
    Column("WORKER", "worker", right=True),
    Column("NODE", "node", cut=True),
    Column("GPU", "uuid", cut=True),
    Column("MODEL", "model", lambda model: model or DASH, cut=True),
    Column("GPU-HOURS", "usage.gpuSeconds", _hours, right=True),
    Column("BUSY", "usage.busySeconds usage.gpuSeconds", _ratio, right=True),
    Column("SM ACTIVE", "usage.smActiveSeconds usage.gpuSeconds", _ratio, right=True),
    Column("IDLE", "usage.idleSeconds usage.gpuSeconds", _idle_ratio, right=True),
    Column("STATE", "usage.state"),
)


def job_usage_text(report: Any) -> str:
    """The whole of a job's usage but for its GPUs, one fact a line."""
    return facts((fact.title, fact.read(report)) for fact in _JOB_FACTS)


def hint_lines(hints: Iterable[str]) -> str:
    lines = [f"  - {harmless(hint)}\n" for hint in hints]
    return "".join(["What to do:\n", *lines]) if lines else ""
