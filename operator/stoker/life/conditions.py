"""How conditions are set, and the condition Scheduled: whether a job has a place, and until then why not.

Pure. Owns when Scheduled is written and what a waiting job's status says: once the job is seen to wait, and again when
the facts change. Called by `lifecycle` (back to the queue) and by the controller (starts, reasons).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from stoker.spec.job import Phase, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Condition
from stoker.spec.reasons import Code, Reason

from .step import Note, Step

SCHEDULED_CONDITION = "Scheduled"
_WITHOUT_PLACE = frozenset({Phase.QUEUED, Phase.SUSPENDED})


def waiting_step(job: TrainingJob, blocker: Reason, now: datetime) -> Step | None:
    """The status of a queued job that `blocker` keeps from starting; None: its status says so already.

    The first time with event Queued.
    """
    status = job.status
    first = not has_scheduled_condition(status)
    if not first and (status.reason, status.message) == (blocker.code, blocker.message):
        return None
    if status.reason is blocker.code is Code.BACKING_OFF:
        return None  # the message says how the attempt ended, `notBefore` until when
    new = status.model_copy(update={"reason": blocker.code, "message": blocker.message})
    note = Note("Queued", blocker.message) if first else None
    return Step(with_scheduled(new, now, job.metadata.generation), note)


def has_scheduled_condition(status: TrainingJobStatus) -> bool:
    """A status was written before, so kubectl shows the job's phase."""
    return any(condition.type == SCHEDULED_CONDITION for condition in status.conditions)


def with_scheduled(status: TrainingJobStatus, now: datetime, generation: int) -> TrainingJobStatus:
    """The status with the condition, by its phase: True from the start on, False while queued or suspended."""
    has_place = status.phase not in _WITHOUT_PLACE
    return with_condition(status, SCHEDULED_CONDITION, has_place, status.reason, now, generation)


def mark_unscheduled(step: Step, job: TrainingJob, now: datetime) -> Step:
    """The step; where it brings the job back to its queue or suspends it, with the condition."""
    if step.status is None or step.status.phase not in _WITHOUT_PLACE:
        return step
    return replace(step, status=with_scheduled(step.status, now, job.metadata.generation))


def with_condition(
    status: TrainingJobStatus,
    type_: str,
    value: bool,
    reason: str,
    now: datetime,
    generation: int,
    message: str | None = None,
) -> TrainingJobStatus:
    """The status with one condition set; its transition time moves only when its value does.

    Its message is the status's own where none is given.
    """
    text = "True" if value else "False"
    kept = {condition.type: condition for condition in status.conditions}
    former = kept.get(type_)
    since = former.last_transition_time if former and former.status == text else now.astimezone(UTC)
    kept[type_] = Condition(
        type=type_,
        status=text,
        reason=str(reason),
        message=status.message if message is None else message,
        last_transition_time=since,
        observed_generation=generation,
    )
    return status.model_copy(update={"conditions": tuple(kept.values())})
