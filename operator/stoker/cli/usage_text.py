"""How usage looks: tables for people, CSV for spreadsheets. Fetches nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from stoker.spec.quantity import format_bytes, format_duration
from stoker.spec.rest import JobUsageReport, UsageReport, UsageRow
from stoker.spec.usage import JobUsage

from .output import DASH, Column, harmless

_NAMES = ("user", "queue", "project", "job", "job_uid", "model", "day", "hour")
_HIDDEN = ("job_uid",)
_IDLE = ("no_process", "no_activity", "low_activity")


def usage_table(report: UsageReport) -> tuple[list[Column], list[list[str]]]:
    """One row per group, and the totals below."""
    names = [name for name in _shown(report) if name not in _HIDDEN]
    columns = [Column(name.upper(), cut=name in ("user", "job", "model")) for name in names]
    titles = ["GPU-HOURS", "BUSY", "SM ACTIVE", "IDLE", "UNOBSERVED", "KWH", "COST", "JOBS"]
    columns += [Column(f"COST {report.currency}" if report.currency and t == "COST" else t, right=True) for t in titles]
    rows = [[str(getattr(row, name) or DASH) for name in names] + _figures(row) for row in report.rows]
    marks = any(row.simulated for row in (*report.rows, *report.totals))
    if marks:
        columns.append(Column("GPUS"))
        for cells, row in zip(rows, report.rows, strict=True):
            cells.append(_kind(row))
    for total in report.totals if names and report.rows else ():
        cells = ["total", *[""] * (len(names) - 1), *_figures(total)]
        rows.append([*cells, _kind(total)] if marks else cells)
    return columns, rows


def usage_csv(report: UsageReport) -> str:
    """Every row with all its figures, in hours; what is not known is empty. No totals: a spreadsheet makes its own."""
    names = _shown(report)
    figures = ("jobs", "gpu_hours", "busy_hours", "sm_active_hours", "tensor_active_hours")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    idle = [f"idle_{name}_hours" for name in _IDLE]
    last = ("unobserved_hours", "energy_kwh", "cost", "currency", "unpriced_hours", "efficiency")
    writer.writerow([*names, "simulated", *figures, *idle, *last])
    for row in report.rows:
        values = [getattr(row, name) for name in names]
        values += ["true" if row.simulated else "false", *(getattr(row, name) for name in figures)]
        values += [row.idle_hours.get(name, 0.0) for name in _IDLE]
        values += [row.unobserved_hours, row.energy_kwh, row.cost, report.currency, row.unpriced_hours, row.efficiency]
        writer.writerow(["" if value is None else _safe(value) for value in values])
    return out.getvalue()


def job_usage_text(report: JobUsageReport) -> str:
    """The whole of a job's usage but for its GPUs, one fact a line."""
    use = report.usage
    allocated_s = use.gpu_seconds
    idle = ", ".join(f"{name.replace('_', ' ')} {format_duration(value)}" for name, value in use.idle_seconds.items())
    peak, total = use.memory_peak_bytes, use.memory_total_bytes
    cost = "" if report.cost is None else f"{report.cost:.2f} {report.currency}"
    if report.cost is not None and report.unpriced_hours:
        cost += f" (without {report.unpriced_hours:.2f} GPU-hours that have no price)"
    facts = [
        ("job", f"{report.job}{' (deleted)' if report.deleted else ''}"),
        ("project", report.project),
        ("queue", report.queue),
        ("user", report.user),
        ("usage", use.state + (", of simulated GPUs" if use.simulated else "")),
        ("allocated", f"{allocated_s / 3600:.2f} GPU-hours" if allocated_s else ""),
        ("busy", _part(use.busy_seconds, allocated_s)),
        ("SM active", _part(use.sm_active_seconds, allocated_s)),
        ("tensor active", _part(use.tensor_active_seconds, allocated_s)),
        ("idle", idle),
        ("unobserved", format_duration(use.unobserved_seconds) if use.unobserved_seconds else ""),
        ("energy", "" if use.energy_joules is None else f"{use.energy_joules / 3.6e6:.3f} kWh (GPUs alone)"),
        ("memory peak", f"{format_bytes(peak)} of {format_bytes(total)}" if peak is not None and total else ""),
        ("cost", cost),
        ("note", report.note),
    ]
    size = max(len(name) for name, value in facts if value)
    return "".join(f"{name:<{size}}  {harmless(value)}\n" for name, value in facts if value)


def usage_line(use: JobUsage) -> str:
    """The same in one line: '12.50 GPU-hours, SM active 43%, idle 5%, 3.1 kWh'."""
    allocated_s = use.gpu_seconds
    parts = [f"{allocated_s / 3600:.2f} GPU-hours"]
    if use.sm_active_seconds is not None:
        parts.append(f"SM active {_ratio(use.sm_active_seconds, allocated_s)}")
    elif use.busy_seconds is not None:
        parts.append(f"busy {_ratio(use.busy_seconds, allocated_s)}")
    for name, value in (("idle", sum(use.idle_seconds.values())), ("unobserved", use.unobserved_seconds)):
        if value:
            parts.append(f"{name} {_ratio(value, allocated_s)}")
    if use.energy_joules is not None:
        parts.append(f"{use.energy_joules / 3.6e6:.2f} kWh")
    return ", ".join(parts) + (" (simulated)" if use.simulated else "") + f", {use.state}"


def gpu_table(report: JobUsageReport) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("ATTEMPT", right=True), Column("WORKER", right=True), Column("NODE", cut=True)]
    columns += [Column("GPU", cut=True), Column("MODEL", cut=True), Column("GPU-HOURS", right=True)]
    columns += [Column("BUSY", right=True), Column("SM ACTIVE", right=True), Column("IDLE", right=True)]
    columns += [Column("STATE")]
    rows = []
    for gpu in report.gpus:
        use = gpu.usage
        where = [str(gpu.attempt), str(gpu.worker), gpu.node, gpu.uuid, gpu.model or DASH]
        parts = (use.busy_seconds, use.sm_active_seconds, sum(use.idle_seconds.values()))
        ratios = [_ratio(part, use.gpu_seconds) for part in parts]
        rows.append([*where, f"{use.gpu_seconds / 3600:.2f}", *ratios, use.state])
    return columns, rows


def hint_lines(hints: Iterable[object]) -> str:
    texts = [str(getattr(hint, "text", hint)) for hint in hints]
    return "".join(["What to do:\n", *(f"  - {harmless(text)}\n" for text in texts)]) if texts else ""


def _shown(report: UsageReport) -> list[str]:
    """The fields that name rows, in the order asked for; a job's with its project and uid."""
    wanted: list[str] = []
    for name in report.by:
        wanted += ["project", "job", "job_uid"] if name == "job" else [name]
    return [name for name in dict.fromkeys(wanted) if name in _NAMES]


def _figures(row: UsageRow) -> list[str]:
    hours = row.gpu_hours
    return [
        f"{hours:.2f}",
        _ratio(row.busy_hours, hours),
        DASH if row.efficiency is None else f"{row.efficiency:.0%}",
        _ratio(sum(row.idle_hours.values()), hours),
        _ratio(row.unobserved_hours, hours),
        DASH if row.energy_kwh is None else f"{row.energy_kwh:.2f}",
        DASH if row.cost is None else f"{row.cost:.2f}",
        str(row.jobs),
    ]


def _kind(row: UsageRow) -> str:
    return "simulated" if row.simulated else "devices"


def _part(value_s: float | None, whole_s: float) -> str:
    return "" if value_s is None else f"{value_s / 3600:.2f} GPU-hours ({_ratio(value_s, whole_s)})"


def _ratio(value: float | None, whole: float) -> str:
    return DASH if value is None or whole <= 0 else f"{value / whole:.0%}"


def _safe(value: object) -> object:
    """A user's name is anybody's text: none becomes a formula where the file is opened."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
