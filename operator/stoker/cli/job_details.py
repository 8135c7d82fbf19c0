"""All facts of one job: `stoker get JOB`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.spec.phase import ENDED
from stoker.spec.quantity import format_duration

from .job_table import NODES, RAN, STARTED, clock_text, nodes_text, ran_text, started_at, user_text
from .job_text import ENTER, HOLD, IDLE, PROGRESS, STALLED
from .output import Column, age_text, facts, one_line, values


def _workers_text(workers: int, least: int | None, most: int | None, placed: Sequence[int] | None, *each: Any) -> str:
    """'4 (elastic, 2 to 8), each 1 GPU, …'."""
    elastic = f" (elastic, {least} to {most})" if least and most else ""
    return f"{len(placed) if placed else workers}{elastic}, each {worker_text(*each)}"


def worker_text(gpus: int, *amounts: str | None) -> str:
    """'1 GPU, 7 cores, 56Gi memory (share of a GPU)'. `amounts`: as the spec says, as was found, who says so."""
    spec_cpu, spec_memory, found_cpu, found_memory, *sources = amounts
    cpu, memory = found_cpu or spec_cpu, found_memory or spec_memory
    known = [
        f"{gpus} GPU{'s' * (gpus != 1)}",
        *([f"{cpu} core{'s' * (cpu != '1')}"] if cpu else []),
        *([f"{memory} memory"] if memory else []),
    ]
    share = " (share of a GPU)" if "GpuShare" in sources else ""
    return ", ".join(known) + (share if cpu and memory else "; the rest is not known yet")


def _data_text(names: Sequence[str] | None, *sources: Sequence[str | None] | None) -> str:
    """'train (claim sets), val (/srv/val)'; a claim is said to be one, a path and a url show it themselves."""
    claims, paths, urls = ([one or "" for one in source or ()] for source in sources)
    each = [f"claim {claim}" if claim else path or url for claim, path, url in zip(claims, paths, urls, strict=True)]
    return ", ".join(f"{name} ({source})" for name, source in zip(names or (), each, strict=True))


def _usage_text(usage: Any) -> str:
    if not usage:
        return ""
    from .usage_text import SUMMARY  # not for lists

    return SUMMARY.read(usage)


_JOB_FACTS = (
    Column("name", "metadata.name"),
    Column("project", "metadata.namespace"),
    Column("phase", "status.phase status.reason", "{} ({})".format),
    Column("message", "status.message", one_line),
    Column("queue", "spec.queue spec.priority", "{}, priority {}".format),
    Column(
        "workers",
        "spec.workers spec.elastic.min spec.elastic.max status.placement.worker"
        " spec.gpusPerWorker spec.cpu spec.memory status.resources.cpu status.resources.memory"
        " status.resources.cpuFrom status.resources.memoryFrom",
        _workers_text,
    ),
    Column(
        "runs", "spec.trainer.recipe spec.trainer.command", lambda recipe, command: recipe or " ".join(command or ())
    ),
    Column("code", "spec.trainer.code", lambda digest: digest or ""),
    Column("data", "spec.data.name spec.data.claim spec.data.path spec.data.url", _data_text),
    Column("user", "metadata.annotations", user_text),
    Column("created", "metadata.creationTimestamp", lambda at: f"{clock_text(at)} ({age_text(at)} ago)" if at else ""),
    Column("started", STARTED, lambda *at: clock_text(started_at(*at))),
    Column("ended", "status.finishedAt", clock_text),
    Column("ran", RAN, ran_text),
    Column(
        "output",
        "metadata.name status.output",
        lambda name, place: f"{place} · stoker files {name}" if place else "",
    ),
    Column("attempt", "status.attempt", lambda attempt: str(attempt or "")),
    Column("nodes", NODES, nodes_text),
    Column("GPU type", "status.gpuType"),
    PROGRESS,
    Column("usage", "status.usage", _usage_text),
    STALLED,
    IDLE,
    Column("hold", text=lambda job: f"{HOLD.read(job)}; enter: {ENTER.read(job)}" if HOLD.read(job) else ""),
    Column("held", "status.heldS", lambda held_s: f"{format_duration(held_s)} after failures" if held_s else ""),
    Column(
        "checkpoint",
        "status.progress.checkpoint.step status.progress.checkpoint.path",
        lambda step, path: "" if step is None else f"step {step} {path}".rstrip(),
    ),
)
_ENDS = "status.phase status.attempt status.progress.summary status.attempts"
_END = "number category message"


def job_details(job: Any, *, usage: Any = None) -> str:
    """The whole of a job for people, one fact a line. `usage`: the report on it, for its cost."""
    phase, newest, summary, ends = values(job, _ENDS)
    found = [(fact.title, fact.read(job)) for fact in _JOB_FACTS]
    if usage is not None:
        from .usage_text import COST

        found.append(("cost", COST.read(usage)))
    if phase in ENDED:
        for name, value in (summary or {}).items():
            found.append((name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    for number, category, message in (values(end, _END) for end in ends):
        if number != newest or category:
            found.append((f"attempt {number}", one_line(f"{category or 'done'} {message}".strip())))
    return facts(found)
