"""A job's life as a pure function: what its status should be now, and what is to be done to its pods.

`step(job, pods, now)` either moves the status (then nothing else: the status is written first) or, when the
status says all there is to say, names the pods to create, stop, release and delete. The operator applies a step and
asks again until nothing is left; it may die between any two calls. `stoker.controller.jobs` calls it (and the
simulator will).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.spec.job import CHECKPOINTS_CONDITION, ENDED, PLACED, Phase, TrainingJob, TrainingJobStatus
from stoker.spec.outcome import ExitZero, Intent
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.quantity import parse_duration
from stoker.spec.reasons import Code
from stoker.spec.worker import exit_record
from stoker.spec.worker_pod import worker_name

from .admission import admission_step, sized_step, without_accepted
from .conditions import mark_unscheduled, with_condition
from .context import Context, earliest
from .ending import end_attempt
from .intents import deadline_of, intent_step, notice_step, with_notice_timer
from .pod_end import read_worker
from .start_holdup import IMAGE_CONDITION, start_holdup
from .step import NO_FACTS, Facts, Note, Settings, Step


def step(
    job: TrainingJob,
    pods: Sequence[Pod],
    now: datetime,
    settings: Settings,
    facts: Facts = NO_FACTS,
) -> Step:
    """The next step of a job whose pods (of all attempts) are `pods`, by name and owner. Cost: linear in the pods."""
    return sized_step(job, mark_unscheduled(_next(job, pods, Context(now, settings, facts)), job, now), facts)


def _next(job: TrainingJob, pods: Sequence[Pod], context: Context) -> Step:
    status = job.status
    if job.metadata.deletion_timestamp is not None:
        return context.clear(pods)  # it is going, whatever it was at
    accepted = without_accepted(status)
    if status.phase not in ENDED | PLACED:
        return _waiting(job, accepted, pods, context)
    if accepted is not status:
        return Step(accepted)
    if status.phase in ENDED:
        return _ended(job, pods, context)
    wanted = {f"{job.metadata.name}-{status.attempt}-{worker}": worker for worker in range(job.workers)}
    mine = {wanted[name]: pod for pod in pods if (name := pod.metadata.name) in wanted}
    former = [pod for pod in pods if pod.metadata.name not in wanted]
    return _placed(job, mine, context.clear(former), context)


def orphans(pods: Sequence[Pod], now: datetime, settings: Settings, facts: Facts = NO_FACTS) -> Step:
    """What to do with pods whose job is gone: stop them, let them go."""
    return Context(now, settings, facts).clear(pods)


def _waiting(job: TrainingJob, status: TrainingJobStatus, pods: Sequence[Pod], context: Context) -> Step:
    """Queued or Suspended: no attempt is under way. `status`: the job's, without the condition Accepted."""
    now = context.now
    if job.spec.cancel:
        return _finish(job, status, Phase.CANCELLED, Code.CANCELLED, "cancelled while waiting", now)
    if status.phase is Phase.QUEUED and job.spec.suspend:
        new = status.model_copy(
            update={
                "phase": Phase.SUSPENDED,
                "reason": Code.SUSPENDED,
                "message": "suspended while waiting",
                "claim": None,
            }
        )
        return Step(
            with_condition(new, "Suspended", True, Code.SUSPENDED, now, job.metadata.generation),
            Note("Suspended", "suspended while waiting"),
        )
    if status.phase is Phase.SUSPENDED and not job.spec.suspend:
        new = status.model_copy(
            update={
                "phase": Phase.QUEUED,
                "reason": Code.SUBMITTED,
                "message": "resumed",
                "queued_at": now,
                "not_before": None,
            }
        )
        return Step(
            with_condition(new, "Suspended", False, Code.SUBMITTED, now, job.metadata.generation),
            Note("Resumed", "resumed; back in its queue"),
        )
    if status.phase is Phase.QUEUED:
        return admission_step(job, context.clear(pods), context)
    return Step(status) if status is not job.status else context.clear(pods)


def _ended(job: TrainingJob, pods: Sequence[Pod], context: Context) -> Step:
    status, now = job.status, context.now
    again = job.spec.retry_generation > status.observed_retry_generation
    if again and status.phase is not Phase.SUCCEEDED and not job.spec.cancel:
        new = TrainingJobStatus(
            attempt=status.attempt,
            attempts=status.attempts,
            resources=status.resources,
            progress=status.progress,
            message="queued again on request",
            queued_at=now,
            observed_generation=job.metadata.generation,
            observed_retry_generation=job.spec.retry_generation,
        )
        return Step(new, Note("RetryRequested", "queued again on request"))
    cleared = context.clear(pods)
    # The newest attempt's pods stay, to be looked at; they hold no resources any more.
    kept = replace(cleared, discard=tuple(pod for pod in cleared.discard if _attempt(pod) != status.attempt))
    ttl_s = _ttl_s(job, context)
    if ttl_s is None or status.finished_at is None:
        return kept
    due_at = status.finished_at + timedelta(seconds=ttl_s)
    if now < due_at:
        return replace(kept, wake_at=earliest(kept.wake_at, due_at))
    return replace(kept, expire=not kept.stop and not kept.release and all(context.is_over(pod) for pod in pods))


def _ttl_s(job: TrainingJob, context: Context) -> float | None:
    """How long it is kept after its end: the job's setting, else its queue's, else the operator's. None: forever."""
    if job.spec.ttl_after_finished is not None:
        return parse_duration(job.spec.ttl_after_finished)
    queue_ttl_s = context.facts.queue_ttl_s
    return context.settings.ttl_s if queue_ttl_s is None else queue_ttl_s


def _placed(job: TrainingJob, mine: dict[int, Pod], clearing: Step, context: Context) -> Step:
    status, now = job.status, context.now
    stopping = status.phase is Phase.STOPPING
    complete = len(mine) == job.workers
    if all(context.is_over(pod) for pod in mine.values()) and (complete or stopping):
        return end_attempt(job, mine, now, context.settings.blame_s, context.facts)

    # Once all of them run nothing is held up, however long it took.
    late = not complete or any(pod.status.phase is PodPhase.PENDING for pod in mine.values())
    late = late and status.phase is Phase.STARTING
    holdup = start_holdup(job, mine, now, context.settings, context.facts) if late else None
    stop_first = intent_step(job, holdup, context)
    if stop_first is not None:
        return stop_first if mine else _without_pods(job, stop_first, context)

    clearing = replace(
        clearing, wake_at=earliest(clearing.wake_at, context.wake_at(mine.values()), deadline_of(job, holdup))
    )
    lost = [pod for pod in mine.values() if (at := context.given_up_at(pod)) is not None and at <= now]
    broken = stopping or lost or any(_failed(job, pod) or pod.metadata.deletion_timestamp for pod in mine.values())
    if broken:
        if not stopping and not complete:
            # A gang that broke while its pods were still being made: no more of them are made.
            new = status.model_copy(
                update={"phase": Phase.STOPPING, "reason": Code.STOPPING, "message": "a worker ended early"}
            )
            return Step(new)
        stop = tuple(p for p in mine.values() if not context.is_over(p) and p.metadata.deletion_timestamp is None)
        return replace(clearing, stop=clearing.stop + stop)

    if status.phase is Phase.STARTING and not complete:
        missing = tuple(w for w in range(job.workers) if w not in mine)
        name_taken = notice_step(job, holdup, context) if context.facts.name_taken else None
        return name_taken or replace(clearing, create=missing)
    started = [_began(p) for p in mine.values() if p.status.phase is not PodPhase.PENDING]
    if status.phase is Phase.STARTING and len(started) == job.workers:
        return _running(job, max((at for at in started if at), default=now), context)
    if not complete:  # Running, and a pod is gone although our finalizer was on it: forced away with its node
        new = status.model_copy(
            update={"phase": Phase.STOPPING, "reason": Code.STOPPING, "message": "a worker's pod disappeared"}
        )
        return Step(new, Note("WorkerLost", "a worker's pod disappeared", warning=True))
    return notice_step(job, holdup, context) or with_notice_timer(clearing, job, holdup, context)


def _without_pods(job: TrainingJob, stop: Step, context: Context) -> Step:
    """Where there is no pod to stop, the intent and the end that follows from it are one write with one event.

    One that is withdrawn is at fault: that stays an event of its own.
    """
    if stop.status is None or stop.status.intent is Intent.WITHDRAW:
        return stop
    return end_attempt(
        job.model_copy(update={"status": stop.status}), {}, context.now, context.settings.blame_s, context.facts
    )


def _running(job: TrainingJob, started_at: datetime, context: Context) -> Step:
    count = job.workers
    message = "running" if count == 1 else f"all {count} workers are running"
    new = job.status.model_copy(
        update={
            "phase": Phase.RUNNING,
            "reason": Code.WORKERS_RUNNING,
            "message": message,
            "started_at": started_at,
            "conditions": tuple(c for c in job.status.conditions if c.type != IMAGE_CONDITION),
        }
    )
    if context.facts.ephemeral:
        hint = "checkpoints are deleted with the pods: set checkpoint.claim, or use a TrainingRuntime with checkpoints"
        generation = job.metadata.generation
        new = with_condition(new, CHECKPOINTS_CONDITION, False, "EmptyFolder", context.now, generation, hint)
    return Step(new, Note("Running", f"attempt {job.status.attempt}: {message}"))


def _finish(
    job: TrainingJob, status: TrainingJobStatus, phase: Phase, reason: Code, message: str, now: datetime
) -> Step:
    new = status.model_copy(
        update={
            "phase": phase,
            "reason": reason,
            "message": message,
            "finished_at": now,
            "claim": None,
            "observed_generation": job.metadata.generation,
            "observed_retry_generation": job.spec.retry_generation,
        }
    )
    return Step(
        with_condition(new, phase.value, True, reason, now, job.metadata.generation), Note(phase.value, message)
    )


def _attempt(pod: Pod) -> int:
    named = worker_name(pod.metadata.name)
    return named.attempt if named is not None else 0


def _failed(job: TrainingJob, pod: Pod) -> bool:
    """It ended without being done; where exit 0 after a stop means Stopped, its phase Succeeded does not say that."""
    exit_zero = job.spec.stop.exit_zero_after_signal
    if pod.status.phase is not PodPhase.SUCCEEDED or exit_zero is ExitZero.SUCCEEDED:
        return pod.status.phase is PodPhase.FAILED
    record = exit_record(pod)
    return read_worker(pod, record, {}, own_trainer=False, gang_stopped=False, exit_zero=exit_zero).category is not None


def _began(pod: Pod) -> datetime | None:
    """When its process began; the node took the pod before that, and pulled its image."""
    for status in pod.status.container_statuses:
        state = status.state
        at = state.running.started_at if state.running else state.terminated.started_at if state.terminated else None
        if at is not None:
            return at
    return pod.status.start_time
