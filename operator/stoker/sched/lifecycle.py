"""A job's life as a pure function: what its status should be now, and what is to be done to its pods.

`step(job, pods, now)` either moves the status (then nothing else: the status is written first, DESIGN §6) or, when the
status says all there is to say, names the pods to create, stop, release and delete. The operator applies a step and
asks again until nothing is left; it may die between any two calls. `stoker.controller.jobs` calls it (and the
simulator will).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.spec.job import ENDED, PLACED, Phase, TrainingJob, TrainingJobStatus
from stoker.spec.names import FINALIZER_OUTCOME, LABEL_ATTEMPT, LABEL_WORKER
from stoker.spec.outcome import Intent
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.quantity import format_duration, parse_duration
from stoker.spec.reasons import Code

from .ending import end_attempt, with_condition
from .step import Note, Settings, Step


def step(job: TrainingJob, pods: Sequence[Pod], now: datetime, settings: Settings) -> Step:
    """The next step of a job whose pods (of all attempts) are `pods`. Cost: linear in the pods."""
    status = job.status
    if status.phase in ENDED:
        return _ended(job, pods, now)
    if status.phase not in PLACED:
        return _waiting(job, pods, now)
    mine = {int(pod.metadata.labels[LABEL_WORKER]): pod for pod in pods if _attempt(pod) == status.attempt}
    former = [pod for pod in pods if _attempt(pod) != status.attempt]
    return _placed(job, mine, _clear(former), now, settings)


def orphans(pods: Sequence[Pod]) -> Step:
    """What to do with pods whose job is gone: stop them, let them go."""
    return _clear(pods)


def _waiting(job: TrainingJob, pods: Sequence[Pod], now: datetime) -> Step:
    """Queued or Suspended: no attempt is under way."""
    status = job.status
    if job.spec.cancel:
        return _finish(job, Phase.CANCELLED, Code.CANCELLED, "cancelled while waiting", now)
    if status.phase is Phase.QUEUED and job.spec.suspend:
        new = status.model_copy(
            update={"phase": Phase.SUSPENDED, "reason": Code.SUSPENDED, "message": "suspended while waiting"}
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
    return _clear(pods)


def _ended(job: TrainingJob, pods: Sequence[Pod], now: datetime) -> Step:
    status = job.status
    again = job.spec.retry_generation > status.observed_retry_generation
    if again and status.phase is not Phase.SUCCEEDED and not job.spec.cancel:
        new = TrainingJobStatus(
            attempt=status.attempt,
            attempts=status.attempts,
            progress=status.progress,
            message="to be run again on request",
            queued_at=now,
            observed_generation=job.metadata.generation,
            observed_retry_generation=job.spec.retry_generation,
        )
        return Step(new, Note("RetryRequested", "to be run again on request"))
    live = tuple(pod for pod in pods if not pod.ended)
    # The newest attempt's pods stay, for those who look at them; they hold nothing any more.
    return Step(
        stop=tuple(pod for pod in live if pod.metadata.deletion_timestamp is None),
        release=tuple(pod for pod in pods if pod.ended and FINALIZER_OUTCOME in pod.metadata.finalizers),
        discard=tuple(
            pod
            for pod in pods
            if pod.ended and _attempt(pod) != status.attempt and pod.metadata.deletion_timestamp is None
        ),
    )


def _placed(job: TrainingJob, mine: dict[int, Pod], clearing: Step, now: datetime, settings: Settings) -> Step:
    status = job.status
    stopping = status.phase is Phase.STOPPING
    complete = len(mine) == job.spec.workers
    if all(pod.ended for pod in mine.values()) and (complete or stopping):
        return end_attempt(job, mine, now, settings.blame_s)

    intent, message = _intent(job, now, settings)
    if intent is not status.intent:
        new = status.model_copy(
            update={
                "phase": Phase.STOPPING,
                "reason": Code.STOPPING,
                "message": message,
                "intent": intent,
                "observed_generation": job.metadata.generation,
            }
        )
        return Step(new, Note("Stopping", message, warning=intent is Intent.WITHDRAW))

    broken = stopping or any(_failed(pod) or pod.metadata.deletion_timestamp for pod in mine.values())
    if broken:
        if not stopping and not complete:
            # A gang that broke while its pods were still being made: no more of them are made.
            new = status.model_copy(
                update={"phase": Phase.STOPPING, "reason": Code.STOPPING, "message": "a worker ended early"}
            )
            return Step(new)
        stop = tuple(p for p in mine.values() if not p.ended and p.metadata.deletion_timestamp is None)
        return replace(clearing, stop=clearing.stop + stop)

    if status.phase is Phase.STARTING and not complete:
        missing = tuple(w for w in range(job.spec.workers) if w not in mine)
        return replace(clearing, create=missing, wake_at=_deadline(job, settings))
    started = [p.status.start_time for p in mine.values() if p.status.phase is not PodPhase.PENDING]
    if status.phase is Phase.STARTING and len(started) == job.spec.workers:
        return _running(job, max((at for at in started if at), default=now))
    if not complete:  # Running, and a pod is gone although our finalizer was on it: forced away with its node
        new = status.model_copy(
            update={"phase": Phase.STOPPING, "reason": Code.STOPPING, "message": "a worker's pod vanished"}
        )
        return Step(new, Note("WorkerLost", "a worker's pod vanished", warning=True))
    return replace(clearing, wake_at=_deadline(job, settings))


def _running(job: TrainingJob, started_at: datetime) -> Step:
    count = job.spec.workers
    message = "running" if count == 1 else f"all {count} workers are running"
    new = job.status.model_copy(
        update={
            "phase": Phase.RUNNING,
            "reason": Code.WORKERS_RUNNING,
            "message": message,
            "started_at": started_at,
        }
    )
    return Step(new, Note("Running", f"attempt {job.status.attempt}: {message}"))


def _intent(job: TrainingJob, now: datetime, settings: Settings) -> tuple[Intent, str]:
    """What is asked of the attempt now, never weaker than what was recorded."""
    status = job.status
    if job.spec.cancel:
        return Intent.CANCEL, "cancel requested"
    if status.intent is not Intent.NONE:
        return status.intent, status.message
    if job.spec.suspend:
        return Intent.SUSPEND, "suspend requested"
    if status.phase is Phase.STOPPING:
        return Intent.NONE, status.message
    deadline = _deadline(job, settings)
    if deadline is None or now < deadline:
        return Intent.NONE, status.message
    if status.phase is Phase.STARTING:
        waited = format_duration(settings.start_timeout_s)
        return Intent.WITHDRAW, f"not all workers were running after {waited}; the gang is withdrawn"
    return Intent.MAX_DURATION, f"it ran for stop.maxDuration ({job.spec.stop.max_duration})"


def _deadline(job: TrainingJob, settings: Settings) -> datetime | None:
    """When the current attempt's time is up, if it has a limit."""
    status = job.status
    if status.phase is Phase.STARTING and status.placed_at is not None:
        return status.placed_at + timedelta(seconds=settings.start_timeout_s)
    longest = job.spec.stop.max_duration
    if status.phase is Phase.RUNNING and status.started_at is not None and longest is not None:
        return status.started_at + timedelta(seconds=max(0.0, parse_duration(longest) - status.ran_s))
    return None


def _finish(job: TrainingJob, phase: Phase, reason: Code, message: str, now: datetime) -> Step:
    new = job.status.model_copy(
        update={
            "phase": phase,
            "reason": reason,
            "message": message,
            "finished_at": now,
            "observed_generation": job.metadata.generation,
            "observed_retry_generation": job.spec.retry_generation,
        }
    )
    return Step(
        with_condition(new, phase.value, True, reason, now, job.metadata.generation), Note(phase.value, message)
    )


def _clear(pods: Sequence[Pod]) -> Step:
    """Stop, release and delete pods nobody waits for any more."""
    return Step(
        stop=tuple(pod for pod in pods if not pod.ended and pod.metadata.deletion_timestamp is None),
        release=tuple(pod for pod in pods if pod.ended and FINALIZER_OUTCOME in pod.metadata.finalizers),
        discard=tuple(pod for pod in pods if pod.ended and pod.metadata.deletion_timestamp is None),
    )


def _attempt(pod: Pod) -> int:
    return int(pod.metadata.labels[LABEL_ATTEMPT])


def _failed(pod: Pod) -> bool:
    return pod.status.phase is PodPhase.FAILED
