"""What is said of a job in a line: where it is and why, what happened to it, what would start it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from stoker.client.progress_text import progress_text
from stoker.spec.names import ANNOTATION_IDLE_SUSPENDED
from stoker.spec.phase import PLACED, Phase
from stoker.spec.quantity import format_bytes

from .output import Column, age_s, age_text, one_line, values

IDLE_SHOWN_S = 60.0
"""Every training pauses now and then."""
NAME = Column("NAME", "metadata.name")
PHASE = Column("PHASE", "status.phase")


PROGRESS = Column("progress", "status.progress.step status.progress.totalSteps status.progress.metrics", progress_text)


def _stalled_text(phase: str, attempt: int, of_attempt: int | None, message: str | None) -> str:
    """Why the attempt under way is being ended."""
    return one_line(message or "no progress") if of_attempt == attempt and phase in PLACED else ""


STALLED = Column(
    "stalled",
    "status.phase status.attempt status.progress.stalled.attempt status.progress.stalled.message",
    _stalled_text,
)


def _idle_text(phase: str, since: str | None) -> str:
    """'GPUs idle for 31m': since when all of a running job's GPUs do nothing. Empty: they work, or it is not known."""
    if since is None or phase != Phase.RUNNING or age_s(since) < IDLE_SHOWN_S:
        return ""
    return f"GPUs idle for {age_text(since)}"


IDLE = Column("idle", "status.phase status.usage.idleSince", _idle_text)


def _hold_text(phase: str, since_s: float | None, until_s: float | None, exit_code: int) -> str:
    """'held until 12:34 after exit code 1', in this machine's time. Empty: no hold lasts."""
    if since_s is None or until_s is None or phase not in PLACED:
        return ""
    until, since = (datetime.fromtimestamp(at, UTC).astimezone() for at in (until_s, since_s))
    day = "" if until.date() == since.date() else f"{until:%Y-%m-%d} "
    code = f"signal {exit_code - 128}" if exit_code > 128 else f"exit code {exit_code}"
    return f"held until {day}{until:%H:%M} after {code}"


HOLD = Column(
    "hold",
    "status.phase status.progress.held.since status.progress.held.until status.progress.held.exitCode",
    _hold_text,
)
ENTER = Column(
    "enter",
    "metadata.name status.progress.held.worker",
    lambda name, worker: f"stoker exec {name}" + (f" --worker {worker}" if worker else ""),
)
"""The command that enters the held worker."""
_WHY_SO = Column("", "status.message status.reason", lambda message, reason: one_line(message or reason))
_IDLE_SUSPENDED = Column(
    "", "metadata.annotations", lambda annotations: (annotations or {}).get(ANNOTATION_IDLE_SUSPENDED, "")
)


_RESULTS = Column(
    "", "metadata.name status.output", lambda name, place: f" · `stoker files {name}` lists its files" if place else ""
)


def state_text(job: Any) -> str:
    """One line that says where the job is: its progress, or what it waits for."""
    phase, progress = PHASE.read(job), PROGRESS.read(job)
    if phase == Phase.RUNNING:
        if hold := HOLD.read(job):
            return f"{hold} · `{ENTER.read(job)}` enters"
        if stalled := STALLED.read(job):
            return f"stalled: {stalled}; its workers save their stacks and are ended"
        return " · ".join(part for part in (IDLE.read(job), progress) if part)
    if phase == Phase.SUSPENDED and _IDLE_SUSPENDED.read(job):
        return f"suspended by Stoker, its GPUs were idle · `stoker resume {NAME.read(job)}` goes on"
    if phase == Phase.SUCCEEDED and progress:
        return progress
    return _WHY_SO.read(job) + (_RESULTS.read(job) if phase == Phase.SUCCEEDED else "")


_WHY = "phase summary blockers.message position hints.message queues.name queues.held queues.limit queues.guarantee"
_SHARE = "queues.problem queues.share queues.shareOf"


def explanation_text(name: str, why: Any) -> str:
    """The answer of `stoker why`: a sentence, the blockers, what would help."""
    phase, summary, blockers, position, hints, *levels = values(why, f"{_WHY} {_SHARE}")
    lines = [f"{name} is {phase}: {one_line(summary)}"]
    lines += [f"  - {one_line(blocker)}" for blocker in blockers or () if blocker != summary]
    if position is not None:
        lines.append("It is next in its queue." if position == 1 else f"It is number {position} in its queue.")
    lines += [text for level in zip(*(of or () for of in levels), strict=True) if (text := _level_text(*level))]
    if hints:
        lines.append("What would start it:" if phase == Phase.QUEUED else "What to do:")
        lines += [f"  - {one_line(hint)}" for hint in hints]
    return "\n".join(lines)


def _level_text(
    name: str,
    held: Mapping[str, float],
    limit: Mapping[str, float],
    guarantee: Mapping[str, float],
    problem: str | None,
    share: float,
    share_of: str | None,
) -> str:
    """'Queue team holds 6 GPUs (limit 8, guarantee 4). Its share is 0.75, of GPUs.'; empty: it has neither limit nor
    guarantee, and nothing is wrong with it."""
    parts = []
    for resource, amount in held.items():
        bounds = [("limit", limit.get(resource)), ("guarantee", guarantee.get(resource))]
        texts = [f"{kind} {_amount_text(resource, some)}" for kind, some in bounds if some is not None]
        if texts:
            parts.append(f"{_amount_text(resource, amount)} {_noun(resource, amount)} ({', '.join(texts)})")
    ends = f" Its share is {share:.2g}, of {_noun(share_of)}." if share_of else ""
    texts = [f"Queue {name} holds {', '.join(parts)}.{ends}"] if parts else []
    return " ".join(texts + ([f"Queue {name}: {one_line(problem)}."] if problem else []))


def _noun(resource: str, amount: float | None = None) -> str:
    if resource == "memory":
        return resource
    one = {"gpus": "GPU", "cpu": "core"}.get(resource, f"{resource.removeprefix('gpus.')} GPU")
    return one if amount == 1 else f"{one}s"


def _amount_text(resource: str, amount: float) -> str:
    return format_bytes(int(amount)) if resource == "memory" else f"{amount:g}"


def _event_text(at: str, kind: str, reason: str, message: str) -> str:
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}  {kind:<7}  {reason:<20} {one_line(message)}"


EVENT = Column("event", "firstTimestamp type reason message", _event_text)
