"""How an attempt ended: from its workers' exit records to the job's new status.

Pure. Owns the choice of the cause within a gang, retries and their back-off, blame, the attempt's entry in the history.
Called by `lifecycle.step` once every worker of the attempt has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.spec.job import (
    MAX_ATTEMPTS,
    AttemptEnd,
    Blame,
    Claim,
    Phase,
    TrainingJob,
    WorkerEnd,
)
from stoker.spec.job_parts import MAX_WORKERS
from stoker.spec.outcome import POLICIES, Category, Intent, Verdict, verdict
from stoker.spec.pod import Pod
from stoker.spec.quantity import parse_duration
from stoker.spec.reasons import Code
from stoker.spec.worker import ExitRecord, exit_record

from .conditions import with_condition
from .failure_hold import held_s, intent_behind
from .memory_end import memory_end
from .pod_end import WorkerOutcome, read_worker
from .stall import late_stall_note
from .start_holdup import IMAGE_CONDITION
from .step import NO_FACTS, Facts, Note, Step

MAX_BACKOFF_S = 600.0
SECRET_BACKOFF_S = 120.0
"""The most where a secret is missing: so long after it was set a job starts, at the latest."""
LONG_ATTEMPT_S = 60.0
_AGREES_S = 30.0
"""A supervisor begins so long after its container at most, and its record is written so long before the container's
end. (A kubelet's times are whole seconds.)"""
_OURS = frozenset({Intent.PREEMPT, Intent.RESIZE})
# Ends that say something about the node, not about the job.
_NODES_FAULT = frozenset({Category.NODE_LOST, Category.REJECTED, Category.DEVICE_UNAVAILABLE})
# Ends that a sick GPU explains.
_GPUS_FAULT = frozenset({Category.USER_ERROR, Category.KILLED, Category.STALLED, Category.DEVICE_UNAVAILABLE})
_WITHDRAWN_AS = {
    Code.IMAGE_UNAVAILABLE: Category.IMAGE,
    Code.VOLUME_UNAVAILABLE: Category.VOLUME,
    Code.SECRET_MISSING: Category.SECRET_MISSING,
}
_ZERO_SAYS = (
    "exit 0 after SIGTERM counts as done; set stop.exitZeroAfterSignal: Stopped if the script saves and exits 0 on"
    " SIGTERM, or exit 75"
)


@dataclass(frozen=True)
class _EndedWorker:
    index: int
    node: str
    pod_uid: str
    record: ExitRecord | None
    category: Category | None
    message: str
    exit_code: int | None
    disrupted: bool = False
    zero_after_stop: bool = False
    memory_killed: bool = False
    span: tuple[float, float] | None = None
    """From when to when it ran, as timestamps. None: nothing says."""


def end_attempt(
    job: TrainingJob,
    pods: Mapping[int, Pod],
    now: datetime,
    blame_s: float,
    facts: Facts = NO_FACTS,
) -> Step:
    """The status after the current attempt, all of whose pods (worker → pod) are over.

    A worker without a pod was never started: its attempt was stopped before.
    """
    status = job.status
    nodes = {placed.worker: placed.node for placed in status.placement}
    records = {worker: exit_record(pod) for worker, pod in pods.items()}
    stopped = any(record.stop_requested for record in records.values() if record)
    workers = [
        _read(job, w, nodes.get(w, ""), pods.get(w), records.get(w), facts, gang_stopped=stopped)
        for w in range(job.workers)
    ]
    cause = _cause(workers)
    category = cause.category if cause else None
    withdrawn = category is Category.INTERRUPTED and status.intent is Intent.WITHDRAW
    if withdrawn:
        category = _WITHDRAWN_AS.get(status.reason, Category.START_TIMEOUT)
    intent = intent_behind(status.intent, cause.record if cause else None)
    broken = _broken_by(status.intent, cause, facts)
    if broken:
        intent = Intent.PREEMPT
    what = verdict(intent, category)
    if what is Verdict.FAILED and intent is Intent.MAX_DURATION:
        category = Category.MAX_DURATION
    lasted_s = _lasted_s(job, workers, now)
    kept_s = min(held_s(job, (w.record for w in workers if w.record is not None), now), lasted_s)
    message = status.message if withdrawn and status.message else _message(job, workers, cause, category)
    if broken:
        message = f"{broken} ({message})"[:1024]
    ran_s = lasted_s - kept_s
    claim, counts_as = _resized(job, workers, what, now)
    if broken:
        counts_as = Intent.PREEMPT
    ended = AttemptEnd(
        number=status.attempt,
        started_at=status.started_at,
        ended_at=now,
        intent=counts_as,
        category=category,
        held_s=round(kept_s, 3),
        message=message,
        workers=tuple(
            WorkerEnd(
                worker=w.index,
                node=w.node,
                pod_uid=w.pod_uid,
                exit_code=w.exit_code,
                category=w.category,
            )
            for w in workers
        ),
        progress=workers[0].record.progress if workers[0].record else None,
    )
    update: dict[str, object] = {
        "attempts": _kept((*status.attempts, ended)),
        "placement": (),
        "placed_at": None,
        "started_at": None,
        "intent": Intent.NONE,
        "claim": claim,
        "ran_s": round(status.ran_s + ran_s, 3),
        "attained_gpu_seconds": round(status.attained_gpu_seconds + lasted_s * job.gpus, 3),
        "held_s": round(status.held_s + kept_s, 3),
        "queued_at": status.queued_at or job.metadata.creation_timestamp,
        "not_before": None,
        "message": message,
        "conditions": tuple(c for c in status.conditions if c.type != IMAGE_CONDITION),
        "observed_generation": job.metadata.generation,
    }
    update |= _next(job, what, intent, category, ended, now)
    if update["phase"] is Phase.QUEUED and status.intent is Intent.RESIZE and counts_as is Intent.PREEMPT:
        update["reason"] = facts.preempted_as
    if update["phase"] is Phase.QUEUED and broken:
        update["reason"] = Code.GPU_SICK
    if update["phase"] is Phase.QUEUED:
        update["blamed"] = _blamed(job, workers, category, now, blame_s)
    new = status.model_copy(update=update)
    phase = new.phase
    if phase is not Phase.QUEUED:
        new = with_condition(new, phase.value, True, new.reason, now, job.metadata.generation)
    text = f"attempt {status.attempt}: {new.message}"
    before = late_stall_note(job, new.message) if category is Category.STALLED else None
    if what is Verdict.SUCCEEDED and job.spec.trainer.recipe is None:
        before = next((_zero_note(job, worker.index) for worker in workers if worker.zero_after_stop), None)
    return Step(new, Note(_EVENT[phase], text, warning=phase in (Phase.FAILED, Phase.QUEUED)), before=before)


def _broken_by(intent: Intent, cause: _EndedWorker | None, facts: Facts) -> str:
    """The sick GPU for which the attempt failed before it could be asked to end; "": it did not."""
    if intent is not Intent.NONE or cause is None or cause.category not in _GPUS_FAULT:
        return ""
    was_held = cause.record is not None and cause.record.held_s > 0  # it had failed before
    return "" if was_held else facts.moved_for


def _resized(
    job: TrainingJob, workers: list[_EndedWorker], what: Verdict, now: datetime
) -> tuple[Claim | None, Intent]:
    """The room in which a job that is resized goes on, and what its end counts as: a shrink that could not save within
    the grace is a preemption."""
    status = job.status
    if status.intent is not Intent.RESIZE or status.claim is None or what is not Verdict.REQUEUE:
        return None, status.intent
    lost = any(one.pod_uid and (one.record is None or one.record.grace_exceeded) for one in workers)
    shrinks = len(status.claim.placement) < job.workers
    claim = status.claim.model_copy(update={"since": now})
    return claim, Intent.PREEMPT if lost and shrinks else Intent.RESIZE


def _zero_note(job: TrainingJob, worker: int) -> Note:
    who = f"worker {worker}: " if job.workers > 1 else ""
    return Note("ExitZeroAfterSignal", f"{who}{_ZERO_SAYS}", warning=True)


_EVENT = {
    Phase.SUCCEEDED: "Succeeded",
    Phase.FAILED: "Failed",
    Phase.CANCELLED: "Cancelled",
    Phase.SUSPENDED: "Suspended",
    Phase.QUEUED: "Requeued",
}


def _next(
    job: TrainingJob, what: Verdict, intent: Intent, category: Category | None, ended: AttemptEnd, now: datetime
) -> dict[str, object]:
    """Phase, reason and retries after `what`."""
    final = {"finished_at": now, "observed_retry_generation": job.spec.retry_generation}
    if what is Verdict.SUCCEEDED:
        return {"phase": Phase.SUCCEEDED, "reason": Code.COMPLETED, **final}
    if what is Verdict.CANCELLED:
        return {"phase": Phase.CANCELLED, "reason": Code.CANCELLED, **final}
    if what is Verdict.SUSPENDED:
        return {"phase": Phase.SUSPENDED, "reason": Code.SUSPENDED}
    if what is Verdict.FAILED or category is None:
        return {"phase": Phase.FAILED, "reason": Code.FAILED, **final}
    so_far = job.status.retries.get(category, 0)
    limit, backoff_s = retry_rule(job, category)
    if what is Verdict.RETRY and so_far >= limit:
        reason = Code.RETRIES_EXHAUSTED if limit else Code.FAILED
        return {"phase": Phase.FAILED, "reason": reason, **final}
    times = max(0, _fruitless((*job.status.attempts, ended)) - 1)
    missing = category is Category.SECRET_MISSING
    wait_s = min(backoff_s * 2.0 ** min(times, 30), SECRET_BACKOFF_S if missing else MAX_BACKOFF_S)
    if intent in _OURS:
        return {"phase": Phase.QUEUED, "reason": job.status.reason}
    return {
        "phase": Phase.QUEUED,
        "reason": Code.SECRET_MISSING if missing else Code.BACKING_OFF,
        "retries": {**job.status.retries, category: so_far + 1},
        "not_before": now + timedelta(seconds=wait_s),
    }


def _kept(attempts: tuple[AttemptEnd, ...]) -> tuple[AttemptEnd, ...]:
    """The newest. Of large gangs the older ones without their workers, or no store would take the status."""
    kept, left = list[AttemptEnd](), MAX_WORKERS
    for end in reversed(attempts[-MAX_ATTEMPTS:]):
        left -= len(end.workers)
        kept.append(end if left >= 0 else end.model_copy(update={"workers": ()}))
    return tuple(reversed(kept))


def _fruitless(attempts: tuple[AttemptEnd, ...]) -> int:
    """How many of the newest attempts in a row came to nothing: short, and no further checkpoint.

    A job interrupted once a day is queued again at once; one that keeps failing on bad nodes waits longer each time.
    """
    count = 0
    for index in range(len(attempts) - 1, -1, -1):
        attempt = attempts[index]
        if attempt.intent in _OURS:
            continue
        if attempt.started_at and _ran_s(attempt, attempt.started_at) >= LONG_ATTEMPT_S:
            break
        if _saved_step(attempt) > max((_saved_step(earlier) for earlier in attempts[:index]), default=0):
            break
        count += 1
    return count


def _ran_s(attempt: AttemptEnd, started_at: datetime) -> float:
    return (attempt.ended_at - started_at).total_seconds() - attempt.held_s


def _saved_step(attempt: AttemptEnd) -> int:
    return attempt.progress.checkpoint.step if attempt.progress and attempt.progress.checkpoint else 0


def retry_rule(job: TrainingJob, category: Category) -> tuple[int, float]:
    """(retries allowed, first back-off in seconds): the job's own first matching rule, else the default."""
    policy = POLICIES[category]
    for rule in job.spec.retry.rules:
        if category in rule.categories:
            return rule.limit, parse_duration(rule.backoff) if rule.backoff else policy.backoff_s
    return policy.limit, policy.backoff_s


def _read(
    job: TrainingJob,
    index: int,
    node: str,
    pod: Pod | None,
    record: ExitRecord | None,
    facts: Facts,
    *,
    gang_stopped: bool,
) -> _EndedWorker:
    if pod is None:
        return _EndedWorker(
            index, node, "", None, Category.INTERRUPTED, "not started: the attempt was stopped first", None
        )
    own_trainer = job.spec.trainer.recipe is not None
    end: WorkerOutcome = read_worker(
        pod,
        record,
        facts.lost,
        own_trainer=own_trainer,
        gang_stopped=gang_stopped,
        exit_zero=job.spec.stop.exit_zero_after_signal,
    )
    return _EndedWorker(
        index,
        node,
        pod.uid,
        end.record,
        end.category,
        end.message,
        end.exit_code,
        end.disrupted,
        end.zero_after_stop,
        end.memory_killed,
        _span(pod, end.record),
    )


def _span(pod: Pod, record: ExitRecord | None) -> tuple[float, float] | None:
    """By its record, as far as its kubelet agrees: what a job has had decides who goes first, and a record may be of
    the job's own making."""
    if record is None:
        return None
    began, ended, terminated = record.started_at, record.finished_at, pod.terminated
    if terminated is not None and terminated.started_at is not None and terminated.finished_at is not None:
        since, until = terminated.started_at.timestamp(), terminated.finished_at.timestamp()
        began, ended = min(max(began, since), since + _AGREES_S), max(min(ended, until + 1.0), until - _AGREES_S)
    return began, ended


def _cause(workers: list[_EndedWorker]) -> _EndedWorker | None:
    """The worker that explains the end, None if all were done.

    A lost or refused worker explains whatever its peers met; else the earliest recorded failure; workers that only
    received a stop come last, those the cluster stopped before those Stoker stopped.
    """
    failed = [w for w in workers if w.category is not None]

    def rank(worker: _EndedWorker) -> tuple[int, bool, float, int]:
        order = 0 if worker.category in _NODES_FAULT else 2 if worker.category is Category.INTERRUPTED else 1
        at = worker.record.failed_at if worker.record and worker.record.failed_at else float("inf")
        return order, not worker.disrupted, at, worker.index

    return min(failed, key=rank, default=None)


def _why_done(job: TrainingJob, record: ExitRecord | None) -> str:
    """What a training that is done stopped at; '': it ended by itself, or nothing says."""
    if record is None:
        return ""
    if job.spec.trainer.recipe is None:
        return record.message if job.spec.stop.target is not None else ""
    ended = record.progress.summary.get("ended") if record.progress else None
    return ended if isinstance(ended, str) else ""


def _message(
    job: TrainingJob, workers: list[_EndedWorker], cause: _EndedWorker | None, category: Category | None
) -> str:
    if cause is None or category is None:
        done = "all workers are done" if job.workers > 1 else "done"
        ended = _why_done(job, workers[0].record)
        return f"{done}: {ended}"[:1024] if ended else done
    if category is Category.MAX_DURATION:
        return f"stopped after stop.maxDuration ({job.spec.stop.max_duration})"
    says = POLICIES[category].says
    if job.status.intent is not Intent.NONE and category is Category.INTERRUPTED:
        says = job.status.message if job.status.intent in _OURS else "stopped on request"
    progress = cause.record.progress if cause.record else None
    if category is Category.INTERRUPTED and progress is not None and progress.checkpoint is not None:
        says += f" (last saved: step {progress.checkpoint.step})"
    ours = job.status.intent in _OURS and category is Category.INTERRUPTED
    who = f"worker {cause.index}: " if job.workers > 1 and not ours else ""
    if cause.memory_killed:
        says = memory_end(job, cause.record.memory_peak_bytes if cause.record else None)
    elif cause.exit_code is not None and category is not Category.INTERRUPTED:
        signal = cause.record.signal if cause.record else None
        code = f"signal {signal}" if signal else f"exit {cause.exit_code}"
        says = code if category is Category.USER_ERROR else f"{says} ({code})"
    detail = f": {cause.message}" if cause.message else ""
    if cause.memory_killed and cause.message:
        detail = f" ({cause.message})"  # what stands before it is to be copied
    return f"{who}{says}{detail}"[:1024]


def _lasted_s(job: TrainingJob, workers: list[_EndedWorker], now: datetime) -> float:
    """Seconds from the first worker's start to the last one's end; without any record, until now."""
    spans = [w.span for w in workers if w.span is not None]
    if not spans:
        return max(0.0, (now - job.status.started_at).total_seconds()) if job.status.started_at else 0.0
    return max(0.0, max(ended for _, ended in spans) - min(began for began, _ in spans))


def _blamed(
    job: TrainingJob, workers: list[_EndedWorker], category: Category | None, now: datetime, blame_s: float
) -> tuple[Blame, ...]:
    until = {blame.node: blame.until for blame in job.status.blamed if blame.until > now}
    # If the node that held up the gang is known, it was blamed when the gang was withdrawn.
    timed_out = category is Category.START_TIMEOUT and job.status.reason is Code.STOPPING
    if blame_s > 0:
        for worker in workers:
            late = timed_out and worker.record is None
            if worker.node and (worker.category in _NODES_FAULT or late):
                until[worker.node] = now + timedelta(seconds=blame_s)
    return tuple(Blame(node=node, until=at) for node, at in sorted(until.items()))
