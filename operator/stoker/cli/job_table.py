"""The table of `stoker ls`: who, where, when and how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from stoker.spec.names import ANNOTATION_SUBMITTER
from stoker.spec.quantity import format_duration

from .job_text import NAME, PHASE, state_text
from .output import DASH, Column, age_s, age_text


def _gpus_text(workers: int, each: int, placed: Sequence[int] | None) -> str:
    """How many GPUs, and how they are split over workers: '4 (2x2)'. Of an elastic job those that it has."""
    count = len(placed) if placed else workers
    return str(each) if count == 1 else f"{count * each} ({count}x{each})"


def user_text(annotations: Mapping[str, str] | None) -> str:
    """Who submitted it; empty: not known."""
    return (annotations or {}).get(ANNOTATION_SUBMITTER, "")


def nodes_text(placed: Sequence[str] | None, ended: Sequence[Any] | None) -> str:
    """The nodes that it has, else those of its newest attempt. `ended`: its attempts' ends."""
    last = [worker.get("node", "") for worker in (ended[-1].get("workers") or ())] if ended else []
    return ", ".join(sorted(set(placed or last)))


def started_at(since: str | None, ended: Sequence[str | None] | None) -> str | None:
    """When all workers of its newest attempt ran that ever did."""
    return since or next((at for at in reversed(ended or ()) if at), None)


def clock_text(at: str | None) -> str:
    """'2026-11-24 13:05:09', in this machine's time; empty: not yet."""
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}" if at else ""


def ran_text(ran_s: float | None, held_s: float | None, since: str | None) -> str:
    """How long it has run over all attempts, holds included; empty: not yet."""
    ran = (ran_s or 0.0) + (held_s or 0.0) + (max(0.0, age_s(since)) if since else 0.0)
    return format_duration(max(1, round(ran))) if ran else ""


NODES = "status.placement.node status.attempts"
STARTED = "status.startedAt status.attempts.startedAt"
RAN = "status.ranS status.heldS status.startedAt"
_USER = Column("USER", "metadata.annotations", lambda notes: user_text(notes) or DASH, cut=True, drops=3)
_GPUS = Column("GPUS", "spec.workers spec.gpusPerWorker status.placement.worker", _gpus_text, right=True)
_AGE = Column("AGE", "metadata.creationTimestamp", age_text, right=True, drops=4)
_RAN = Column("RAN", RAN, lambda *ran: ran_text(*ran) or DASH, right=True, drops=1)
_STATE = Column("STATE", text=state_text, cut=True)
JOBS = (NAME, PHASE, Column("QUEUE", "spec.queue", drops=2), _USER, _GPUS, _AGE, _RAN, _STATE)
JOBS_WIDE = (
    NAME,
    PHASE,
    Column("QUEUE", "spec.queue"),
    replace(_USER, drops=0),
    Column("PRIORITY", "spec.priority", right=True, drops=5),
    _GPUS,
    Column("TYPE", "status.gpuType", lambda gpu_type: gpu_type or DASH, drops=3),
    Column("NODES", NODES, lambda *where: nodes_text(*where) or DASH, cut=True),
    Column("ATTEMPT", "status.attempt", lambda attempt: str(attempt or DASH), right=True, drops=4),
    Column("CREATED", "metadata.creationTimestamp", lambda at: clock_text(at) or DASH, right=True, drops=7),
    Column("STARTED", STARTED, lambda *at: clock_text(started_at(*at)) or DASH, right=True, drops=2),
    Column("ENDED", "status.finishedAt", lambda at: clock_text(at) or DASH, right=True, drops=6),
    replace(_RAN, drops=0),
    Column(
        "GPU-HOURS",
        "status.usage.gpuSeconds",
        lambda gpu_s: f"{gpu_s / 3600:.2f}" if gpu_s else DASH,
        right=True,
        drops=1,
    ),
    _STATE,
)
PROJECT = Column("PROJECT", "metadata.namespace")
