"""Whether a job's queue and runtime admit it, regardless of free capacity.

The api and the admission policies refuse most such jobs on submission. One that slips past, or was accepted before an
administrator changed a Queue or a TrainingRuntime, waits with condition Accepted=False until it may run. Pure. Owns
the rules, their messages, when the condition is written (once per change), and when what its workers get is. Called by
`lifecycle` (both), `why.blockers` and the controller's `admission`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from stoker.spec.job import Phase, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Condition
from stoker.spec.queue import Queue
from stoker.spec.reasons import Code, Reason
from stoker.spec.runtime import TrainingRuntime, missing_data

from .conditions import with_condition
from .context import Context, earliest
from .pod_end import EARLIEST
from .step import Facts, Note, Step

ACCEPTED_CONDITION = "Accepted"
"""False in the status of a job that can't be read or may not run as it stands; removed once it may."""

ADMISSION_CODES = frozenset(
    {Code.QUEUE_MISSING, Code.PROJECT_NOT_ALLOWED, Code.PRIORITY_TOO_HIGH, Code.RUNTIME_MISSING, Code.DATA_MISSING}
)
"""The codes of `admission_blockers`, written into a job's status together with the condition."""


def admission_blockers(
    job: TrainingJob, queue: Queue | None, name: str, runtime: TrainingRuntime | None
) -> Iterator[Reason]:
    """Every rule that bars the job. `name`: its runtime, by name or by default; `runtime` None: it does not exist.

    Invariant: a message depends on these arguments only, so it is rewritten only when one of them changes.
    """
    yield from _queue_blockers(job, queue)
    project = job.metadata.namespace
    if runtime is None:
        if job.spec.runtime is not None:  # else the built-in one does
            yield Reason(code=Code.RUNTIME_MISSING, message=f"there is no runtime '{name}'", runtime=name)
    elif runtime.spec.projects is not None and project not in runtime.spec.projects:
        message = f"runtime '{name}' is not open to project '{project}'"
        yield Reason(code=Code.RUNTIME_MISSING, message=message, runtime=name)
        return
    if missing := missing_data(job.spec.data, runtime.spec if runtime is not None else None):
        yield Reason(code=Code.DATA_MISSING, message=f"runtime '{name}' offers no data '{missing[0]}'", runtime=name)


def _queue_blockers(job: TrainingJob, queue: Queue | None) -> Iterator[Reason]:
    name, project = job.spec.queue, job.metadata.namespace
    if queue is None:
        yield Reason(code=Code.QUEUE_MISSING, message=f"there is no queue '{name}'", queue=name)
        return
    if queue.closed_to(job.metadata.creation_timestamp):
        message = f"queue '{name}' is being deleted and takes no new jobs"
        yield Reason(code=Code.QUEUE_MISSING, message=message, queue=name)
    highest = queue.spec.highest_priority
    if queue.spec.projects is not None and project not in queue.spec.projects:
        yield Reason(
            code=Code.PROJECT_NOT_ALLOWED,
            message=f"queue '{name}' is not open to project '{project}'",
            queue=name,
        )
    if highest is not None and job.spec.priority > highest:
        yield Reason(
            code=Code.PRIORITY_TOO_HIGH,
            message=f"priority {job.spec.priority} is above {highest}, the highest that queue '{name}' takes",
            queue=name,
        )


def admission_step(job: TrainingJob, cleared: Step, context: Context) -> Step:
    """The next step of a queued job: its condition is set, updated or removed; else `cleared`.

    A new job is given `notice_after_s` first: a queue created together with it may become visible a moment later.
    """
    status, blocker, former = job.status, context.facts.barred_by, _accepted_condition(job.status)
    if blocker is None:
        if former is None:
            return cleared
        new = without_accepted(status).model_copy(update={"reason": Code.SUBMITTED, "message": ""})
        return Step(new, Note("Accepted", "it may run now and waits for its turn"))
    if former is not None and (former.reason, former.message) == (blocker.code, blocker.message):
        return cleared
    if former is None:
        since = status.queued_at or job.metadata.creation_timestamp or EARLIEST
        notice_at = since + timedelta(seconds=context.settings.notice_after_s)
        if context.now < notice_at:
            return replace(cleared, wake_at=earliest(cleared.wake_at, notice_at))
    new = status.model_copy(update={"reason": blocker.code, "message": blocker.message})
    new = with_condition(new, ACCEPTED_CONDITION, False, blocker.code, context.now, job.metadata.generation)
    is_new = former is None or former.reason != blocker.code
    return Step(new, Note("NotAccepted", blocker.message, warning=True) if is_new else None)


def sized_step(job: TrainingJob, step: Step, facts: Facts) -> Step:
    """`step`, by which a job that is accepted also gets into its status what its workers get: once, and before it may
    start."""
    status = job.status if step.status is None else step.status
    if job.is_sized or facts.resources is None or facts.barred_by is not None or status.phase is not Phase.QUEUED:
        return step
    return Step(status.model_copy(update={"resources": facts.resources}), step.note, step.before)


def without_accepted(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status without the condition."""
    if _accepted_condition(status) is None:
        return status
    kept = tuple(condition for condition in status.conditions if condition.type != ACCEPTED_CONDITION)
    return status.model_copy(update={"conditions": kept})


def _accepted_condition(status: TrainingJobStatus) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == ACCEPTED_CONDITION), None)
