"""A job's life as a pure function: what its status should be now, and what is to be done to its pods.

`step(job, pods, now)` either moves the status (then nothing else: the status is written first, DESIGN §6) or, when the
status says all there is to say, names the pods to create, stop, release and delete. The operator applies a step and
asks again until nothing is left; it may die between any two calls. `stoker.controller.jobs` calls it (and the
simulator will).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.spec.job import ENDED, PLACED, Blame, Phase, TrainingJob, TrainingJobStatus
from stoker.spec.names import FINALIZER_OUTCOME, LABEL_ATTEMPT, LABEL_WORKER
from stoker.spec.outcome import Intent
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.quantity import parse_duration
from stoker.spec.reasons import Code

from .ending import end_attempt, with_condition
from .pod_end import EARLIEST, over_at
from .starting import IMAGE_CONDITION, TOLD, HoldUp, hold_up
from .step import NOTHING_SPECIAL, Note, Settings, Step, Surroundings

CHECKPOINTS_CONDITION = "CheckpointsPersistent"
ACCEPTED_CONDITION = "Accepted"
"""False in the status of a job that could not be read; it goes once it can be."""


def step(
    job: TrainingJob,
    pods: Sequence[Pod],
    now: datetime,
    settings: Settings,
    around: Surroundings = NOTHING_SPECIAL,
) -> Step:
    """The next step of a job whose pods (of all attempts) are `pods`. Cost: linear in the pods."""
    status = job.status
    ground = _Ground(now, settings, around)
    if job.metadata.deletion_timestamp is not None:
        return ground.clear(pods)  # it is going, whatever it was at
    if any(condition.type == ACCEPTED_CONDITION for condition in status.conditions):
        kept = tuple(condition for condition in status.conditions if condition.type != ACCEPTED_CONDITION)
        return Step(status.model_copy(update={"conditions": kept}))
    if status.phase in ENDED:
        return _ended(job, pods, ground)
    if status.phase not in PLACED:
        return _waiting(job, pods, ground)
    mine = {int(pod.metadata.labels[LABEL_WORKER]): pod for pod in pods if _attempt(pod) == status.attempt}
    former = [pod for pod in pods if _attempt(pod) != status.attempt]
    return _placed(job, mine, ground.clear(former), ground)


def orphans(pods: Sequence[Pod], now: datetime, settings: Settings, around: Surroundings = NOTHING_SPECIAL) -> Step:
    """What to do with pods whose job is gone: stop them, let them go."""
    return _Ground(now, settings, around).clear(pods)


class _Ground:
    """What every rule stands on: the time, the operator's times, the nodes."""

    def __init__(self, now: datetime, settings: Settings, around: Surroundings) -> None:
        self.now, self.settings, self.around = now, settings, around

    def over_at(self, pod: Pod) -> datetime | None:
        return over_at(pod, self.around.lost, self.settings.lost_margin_s)

    def is_over(self, pod: Pod) -> bool:
        at = self.over_at(pod)
        return at is not None and at <= self.now

    def given_up_at(self, pod: Pod) -> datetime | None:
        """When the node of a living pod has been silent for too long."""
        since = self.around.lost.get(pod.spec.node_name) if pod.spec.node_name else None
        return None if since is None else since + timedelta(seconds=self.settings.node_lost_s)

    def wake_at(self, pods: Iterable[Pod]) -> datetime | None:
        """When the next of these pods will count as over, or as given up."""
        times = [
            at
            for pod in pods
            if not pod.ended
            for at in (self.over_at(pod) if pod.metadata.deletion_timestamp else self.given_up_at(pod),)
            if at is not None and at > self.now
        ]
        return min(times, default=None)

    def clear(self, pods: Sequence[Pod]) -> Step:
        """Stop, release and delete pods nobody waits for any more."""
        over = [pod for pod in pods if self.is_over(pod)]
        live = [pod for pod in pods if not self.is_over(pod)]
        return Step(
            stop=tuple(pod for pod in live if pod.metadata.deletion_timestamp is None),
            release=tuple(pod for pod in over if FINALIZER_OUTCOME in pod.metadata.finalizers),
            discard=tuple(pod for pod in over if pod.metadata.deletion_timestamp is None),
            wake_at=self.wake_at(live),
        )


def _waiting(job: TrainingJob, pods: Sequence[Pod], ground: _Ground) -> Step:
    """Queued or Suspended: no attempt is under way."""
    status, now = job.status, ground.now
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
    return ground.clear(pods)


def _ended(job: TrainingJob, pods: Sequence[Pod], ground: _Ground) -> Step:
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
    if job.spec.ttl_after_finished is None or status.finished_at is None:
        return kept
    due_at = status.finished_at + timedelta(seconds=parse_duration(job.spec.ttl_after_finished))
    if now < due_at:
        return replace(kept, wake_at=_first(kept.wake_at, due_at))
    return replace(kept, expire=not kept.stop and not kept.release and all(ground.is_over(pod) for pod in pods))


def _placed(job: TrainingJob, mine: dict[int, Pod], clearing: Step, ground: _Ground) -> Step:
    status, now = job.status, ground.now
    stopping = status.phase is Phase.STOPPING
    complete = len(mine) == job.spec.workers
    if all(ground.is_over(pod) for pod in mine.values()) and (complete or stopping):
        return end_attempt(job, mine, now, ground.settings.blame_s, ground.around)

    # Once all of them run nothing is held up, however long it took.
    late = not complete or any(pod.status.phase is PodPhase.PENDING for pod in mine.values())
    held = hold_up(job, mine, now, ground.settings) if late and status.phase is Phase.STARTING else None
    asked = _asked(job, held, ground)
    if asked is not None:
        return asked

    clearing = replace(clearing, wake_at=_first(clearing.wake_at, ground.wake_at(mine.values()), _deadline(job, held)))
    lost = [pod for pod in mine.values() if (at := ground.given_up_at(pod)) is not None and at <= now]
    broken = stopping or lost or any(_failed(pod) or pod.metadata.deletion_timestamp for pod in mine.values())
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
        return replace(clearing, create=missing)
    started = [_began(p) for p in mine.values() if p.status.phase is not PodPhase.PENDING]
    if status.phase is Phase.STARTING and len(started) == job.spec.workers:
        return _running(job, max((at for at in started if at), default=now), ground)
    if not complete:  # Running, and a pod is gone although our finalizer was on it: forced away with its node
        new = status.model_copy(
            update={"phase": Phase.STOPPING, "reason": Code.STOPPING, "message": "a worker's pod vanished"}
        )
        return Step(new, Note("WorkerLost", "a worker's pod vanished", warning=True))
    return _told(job, held, ground) or _later(clearing, job, held, ground)


def _running(job: TrainingJob, started_at: datetime, ground: _Ground) -> Step:
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


def _asked(job: TrainingJob, held: HoldUp | None, ground: _Ground) -> Step | None:
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


def _intent(job: TrainingJob, held: HoldUp | None, ground: _Ground) -> tuple[Intent, Code, str]:
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
    deadline = _deadline(job, held)
    if deadline is None or ground.now < deadline:
        return Intent.NONE, status.reason, status.message
    if held is not None:
        reason = held.code if held.code in (Code.IMAGE_UNAVAILABLE, Code.POD_UNSCHEDULABLE) else Code.STOPPING
        return Intent.WITHDRAW, reason, f"{held.message[:900]}; the gang is withdrawn"
    return Intent.MAX_DURATION, Code.STOPPING, f"it ran for stop.maxDuration ({job.spec.stop.max_duration})"


def _deadline(job: TrainingJob, held: HoldUp | None) -> datetime | None:
    """When the current attempt's time is up, if it has a limit."""
    status = job.status
    if held is not None:
        return held.withdraw_at
    longest = job.spec.stop.max_duration
    if status.phase is Phase.RUNNING and status.started_at is not None and longest is not None:
        return status.started_at + timedelta(seconds=max(0.0, parse_duration(longest) - status.ran_s))
    return None


def _told(job: TrainingJob, held: HoldUp | None, ground: _Ground) -> Step | None:
    """The write that says what a starting gang waits for: once it is due, and only when it is a new thing."""
    if held is None or not _is_news(job, held) or ground.now < _tell_at(job, ground):
        return None
    new = job.status.model_copy(update={"reason": held.code, "message": held.message})
    if held.code is not Code.IMAGE_UNAVAILABLE:
        return Step(new)
    generation = job.metadata.generation
    new = with_condition(new, IMAGE_CONDITION, False, held.code, ground.now, generation)
    return Step(new, Note(held.code.value, held.message, warning=True))


def _later(step: Step, job: TrainingJob, held: HoldUp | None, ground: _Ground) -> Step:
    if held is None or not _is_news(job, held):
        return step
    return replace(step, wake_at=_first(step.wake_at, _tell_at(job, ground)))


def _is_news(job: TrainingJob, held: HoldUp) -> bool:
    known = TOLD.index(job.status.reason) if job.status.reason in TOLD else 0
    return TOLD.index(held.code) > known


def _tell_at(job: TrainingJob, ground: _Ground) -> datetime:
    return (job.status.placed_at or EARLIEST) + timedelta(seconds=ground.settings.tell_s)


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


def _attempt(pod: Pod) -> int:
    return int(pod.metadata.labels[LABEL_ATTEMPT])


def _failed(pod: Pod) -> bool:
    return pod.status.phase is PodPhase.FAILED


def _began(pod: Pod) -> datetime | None:
    """When its process began; the node took the pod before that, and pulled its image."""
    for status in pod.status.container_statuses:
        state = status.state
        at = state.running.started_at if state.running else state.terminated.started_at if state.terminated else None
        if at is not None:
            return at
    return pod.status.start_time


def _first(*times: datetime | None) -> datetime | None:
    return min((at for at in times if at is not None), default=None)
