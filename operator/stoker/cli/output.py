"""What commands print: tables, JSON, YAML, and job facts as short texts. Numbers carry their units.

Owns the look; fetches nothing. On a terminal tables fit its width and carry colour (NO_COLOR is respected); in a pipe
they are plain, complete and never cut.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.meta import Resource, StatusModel
from stoker.spec.names import ANNOTATION_IDLE_SUSPENDED
from stoker.spec.quantity import format_bytes, format_cpu, format_duration
from stoker.spec.reasons import Explanation
from stoker.spec.rest import NodeWithUsage, QueueWithUsage
from stoker.spec.runtime import CheckpointStore, TrainingRuntime
from stoker.spec.worker import Held, Progress

_COLOURS: dict[str, str] = {
    Phase.RUNNING: "cyan",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
    Phase.CANCELLED: "magenta",
    Phase.QUEUED: "yellow",
    Phase.SUSPENDED: "yellow",
}
DASH = "-"
GAP = "  "
CUT_TO = 8
IDLE_SHOWN_S = 60.0
"""Every training pauses now and then."""


@dataclass(frozen=True, slots=True)
class Column:
    """`cut`: may be shortened on a narrow terminal."""

    title: str
    right: bool = False
    cut: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, width: int | None, colour: bool) -> str:
    """The table as text, each line ending in a newline. `width` None: as wide as it needs, nothing cut."""
    cells = [[column.title for column in columns], *([harmless(text) for text in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    if width is not None:
        _narrow(widths, columns, width)
    lines = []
    for number, row in enumerate(cells):
        parts = []
        for text, size, column in zip(row, widths, columns, strict=True):
            short = text if len(text) <= size else text[: size - 1] + "…"
            padded = short.rjust(size) if column.right else short.ljust(size)
            look = {"bold": True} if number == 0 else {"fg": _COLOURS.get(text)}
            parts.append(click.style(padded, **look) if colour and any(look.values()) else padded)
        lines.append(GAP.join(parts).rstrip() + "\n")
    return "".join(lines)


def _narrow(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Take what is too much from the widest columns that may be cut, down to CUT_TO each."""
    cuttable = [at for at, column in enumerate(columns) if column.cut]
    for _ in range(sum(widths) + len(GAP) * (len(widths) - 1) - width):
        widest = max(cuttable, key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= CUT_TO:
            return
        widths[widest] -= 1


def echo_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    click.echo(table(columns, rows, width=width, colour=terminal and not os.environ.get("NO_COLOR")), nl=False)


def echo_data(data: Any, form: str) -> None:
    """`data` (models, or lists and dicts of them) as JSON or YAML."""
    ready = _ready(data)
    if form == "json":
        click.echo(json.dumps(ready, indent=2, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(ready, sort_keys=False, allow_unicode=True), nl=False)


def _ready(data: Any) -> Any:
    if isinstance(data, Resource):
        return data.dump()
    if isinstance(data, StatusModel):
        return data.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(data, list | tuple):
        return [_ready(item) for item in data]
    return data


# Jobs

_JOB_COLUMNS = (
    Column("NAME"),
    Column("PHASE"),
    Column("QUEUE"),
    Column("GPUS", right=True),
    Column("AGE", right=True),
    Column("STATE", cut=True),
)


def job_table(jobs: Iterable[TrainingJob], now: datetime, *, projects: bool) -> tuple[list[Column], list[list[str]]]:
    """Columns and rows of `stoker ls`; `projects` puts the project in front."""
    columns, rows = list(_JOB_COLUMNS), []
    if projects:
        columns.insert(0, Column("PROJECT"))
    for job in jobs:
        row = [
            job.metadata.name,
            job.status.phase,
            job.spec.queue,
            gpus_text(job),
            age_text(job.metadata.creation_timestamp, now),
            state_text(job),
        ]
        rows.append([job.metadata.namespace, *row] if projects else row)
    return columns, rows


def gpus_text(job: TrainingJob) -> str:
    """How many GPUs, and how they are split over workers: '4 (2x2)'."""
    spec = job.spec
    return str(spec.total_gpus) if spec.workers == 1 else f"{spec.total_gpus} ({spec.workers}x{spec.gpus_per_worker})"


def age_text(since: datetime | None, now: datetime) -> str:
    return DASH if since is None else format_duration(max(0, round((now - since).total_seconds())))


def progress_text(progress: Progress | None) -> str:
    """'step 120/460 · loss 0.123 · accuracy 97.2% · 12,300 samples/s': what is known of it."""
    if progress is None:
        return ""
    parts = []
    if progress.total_steps:
        parts.append(f"step {progress.step}/{progress.total_steps}")
    elif progress.step:
        parts.append(f"step {progress.step}")
    metrics = progress.metrics if progress.step else {}  # before the first step they are zeros, not measurements
    if (loss := metrics.get("loss")) is not None:
        parts.append(f"loss {loss:.4g}")
    if (accuracy := metrics.get("accuracy")) is not None:
        parts.append(f"accuracy {accuracy:.2%}")
    if (rate := metrics.get("samplesPerSecond")) is not None:
        parts.append(f"{rate:,.0f} samples/s")
    return " · ".join(parts)


def state_text(job: TrainingJob) -> str:
    """One line that says where the job is: its progress, or what it waits for."""
    status = job.status
    if status.phase is Phase.RUNNING and status.held is not None:
        return f"{hold_text(status.held)} · `{exec_text(job, status.held)}` enters"
    if status.phase is Phase.RUNNING and status.stalled is not None:
        return f"stalled: {one_line(status.stalled.message)}; its workers save their stacks and are ended"
    if status.phase is Phase.SUSPENDED and ANNOTATION_IDLE_SUSPENDED in job.metadata.annotations:
        return f"suspended by Stoker, its GPUs were idle · `stoker resume {job.metadata.name}` goes on"
    if status.phase is Phase.RUNNING or status.phase in ENDED:
        text = progress_text(status.progress)
        if status.phase is Phase.RUNNING:
            idle = idle_text(job, datetime.now(UTC))
            return " · ".join(part for part in (idle, text) if part)
        if text and status.phase is Phase.SUCCEEDED:
            return text
    return one_line(status.message or status.reason)


def idle_text(job: TrainingJob, now: datetime) -> str:
    """'GPUs idle for 31m': since when all of a running job's GPUs do nothing. Empty: they work, or it is not known."""
    since = job.status.usage.idle_since if job.status.usage is not None else None
    if since is None or job.status.phase is not Phase.RUNNING or (now - since).total_seconds() < IDLE_SHOWN_S:
        return ""
    return f"GPUs idle for {age_text(since, now)}"


def hold_text(hold: Held) -> str:
    """'held until 12:34 after exit code 1', in this machine's time."""
    until, since = (datetime.fromtimestamp(at, UTC).astimezone() for at in (hold.until, hold.since))
    day = "" if until.date() == since.date() else f"{until:%Y-%m-%d} "
    code = f"signal {hold.exit_code - 128}" if hold.exit_code > 128 else f"exit code {hold.exit_code}"
    return f"held until {day}{until:%H:%M} after {code}"


def exec_text(job: TrainingJob, hold: Held) -> str:
    """The command that enters the held worker."""
    return f"stoker exec {job.metadata.name}" + (f" --worker {hold.worker}" if hold.worker else "")


def job_details(job: TrainingJob, now: datetime) -> str:
    """The whole of a job for people, one fact a line."""
    from .usage_text import usage_line

    spec, status = job.spec, job.status
    facts = [
        ("name", job.metadata.name),
        ("project", job.metadata.namespace),
        ("phase", f"{status.phase} ({status.reason})"),
        ("message", one_line(status.message)),
        ("queue", f"{spec.queue}, priority {spec.priority}"),
        ("workers", f"{spec.workers}, each {spec.gpus_per_worker} GPUs, {spec.cpu} cores, {spec.memory} memory"),
        ("runs", spec.trainer.recipe or " ".join(spec.trainer.command or ())),
        ("code", spec.trainer.code or ""),
        ("created", age_text(job.metadata.creation_timestamp, now) + " ago"),
        ("attempt", str(status.attempt) if status.attempt else ""),
        ("nodes", ", ".join(sorted({placed.node for placed in status.placement}))),
        ("progress", progress_text(status.progress)),
        ("usage", usage_line(status.usage) if status.usage else ""),
        ("stalled", one_line(status.stalled.message) if status.stalled else ""),
        ("idle", idle_text(job, now)),
        ("hold", f"{hold_text(status.held)}; enter: {exec_text(job, status.held)}" if status.held else ""),
        ("held", f"{format_duration(status.held_s)} after failures" if status.held_s else ""),
    ]
    if status.progress and status.progress.checkpoint:
        saved = status.progress.checkpoint
        facts.append(("checkpoint", f"step {saved.step} {saved.path}".rstrip()))
    if status.progress and status.phase in ENDED:
        facts += [
            (name, f"{value:.4g}" if isinstance(value, float) else str(value))
            for name, value in status.progress.summary.items()
        ]
    facts += [
        (f"attempt {end.number}", one_line(f"{end.category or 'done'} {end.message}".strip()))
        for end in status.attempts
        if end.number != status.attempt or end.category
    ]
    size = max(len(name) for name, value in facts if value)
    return "".join(f"{name:<{size}}  {harmless(value)}\n" for name, value in facts if value)


def explanation_text(name: str, why: Explanation) -> str:
    """The answer of `stoker why`: a sentence, the blockers, what would help."""
    lines = [f"{name} is {why.phase}: {why.summary}"]
    lines += [f"  - {blocker.message}" for blocker in why.blockers if blocker.message != why.summary]
    if why.position is not None:
        lines.append("It is next in its queue." if why.position == 1 else f"It is number {why.position} in its queue.")
    if why.hints:
        lines.append("It would start if:" if why.phase == Phase.QUEUED else "What to do:")
        lines += [f"  - {hint}" for hint in why.hints]
    return "\n".join(lines)


# Queues, runtimes and nodes


def queue_table(queues: Iterable[QueueWithUsage]) -> tuple[list[Column], list[list[str]]]:
    columns = [
        Column("NAME"),
        Column("GPUS", right=True),
        Column("HELD", right=True),
        Column("CORES", right=True),
        Column("MEMORY", right=True),
        Column("RUNNING", right=True),
        Column("PENDING", right=True),
        Column("PROJECTS", cut=True),
    ]
    rows = []
    for queue in queues:
        limit, used = queue.spec.limit, queue.usage
        rows.append(
            [
                queue.metadata.name,
                _of(str(used.gpus), None if limit.gpus is None else str(limit.gpus)),
                str(used.held_gpus) if used.held_gpus else DASH,
                _of(format_cpu(used.cpu_milli), limit.cpu),
                _of(format_bytes(used.memory_bytes), limit.memory),
                str(used.running),
                str(used.pending),
                "all" if queue.spec.projects is None else ",".join(queue.spec.projects),
            ]
        )
    return columns, rows


def runtime_table(runtimes: Iterable[TrainingRuntime]) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("NAME"), Column("IMAGE", cut=True), Column("CHECKPOINTS"), Column("NODES", cut=True)]
    columns.append(Column("PROJECTS", cut=True))
    rows = []
    for runtime in runtimes:
        spec = runtime.spec
        rows.append(
            [
                runtime.metadata.name,
                spec.image or DASH,
                _checkpoints_text(spec.checkpoints),
                ",".join(f"{name}={value}" for name, value in spec.node_selector.items()) or "any",
                "all" if spec.projects is None else ",".join(spec.projects),
            ]
        )
    return columns, rows


def _checkpoints_text(store: CheckpointStore | None) -> str:
    """Where jobs that name no claim keep checkpoints: 'not kept', 'claim scratch', '100Gi each'."""
    if store is None:
        return "not kept"
    return f"claim {store.claim}" if store.template is None else f"{store.template.size} each"


def node_table(nodes: Iterable[NodeWithUsage]) -> tuple[list[Column], list[list[str]]]:
    columns = [
        Column("NAME"),
        Column("READY"),
        Column("GPUS", right=True),
        Column("CORES", right=True),
        Column("MEMORY", right=True),
        Column("GPU MODELS", cut=True),
        Column("MESSAGE", cut=True),
    ]
    rows = []
    for node in nodes:
        status, used = node.status, node.usage
        offered = [gpu for gpu in status.gpus if not gpu.unavailable]
        models = sorted({f"{gpu.model}{' (simulated)' if gpu.simulated else ''}" for gpu in status.gpus})
        lost = [f"GPU {gpu.index}: {gpu.unavailable}" for gpu in status.gpus if gpu.unavailable]
        rows.append(
            [
                node.metadata.name,
                "yes" if status.ready else "no",
                _of(str(used.gpus), str(len(offered))),
                _of(format_cpu(used.cpu_milli), format_cpu(status.cpu_milli)),
                _of(format_bytes(used.memory_bytes), format_bytes(status.memory_bytes)),
                ", ".join(models) or DASH,
                "; ".join([part for part in (status.message, *lost) if part]) or DASH,
            ]
        )
    return columns, rows


def _of(used: str, limit: str | None) -> str:
    return f"{used}/{limit}" if limit is not None else used


def one_line(text: str) -> str:
    """`text` with its line breaks and runs of blanks made single blanks, and nothing in it that moves a terminal."""
    return harmless(" ".join(text.split()))


def harmless(text: str) -> str:
    """Names and messages are anybody's text: a `?` for what no terminal shows but some obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


_ANSI_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# C0 but tab, line feed and carriage return; DEL; C1; what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def for_terminal(text: str) -> str:
    """A log is anybody's text: without colours, and with a `?` for what a terminal would obey (titles, clipboard)."""
    return _CONTROL.sub("?", _ANSI_COLOUR.sub("", text))
