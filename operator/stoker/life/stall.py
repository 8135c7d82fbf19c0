"""A gang that makes no progress and is about to be ended for it (stall.after): the words.

Pure. That it is stalled is known from status.progress, which the api writes, or at its end from the exit records.
Called by `intents` while it lasts, `ending` when it is over, and `explain`.
"""

from __future__ import annotations

from stoker.spec.job import Phase, TrainingJob
from stoker.spec.reasons import Code
from stoker.spec.worker import Stalled

from .step import Note, Step


def stalled_words(job: TrainingJob, stalled: Stalled) -> str:
    """'no progress: step 12 since 600 s (…); its workers save their stacks (`stoker logs j …`) and are then ended'"""
    what = stalled.message or f"step {stalled.step}"
    return f"no progress: {what}; its workers save their stacks ({where(job, stalled.attempt)}) and are then ended"


def where(job: TrainingJob, attempt: int) -> str:
    """Where the stacks are found: in the log of each worker."""
    every = " --worker N" if job.spec.workers > 1 else ""
    return f"`stoker logs {job.metadata.name} --attempt {attempt}{every}`"


def told_stalled(job: TrainingJob) -> Step | None:
    """The write that says that a running gang is stalled: once, when that is known."""
    status = job.status
    if status.stalled is None or status.phase is not Phase.RUNNING or status.reason is Code.STALLED:
        return None
    message = stalled_words(job, status.stalled)
    return Step(status.model_copy(update={"reason": Code.STALLED, "message": message}), _note(message))


def stall_note(job: TrainingJob, message: str) -> Note | None:
    """The event about an attempt that ended by a stall; None: it was told while it lasted."""
    if job.status.reason is Code.STALLED:
        return None
    return _note(
        f"attempt {job.status.attempt}: {message}; the stacks of its workers: {where(job, job.status.attempt)}"
    )


def _note(message: str) -> Note:
    return Note("Stalled", message[:1024], warning=True)
