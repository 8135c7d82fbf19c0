"""onFailure.hold: a gang whose command failed and whose workers are kept for debugging.

Pure. The api writes into status.progress that a hold lasts; exit records say how long it was. Owns the messages and
the sums. Called by `intents` during the hold, `ending` after it, and `why.explain`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from stoker.spec.job import Phase, TrainingJob
from stoker.spec.outcome import Intent
from stoker.spec.reasons import Code
from stoker.spec.worker import ExitRecord, Held

from .step import Note, Step

# A cancel or suspend request decides about a failed job too. Anything else that would have stopped it came after its
# failure, so the failure counts.
_DECIDES = frozenset({Intent.NONE, Intent.CANCEL, Intent.SUSPEND})


def hold_message(job: TrainingJob, hold: Held) -> str:
    """'worker 1 failed (exit 1) and is held until 12:34:56 UTC: the last line it printed'."""
    who = f"worker {hold.worker} " if job.workers > 1 else ""
    until = datetime.fromtimestamp(hold.until, UTC)
    what = f"{who}failed ({_code(hold)}) and is held until {until:%H:%M:%S} UTC"
    return f"{what}: {hold.message}"[:1024] if hold.message else what


def hold_hints(job: TrainingJob, hold: Held) -> tuple[str, ...]:
    """What a user can do during a hold."""
    name = job.metadata.name
    worker = f" --worker {hold.worker}" if hold.worker else ""
    return (
        f"`stoker exec {name}{worker}` opens a shell in the worker",
        f"`stoker cancel {name}` ends the hold and the job",
        f"`stoker suspend {name}` ends the hold; `stoker resume {name}` then runs the job again",
    )


def hold_notice(job: TrainingJob) -> Step | None:
    """The write that says that a running gang is held, once; None: it is not, or the status says so."""
    status = job.status
    if status.held is None or status.phase is not Phase.RUNNING or status.reason is Code.HELD:
        return None
    message = hold_message(job, status.held)
    new = status.model_copy(update={"reason": Code.HELD, "message": message})
    return Step(new, Note("Held", message, warning=True))


def held_s(job: TrainingJob, records: Iterable[ExitRecord], now: datetime) -> float:
    """How long an ended attempt was held: the longest of its workers. Units: seconds.

    A worker lost during the hold leaves no record; then the hold counts until now.
    """
    recorded_s = max((record.held_s for record in records), default=None)
    if recorded_s is not None or job.status.held is None:
        return recorded_s or 0.0
    hold = job.status.held
    return max(0.0, min(now.timestamp(), hold.until) - hold.since)


def intent_behind(intent: Intent, cause: ExitRecord | None) -> Intent:
    """The intent that may explain the end of an attempt: none if its cause had failed and was held before."""
    had_failed = cause is not None and cause.held_s > 0
    return Intent.NONE if had_failed and intent not in _DECIDES else intent


def _code(hold: Held) -> str:
    return f"signal {hold.exit_code - 128}" if hold.exit_code > 128 else f"exit {hold.exit_code}"
