"""stall.after: messages about a gang that makes no progress and is about to be ended for it.

Pure. The api writes into status.progress that a gang is stalled; at its end the exit records say so.
Called by `intents` during the stall, `ending` after it, and `why.explain`.
"""

from __future__ import annotations

from stoker.spec.job import Phase, TrainingJob
from stoker.spec.reasons import Code
from stoker.spec.worker import Stalled

from .step import Note, Step


def stall_message(job: TrainingJob, stalled: Stalled) -> str:
    """'no progress: step 12 since 600 s (…); its workers save their stacks (`stoker logs j …`) and are then ended'"""
    what = stalled.message or f"step {stalled.step}"
    stacks = stacks_command(job, stalled.attempt)
    return f"no progress: {what}; its workers save their stacks ({stacks}) and are then ended"


def stacks_command(job: TrainingJob, attempt: int) -> str:
    """The command that shows the stacks: they are in each worker's log."""
    every = " --worker N" if job.workers > 1 else ""
    return f"`stoker logs {job.metadata.name} --attempt {attempt}{every}`"


def stall_notice(job: TrainingJob) -> Step | None:
    """The write that says that a running gang is stalled, once; None: it is not, or the status says so."""
    status = job.status
    if status.stalled is None or status.phase is not Phase.RUNNING or status.reason is Code.STALLED:
        return None
    message = stall_message(job, status.stalled)
    return Step(status.model_copy(update={"reason": Code.STALLED, "message": message}), _note(message))


def late_stall_note(job: TrainingJob, message: str) -> Note | None:
    """The event about an attempt that ended by a stall; None: it was recorded during the stall."""
    if job.status.reason is Code.STALLED:
        return None
    return _note(
        f"attempt {job.status.attempt}: {message}; the stacks of its workers: {stacks_command(job, job.status.attempt)}"
    )


def _note(message: str) -> Note:
    return Note("Stalled", message[:1024], warning=True)
