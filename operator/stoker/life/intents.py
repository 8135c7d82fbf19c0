"""The intent recorded for an attempt (stop it, withdraw it, …), and the notices of one that starts or runs.

Pure. Owns the intent (never weaker than the recorded one), the deadlines, and when a reason is worth a write. Intents
are written before pods are touched. Called by `lifecycle` for jobs that are placed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.spec.job import Blame, Claim, Phase, TrainingJob
from stoker.spec.outcome import Intent
from stoker.spec.quantity import parse_duration
from stoker.spec.reasons import Code

from .conditions import with_condition
from .context import Context, earliest
from .failure_hold import hold_notice
from .pod_end import EARLIEST
from .preemption import grown_message
from .stall import stall_notice
from .start_holdup import IMAGE_CONDITION, NOTICE_ORDER, StartHoldup
from .step import Note, Step

# The reasons that stay in the status of a withdrawn gang; for any other the nodes of late workers are blamed.
_WITHDRAWN_FOR = (
    Code.IMAGE_UNAVAILABLE,
    Code.VOLUME_UNAVAILABLE,
    Code.SECRET_MISSING,
    Code.POD_UNSCHEDULABLE,
    Code.NAME_TAKEN,
)
# These are an event too.
_WARNED_OF = (Code.IMAGE_UNAVAILABLE, Code.VOLUME_UNAVAILABLE, Code.NAME_TAKEN)


def intent_step(job: TrainingJob, holdup: StartHoldup | None, context: Context) -> Step | None:
    """The write that records a new intent, before any pod is stopped; None: the recorded one stands."""
    status = job.status
    intent, reason, message = _intent(job, holdup, context)
    if intent is status.intent:
        return None
    update: dict[str, object] = {
        "phase": Phase.STOPPING,
        "reason": reason,
        "message": message,
        "intent": intent,
        "observed_generation": job.metadata.generation,
    }
    if intent is Intent.RESIZE and context.facts.keeps:
        update["claim"] = Claim(
            placement=context.facts.keeps, gpu_type=job.status.gpu_type, victims=(), since=context.now
        )
    blamed: Collection[str] = holdup.blamed if holdup is not None and intent is Intent.WITHDRAW else ()
    if reason is Code.GPU_SICK and context.facts.avoids:
        blamed = (context.facts.avoids,)
    if blamed and context.settings.blame_s > 0:
        until = {blame.node: blame.until for blame in status.blamed if blame.until > context.now}
        until |= dict.fromkeys(blamed, context.now + timedelta(seconds=context.settings.blame_s))
        update["blamed"] = tuple(Blame(node=node, until=at) for node, at in sorted(until.items()))
    return Step(status.model_copy(update=update), Note(reason.value, message, warning=intent is Intent.WITHDRAW))


def _intent(job: TrainingJob, holdup: StartHoldup | None, context: Context) -> tuple[Intent, Code, str]:
    """The intent as of now, never weaker than the recorded one, with reason and message."""
    status = job.status
    if job.spec.cancel:
        return Intent.CANCEL, Code.STOPPING, "cancel requested"
    if status.intent is not Intent.NONE:
        return status.intent, status.reason, status.message
    if job.spec.suspend:
        return Intent.SUSPEND, Code.STOPPING, "suspend requested"
    if status.phase is Phase.STOPPING:
        return Intent.NONE, status.reason, status.message
    if context.facts.moved_for:
        return Intent.PREEMPT, Code.GPU_SICK, context.facts.moved_for
    if context.facts.preempted_for and context.facts.keeps:
        return Intent.RESIZE, Code.RESIZED, context.facts.preempted_for
    if context.facts.preempted_for:
        return Intent.PREEMPT, context.facts.preempted_as, context.facts.preempted_for
    if status.claim is not None:
        return Intent.RESIZE, Code.RESIZED, grown_message(job, len(status.claim.placement))
    if status.phase is Phase.STARTING and context.facts.refused:
        message = f"a worker's pod was refused: {context.facts.refused}; the gang is withdrawn"
        return Intent.WITHDRAW, Code.POD_REJECTED, message[:1024]
    deadline = deadline_of(job, holdup)
    if deadline is None or context.now < deadline:
        return Intent.NONE, status.reason, status.message
    if holdup is not None:
        reason = holdup.code if holdup.code in _WITHDRAWN_FOR else Code.STOPPING
        return Intent.WITHDRAW, reason, f"{holdup.message[:900]}; the gang is withdrawn"
    return Intent.MAX_DURATION, Code.STOPPING, f"stop.maxDuration reached ({job.spec.stop.max_duration})"


def deadline_of(job: TrainingJob, holdup: StartHoldup | None) -> datetime | None:
    """When the current attempt's time is up, if it has a limit; of one held up, when the gang is withdrawn."""
    status = job.status
    if holdup is not None:
        return holdup.withdraw_at
    longest = job.spec.stop.max_duration
    if status.phase is Phase.RUNNING and status.started_at is not None and longest is not None:
        return status.started_at + timedelta(seconds=max(0.0, parse_duration(longest) - status.ran_s))
    return None


def notice_step(job: TrainingJob, holdup: StartHoldup | None, context: Context) -> Step | None:
    """The write that says what a starting gang waits for, once it is due and new.

    Of a running gang: that it failed and is held, or that it is stalled.
    """
    if holdup is None:
        return hold_notice(job) or stall_notice(job)
    if not _is_news(job, holdup) or (holdup.code is not Code.NAME_TAKEN and context.now < _notice_at(job, context)):
        return None
    new = job.status.model_copy(update={"reason": holdup.code, "message": holdup.message})
    if holdup.code not in _WARNED_OF:
        return Step(new)
    if holdup.code is Code.IMAGE_UNAVAILABLE:
        new = with_condition(new, IMAGE_CONDITION, False, holdup.code, context.now, job.metadata.generation)
    return Step(new, Note(holdup.code.value, holdup.message, warning=True))


def with_notice_timer(step: Step, job: TrainingJob, holdup: StartHoldup | None, context: Context) -> Step:
    """The step, woken when a notice is due."""
    if holdup is None or not _is_news(job, holdup):
        return step
    return replace(step, wake_at=earliest(step.wake_at, _notice_at(job, context)))


def _is_news(job: TrainingJob, holdup: StartHoldup) -> bool:
    known = NOTICE_ORDER.index(job.status.reason) if job.status.reason in NOTICE_ORDER else 0
    return NOTICE_ORDER.index(holdup.code) > known


def _notice_at(job: TrainingJob, context: Context) -> datetime:
    return (job.status.placed_at or EARLIEST) + timedelta(seconds=context.settings.notice_after_s)
