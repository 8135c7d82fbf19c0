"""What is asked of an attempt, and what a starting gang's status says: the writes that come before any deed.

Pure. Owns the intent (never weaker than what was recorded), the deadlines, when a reason is worth a write. Called by
`lifecycle` for jobs that hold a place.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.spec.job import Blame, Phase, TrainingJob
from stoker.spec.outcome import Intent
from stoker.spec.quantity import parse_duration
from stoker.spec.reasons import Code

from .conditions import with_condition
from .context import Ground, first
from .failure_hold import told_held
from .pod_end import EARLIEST
from .stall import told_stalled
from .start_holdup import IMAGE_CONDITION, TOLD, HoldUp
from .step import Note, Step

# Of a gang that is withdrawn for another reason nodes are blamed.
_WITHDRAWN_FOR = (Code.IMAGE_UNAVAILABLE, Code.POD_UNSCHEDULABLE, Code.NAME_TAKEN)


def asked(job: TrainingJob, held: HoldUp | None, ground: Ground) -> Step | None:
    """What is asked of the attempt now, if that is new: recorded before any pod is stopped."""
    status = job.status
    intent, reason, message = _intent(job, held, ground)
    if intent is status.intent:
        return None
    update: dict[str, object] = {
        "phase": Phase.STOPPING,
        "reason": reason,
        "message": message,
        "intent": intent,
        "observed_generation": job.metadata.generation,
    }
    if held is not None and intent is Intent.WITHDRAW and held.blamed and ground.settings.blame_s > 0:
        until = {blame.node: blame.until for blame in status.blamed if blame.until > ground.now}
        until |= dict.fromkeys(held.blamed, ground.now + timedelta(seconds=ground.settings.blame_s))
        update["blamed"] = tuple(Blame(node=node, until=at) for node, at in sorted(until.items()))
    return Step(status.model_copy(update=update), Note(reason.value, message, warning=intent is Intent.WITHDRAW))


def _intent(job: TrainingJob, held: HoldUp | None, ground: Ground) -> tuple[Intent, Code, str]:
    """What is asked of the attempt now, never weaker than what was recorded; the reason and the words for it."""
    status = job.status
    if job.spec.cancel:
        return Intent.CANCEL, Code.STOPPING, "cancel requested"
    if status.intent is not Intent.NONE:
        return status.intent, status.reason, status.message
    if job.spec.suspend:
        return Intent.SUSPEND, Code.STOPPING, "suspend requested"
    if status.phase is Phase.STOPPING:
        return Intent.NONE, status.reason, status.message
    if status.phase is Phase.STARTING and ground.around.refused:
        words = f"a worker's pod was refused: {ground.around.refused}; the gang is withdrawn"
        return Intent.WITHDRAW, Code.POD_REJECTED, words[:1024]
    deadline = deadline_of(job, held)
    if deadline is None or ground.now < deadline:
        return Intent.NONE, status.reason, status.message
    if held is not None:
        reason = held.code if held.code in _WITHDRAWN_FOR else Code.STOPPING
        return Intent.WITHDRAW, reason, f"{held.message[:900]}; the gang is withdrawn"
    return Intent.MAX_DURATION, Code.STOPPING, f"it ran for stop.maxDuration ({job.spec.stop.max_duration})"


def deadline_of(job: TrainingJob, held: HoldUp | None) -> datetime | None:
    """When the current attempt's time is up, if it has a limit. For a hold it is up then at the latest."""
    status = job.status
    if held is not None:
        return held.withdraw_at
    longest = job.spec.stop.max_duration
    if status.phase is Phase.RUNNING and status.started_at is not None and longest is not None:
        return status.started_at + timedelta(seconds=max(0.0, parse_duration(longest) - status.ran_s))
    return None


def told(job: TrainingJob, held: HoldUp | None, ground: Ground) -> Step | None:
    """The write that says what a starting gang waits for: once it is due, and only when it is a new thing.

    Of a running one, that it has failed and is held, or is stalled.
    """
    if held is None:
        return told_held(job) or told_stalled(job)
    if not _is_news(job, held) or (held.code is not Code.NAME_TAKEN and ground.now < _tell_at(job, ground)):
        return None
    new = job.status.model_copy(update={"reason": held.code, "message": held.message})
    if held.code not in (Code.IMAGE_UNAVAILABLE, Code.NAME_TAKEN):
        return Step(new)
    if held.code is Code.IMAGE_UNAVAILABLE:
        new = with_condition(new, IMAGE_CONDITION, False, held.code, ground.now, job.metadata.generation)
    return Step(new, Note(held.code.value, held.message, warning=True))


def later(step: Step, job: TrainingJob, held: HoldUp | None, ground: Ground) -> Step:
    if held is None or not _is_news(job, held):
        return step
    return replace(step, wake_at=first(step.wake_at, _tell_at(job, ground)))


def _is_news(job: TrainingJob, held: HoldUp) -> bool:
    known = TOLD.index(job.status.reason) if job.status.reason in TOLD else 0
    return TOLD.index(held.code) > known


def _tell_at(job: TrainingJob, ground: Ground) -> datetime:
    return (job.status.placed_at or EARLIEST) + timedelta(seconds=ground.settings.tell_s)
