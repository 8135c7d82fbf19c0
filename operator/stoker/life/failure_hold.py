"""A gang whose command has failed and whose workers are kept for a look inside (onFailure.hold): words and sums.

Pure. That a hold lasts is known from status.progress, which the api writes; how long it was, from the exit records.
Owns how both are told and counted. Called by `intents` while it lasts, `ending` when it is over, and `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from stoker.spec.job import Phase, TrainingJob
from stoker.spec.outcome import Intent
from stoker.spec.reasons import Code
from stoker.spec.worker import ExitRecord, Held

from .step import Note, Step

# Who asks for a job's end or its pause decides about a failed one too. Whatever else would have stopped it came later
# than its failure, and that is what counts.
_DECIDES = frozenset({Intent.NONE, Intent.CANCEL, Intent.SUSPEND})


def held_words(job: TrainingJob, hold: Held) -> str:
    """'worker 1 failed (exit code 1) and is held until 12:34:56 UTC: the last line it printed'."""
    who = f"worker {hold.worker} " if job.spec.workers > 1 else ""
    what = f"{who}failed ({_code(hold)}) and is held until {_at(hold.until):%H:%M:%S} UTC"
    return f"{what}: {hold.message}"[:1024] if hold.message else what


def ways_on(job: TrainingJob, hold: Held) -> tuple[str, ...]:
    """What to do about a hold that lasts."""
    name = job.metadata.name
    worker = f" --worker {hold.worker}" if hold.worker else ""
    return (
        f"`stoker exec {name}{worker}` enters the worker",
        f"`stoker cancel {name}` ends the hold, and the job",
        f"`stoker suspend {name}` ends the hold; `stoker resume {name}` then runs the job again",
    )


def told_held(job: TrainingJob) -> Step | None:
    """The write that says that a running gang is held: once, when that is known."""
    status = job.status
    if status.held is None or status.phase is not Phase.RUNNING or status.reason is Code.HELD:
        return None
    message = held_words(job, status.held)
    new = status.model_copy(update={"reason": Code.HELD, "message": message})
    return Step(new, Note("Held", message, warning=True))


def held_s(job: TrainingJob, records: Iterable[ExitRecord], now: datetime) -> float:
    """How long an attempt that is over was held: as long as that of its workers that was held longest.

    A worker that is lost while it is held leaves no record; then the hold counts until now.
    """
    told = max((record.held_s for record in records), default=None)
    if told is not None or job.status.held is None:
        return told or 0.0
    hold = job.status.held
    return max(0.0, min(now.timestamp(), hold.until) - hold.since)


def intent_behind(intent: Intent, cause: ExitRecord | None) -> Intent:
    """What may explain the end of an attempt: `intent`, unless its cause had failed, and was held, before."""
    had_failed = cause is not None and cause.held_s > 0
    return Intent.NONE if had_failed and intent not in _DECIDES else intent


def _code(hold: Held) -> str:
    return f"signal {hold.exit_code - 128}" if hold.exit_code > 128 else f"exit code {hold.exit_code}"


def _at(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
