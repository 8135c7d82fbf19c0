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

from stoker.spec.job import ENDED, PLACED, Phase, TrainingJob, TrainingJobStatus
from stoker.spec.outcome import ExitZero
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.quantity import parse_duration
from stoker.spec.reasons import Code
from stoker.spec.worker import exit_record
from stoker.spec.worker_pod import worker_name

from .admission import judged, unaccepted
from .conditions import unscheduled, with_condition
from .context import Ground, first
from .ending import end_attempt
from .intents import asked, deadline_of, later, told
from .pod_end import read_worker
from .start_holdup import IMAGE_CONDITION, hold_up
from .step import NOTHING_SPECIAL, Note, Settings, Step, Surroundings

CHECKPOINTS_CONDITION = "CheckpointsPersistent"


def step(
    job: TrainingJob,
    pods: Sequence[Pod],
    now: datetime,
    settings: Settings,
    around: Surroundings = NOTHING_SPECIAL,
) -> Step:
    """The next step of a job whose pods (of all attempts) are `pods`, by name and owner. Cost: linear in the pods."""
    return unscheduled(_next(job, pods, Ground(now, settings, around)), job, now)


def _next(job: TrainingJob, pods: Sequence[Pod], ground: Ground) -> Step:
    status = job.status
    if job.metadata.deletion_timestamp is not None:
        return ground.clear(pods)  # it is going, whatever it was at
    accepted = unaccepted(status)
    if status.phase not in ENDED | PLACED:
        return _waiting(job, accepted, pods, ground)
    if accepted is not status:
        return Step(accepted)
    if status.phase in ENDED:
        return _ended(job, pods, ground)
    wanted = {f"{job.metadata.name}-{status.attempt}-{worker}": worker for worker in range(job.spec.workers)}
    mine = {wanted[name]: pod for pod in pods if (name := pod.metadata.name) in wanted}
    former = [pod for pod in pods if pod.metadata.name not in wanted]
    return _placed(job, mine, ground.clear(former), ground)


def orphans(pods: Sequence[Pod], now: datetime, settings: Settings, around: Surroundings = NOTHING_SPECIAL) -> Step:
    """What to do with pods whose job is gone: stop them, let them go."""
    return Ground(now, settings, around).clear(pods)


def _waiting(job: TrainingJob, status: TrainingJobStatus, pods: Sequence[Pod], ground: Ground) -> Step:
    """Queued or Suspended: no attempt is under way. `status`: the job's, without the condition Accepted."""
    now = ground.now
    if job.spec.cancel:
        return _finish(job, status, Phase.CANCELLED, Code.CANCELLED, "cancelled while waiting", now)
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
    if status.phase is Phase.QUEUED:
        return judged(job, ground.clear(pods), ground)
    return Step(status) if status is not job.status else ground.clear(pods)


def _ended(job: TrainingJob, pods: Sequence[Pod], ground: Ground) -> Step:
    status, now = job.status, ground.now
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
    cleared = ground.clear(pods)
    # The newest attempt's pods stay, for those who look at them; they hold nothing any more.
    kept = replace(cleared, discard=tuple(pod for pod in cleared.discard if _attempt(pod) != status.attempt))
    ttl_s = _ttl_s(job, ground)
    if ttl_s is None or status.finished_at is None:
        return kept
    due_at = status.finished_at + timedelta(seconds=ttl_s)
    if now < due_at:
        return replace(kept, wake_at=first(kept.wake_at, due_at))
    return replace(kept, expire=not kept.stop and not kept.release and all(ground.is_over(pod) for pod in pods))


def _ttl_s(job: TrainingJob, ground: Ground) -> float | None:
    """How long it is kept after its end: the job says it, else its queue, else the operator. None: for good."""
    if job.spec.ttl_after_finished is not None:
        return parse_duration(job.spec.ttl_after_finished)
    queue_ttl_s = ground.around.queue_ttl_s
    return ground.settings.ttl_s if queue_ttl_s is None else queue_ttl_s


def _placed(job: TrainingJob, mine: dict[int, Pod], clearing: Step, ground: Ground) -> Step:
    status, now = job.status, ground.now
    stopping = status.phase is Phase.STOPPING
    complete = len(mine) == job.spec.workers
    if all(ground.is_over(pod) for pod in mine.values()) and (complete or stopping):
        return end_attempt(job, mine, now, ground.settings.blame_s, ground.around)

    # Once all of them run nothing is held up, however long it took.
    late = not complete or any(pod.status.phase is PodPhase.PENDING for pod in mine.values())
    late = late and status.phase is Phase.STARTING
    held = hold_up(job, mine, now, ground.settings, ground.around.in_way) if late else None
    stop_first = asked(job, held, ground)
    if stop_first is not None:
        return stop_first

    clearing = replace(clearing, wake_at=first(clearing.wake_at, ground.wake_at(mine.values()), deadline_of(job, held)))
    lost = [pod for pod in mine.values() if (at := ground.given_up_at(pod)) is not None and at <= now]
    broken = stopping or lost or any(_failed(job, pod) or pod.metadata.deletion_timestamp for pod in mine.values())
    if broken:
        if not stopping and not complete:
            # A gang that broke while its pods were still being made: no more of them are made.
            new = status.model_copy(
                update={"phase": Phase.STOPPING, "reason": Code.STOPPING, "message": "a worker ended early"}
            )
            return Step(new)
        stop = tuple(p for p in mine.values() if not ground.is_over(p) and p.metadata.deletion_timestamp is None)
        return replace(clearing, stop=clearing.stop + stop)

    if status.phase is Phase.STARTING and not complete:
        missing = tuple(w for w in range(job.spec.workers) if w not in mine)
        in_way = told(job, held, ground) if ground.around.in_way else None
        return in_way or replace(clearing, create=missing)
    started = [_began(p) for p in mine.values() if p.status.phase is not PodPhase.PENDING]
    if status.phase is Phase.STARTING and len(started) == job.spec.workers:
        return _running(job, max((at for at in started if at), default=now), ground)
    if not complete:  # Running, and a pod is gone although our finalizer was on it: forced away with its node
        new = status.model_copy(
            update={"phase": Phase.STOPPING, "reason": Code.STOPPING, "message": "a worker's pod vanished"}
        )
        return Step(new, Note("WorkerLost", "a worker's pod vanished", warning=True))
    return told(job, held, ground) or later(clearing, job, held, ground)


def _running(job: TrainingJob, started_at: datetime, ground: Ground) -> Step:
    count = job.spec.workers
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
    if ground.around.ephemeral:
        words = "checkpoints die with the pods: name checkpoint.claim, or have a TrainingRuntime with checkpoints"
        generation = job.metadata.generation
        new = with_condition(new, CHECKPOINTS_CONDITION, False, "EmptyFolder", ground.now, generation, words)
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
