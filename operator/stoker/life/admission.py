"""Whether a job may run as it stands: what its queue and its runtime say to it, whatever room there is.

The api and the admission policies refuse most such jobs at the door; what slips past, or was taken before an
administrator changed a Queue or a TrainingRuntime, waits with condition Accepted=False until it may run. Pure. Owns
the rules, their words and when the condition is written: once per change. Called by `lifecycle` (the condition) and
`blockers` (`stoker why`); asked by the controller which facts to bring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from stoker.spec.job import TrainingJob, TrainingJobStatus
from stoker.spec.meta import Condition
from stoker.spec.queue import Queue
from stoker.spec.reasons import Blocker, Code
from stoker.spec.runtime import TrainingRuntime

from .conditions import with_condition
from .context import Ground, first
from .pod_end import EARLIEST
from .step import Note, Step

ACCEPTED_CONDITION = "Accepted"
"""False in the status of a job that can't be read or may not run as it stands; it goes when that is over."""

BARRING = frozenset({Code.QUEUE_MISSING, Code.PROJECT_NOT_ALLOWED, Code.PRIORITY_TOO_HIGH, Code.RUNTIME_MISSING})
"""The codes of `bars`. They come into a job's status with the condition, in one write."""


def bars(job: TrainingJob, queue: Queue | None, name: str, runtime: TrainingRuntime | None) -> Iterator[Blocker]:
    """Every rule that keeps the job from running. `name`: of its runtime, named or not; None: there is no such object.

    Invariant: a sentence depends on these arguments only, so that it is written again only when one of them changes.
    """
    yield from _queue_bars(job, queue)
    project = job.metadata.namespace
    if runtime is None:
        if job.spec.runtime is not None:  # else the built-in one does
            yield Blocker(code=Code.RUNTIME_MISSING, message=f"there is no runtime '{name}'", where=name)
    elif runtime.spec.projects is not None and project not in runtime.spec.projects:
        said = f"runtime '{name}' is not open to project '{project}'"
        yield Blocker(code=Code.RUNTIME_MISSING, message=said, where=name)


def _queue_bars(job: TrainingJob, queue: Queue | None) -> Iterator[Blocker]:
    name, project = job.spec.queue, job.metadata.namespace
    if queue is None:
        yield Blocker(code=Code.QUEUE_MISSING, message=f"there is no queue '{name}'", where=name)
        return
    if queue.closed_to(job.metadata.creation_timestamp):
        said = f"queue '{name}' is being deleted and takes no new jobs"
        yield Blocker(code=Code.QUEUE_MISSING, message=said, where=name)
    highest = queue.spec.highest_priority
    if queue.spec.projects is not None and project not in queue.spec.projects:
        yield Blocker(
            code=Code.PROJECT_NOT_ALLOWED,
            message=f"queue '{name}' is not open to project '{project}'",
            where=name,
        )
    if highest is not None and job.spec.priority > highest:
        yield Blocker(
            code=Code.PRIORITY_TOO_HIGH,
            message=f"priority {job.spec.priority} is above {highest}, the highest that queue '{name}' takes",
            requested=job.spec.priority,
            available=highest,
            short=job.spec.priority - highest,
            where=name,
        )


def judged(job: TrainingJob, cleared: Step, ground: Ground) -> Step:
    """The next step of a job that wants to start: its condition is set, renewed or taken away; else `cleared`.

    A fresh job gets `tell_s` first: a queue made together with it may be seen a moment later.
    """
    status, bar, told = job.status, ground.around.bar, _told(job.status)
    if bar is None:
        if told is None:
            return cleared
        new = unaccepted(status).model_copy(update={"reason": Code.SUBMITTED, "message": ""})
        return Step(new, Note("Accepted", "nothing bars it any more; it waits for its turn"))
    if told is not None and (told.reason, told.message) == (bar.code, bar.message):
        return cleared
    if told is None:
        since = status.queued_at or job.metadata.creation_timestamp or EARLIEST
        tell_at = since + timedelta(seconds=ground.settings.tell_s)
        if ground.now < tell_at:
            return replace(cleared, wake_at=first(cleared.wake_at, tell_at))
    new = status.model_copy(update={"reason": bar.code, "message": bar.message})
    new = with_condition(new, ACCEPTED_CONDITION, False, bar.code, ground.now, job.metadata.generation)
    news = told is None or told.reason != bar.code
    return Step(new, Note("NotAccepted", bar.message, warning=True) if news else None)


def unaccepted(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status without the condition."""
    if _told(status) is None:
        return status
    kept = tuple(condition for condition in status.conditions if condition.type != ACCEPTED_CONDITION)
    return status.model_copy(update={"conditions": kept})


def _told(status: TrainingJobStatus) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == ACCEPTED_CONDITION), None)
