"""The job's life, rule by rule: the name is the rule, the body is data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.life.lifecycle import orphans, step
from stoker.life.step import Settings, Step
from stoker.spec.job import Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.outcome import Category, Intent
from stoker.spec.pod import (
    NEVER_STARTED,
    REJECTED,
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodPhase,
    PodSpec,
    PodStatus,
    Terminated,
)
from stoker.spec.reasons import Code
from stoker.spec.worker import Checkpoint, ExitRecord, Progress

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SETTINGS = Settings(start_timeout_s=60, blame_s=120)


def job(phase: Phase = Phase.RUNNING, *, workers: int = 1, recipe: bool = False, **given: Any) -> TrainingJob:
    spec = {name: given.pop(name) for name in list(given) if name not in TrainingJobStatus.model_fields}
    trainer = {"recipe": "image-classification"} if recipe else {"command": ["true"]}
    placed = phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
    status: dict[str, Any] = {
        "phase": phase,
        "attempt": 1 if placed else 0,
        "placement": tuple(Placed(worker=w, node=f"n{w}") for w in range(workers)) if placed else (),
        "placed_at": NOW - timedelta(seconds=30) if placed else None,
        "started_at": NOW - timedelta(seconds=20) if phase in (Phase.RUNNING, Phase.STOPPING) else None,
    }
    return TrainingJob(
        metadata=ObjectMeta(name="j", namespace="p", uid="u1", creation_timestamp=NOW - timedelta(minutes=5)),
        spec=spec | {"workers": workers, "trainer": trainer},  # type: ignore[arg-type]
        status=TrainingJobStatus(**(status | given)),
    )


def pod(worker: int = 0, phase: PodPhase = PodPhase.RUNNING, *, attempt: int = 1, **given: Any) -> Pod:
    """A worker's pod; `exit_code`, `signal`, `stop_requested`, `failed_at` make its exit record."""
    record = None
    if "exit_code" in given:
        record = ExitRecord(
            pod_uid=f"pod-{attempt}-{worker}",
            started_at=NOW.timestamp() - 20,
            finished_at=NOW.timestamp(),
            stop_requested=given.get("stop_requested", False),
            exit_code=given["exit_code"],
            signal=given.get("signal"),
            failed_at=given.get("failed_at"),
            message=given.get("message", ""),
            progress=Progress(at=0, checkpoint=Checkpoint(step=given["saved"])) if given.get("saved") else None,
        )
    ended = phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    terminated = None
    if ended and (record is not None or given.get("lost")):
        code = record.exit_code if record else 137
        terminated = Terminated(exit_code=code, message=record.model_dump_json(by_alias=True) if record else "")
    return Pod(
        metadata=ObjectMeta(
            name=f"j-{attempt}-{worker}",
            namespace="p",
            uid=f"pod-{attempt}-{worker}",
            finalizers=(FINALIZER_OUTCOME,) if given.get("held", True) else (),
            deletion_timestamp=NOW if given.get("deleting") else None,
        ),
        spec=PodSpec(node_name=f"n{worker}", containers=(Container(),)),
        status=PodStatus(
            phase=phase,
            reason=given.get("reason", ""),
            start_time=NOW if phase is not PodPhase.PENDING else None,
            container_statuses=(ContainerStatus(state=ContainerState(terminated=terminated)),) if terminated else (),
        ),
    )


def done(worker: int = 0, **given: Any) -> Pod:
    return pod(worker, PodPhase.SUCCEEDED, exit_code=0, **given)


def failed(worker: int = 0, exit_code: int = 1, **given: Any) -> Pod:
    return pod(worker, PodPhase.FAILED, exit_code=exit_code, **given)


def go(subject: TrainingJob, *pods: Pod, now: datetime = NOW) -> Step:
    return step(subject, pods, now, SETTINGS)


def status_of(result: Step) -> TrainingJobStatus:
    assert result.status is not None
    assert not (result.create or result.stop or result.release or result.discard), "status is written first"
    return result.status


def test_a_placed_job_gets_the_pods_that_are_missing() -> None:
    assert go(job(Phase.STARTING, workers=3), pod(1, PodPhase.PENDING)).create == (0, 2)


def test_it_is_running_only_when_every_worker_runs() -> None:
    starting = job(Phase.STARTING, workers=2)
    assert go(starting, pod(0), pod(1, PodPhase.PENDING)).status is None
    status = status_of(go(starting, pod(0), pod(1)))
    assert (status.phase, status.reason, status.started_at) == (Phase.RUNNING, Code.WORKERS_RUNNING, NOW)


def test_a_job_so_short_that_it_was_never_seen_running_succeeds() -> None:
    status = status_of(go(job(Phase.STARTING), done()))
    assert status.phase is Phase.SUCCEEDED
    assert status.ran_s == pytest.approx(20)


def test_one_worker_done_waits_for_the_others() -> None:
    assert go(job(workers=2), done(0), pod(1)) == Step()


def test_one_worker_failed_stops_the_others_and_then_ends_the_attempt() -> None:
    two = job(workers=2)
    assert [p.metadata.name for p in go(two, failed(0), pod(1)).stop] == ["j-1-1"]
    peer = failed(1, 75, stop_requested=True, deleting=True)
    status = status_of(go(two, failed(0, message="boom"), peer))
    assert (status.phase, status.reason) == (Phase.FAILED, Code.FAILED)
    assert status.attempts[0].category is Category.USER_ERROR
    assert "worker 0" in status.message and "boom" in status.message
    assert [w.category for w in status.attempts[0].workers] == [Category.USER_ERROR, Category.INTERRUPTED]


@pytest.mark.parametrize(
    ("name", "pods", "cause"),
    [
        ("the earliest failure is the cause", [failed(0, 3, failed_at=9.0), failed(1, 4, failed_at=8.0)], 1),
        (
            "a lost worker explains its peers' errors",
            [failed(0, 1, failed_at=1.0), pod(1, PodPhase.FAILED, lost=True)],
            1,
        ),
        (
            "who was only told to stop is collateral",
            [failed(0, 143, stop_requested=True), failed(1, 1, failed_at=5.0)],
            1,
        ),
    ],
)
def test_of_a_gang_one_worker_is_the_cause(name: str, pods: list[Pod], cause: int) -> None:
    assert status_of(go(job(workers=2), *pods)).message.startswith(f"worker {cause}:"), name


def test_a_gang_that_agreed_to_stop_is_interrupted_though_only_one_of_it_was_told() -> None:
    """SIGTERM to one worker: our trainer's ranks agree among themselves, and the others end with 75 untold."""
    told, untold = failed(0, 75, stop_requested=True), failed(1, 75)
    status = status_of(go(job(workers=2, recipe=True), told, untold))
    assert [w.category for w in status.attempts[0].workers] == [Category.INTERRUPTED, Category.INTERRUPTED]
    assert (status.phase, status.attempts[0].category) == (Phase.QUEUED, Category.INTERRUPTED)
    users_own = status_of(go(job(workers=2), told, untold))
    assert users_own.attempts[0].category is Category.USER_ERROR


LIFE = [
    # (case, job, pods, phase, category, reason)
    ("exit 0", job(), [done()], Phase.SUCCEEDED, None, Code.COMPLETED),
    ("exit 1 is the user's", job(), [failed()], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("a user's own 75", job(), [failed(0, 75)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("a user's own 64", job(), [failed(0, 64)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("a user's own 77", job(), [failed(0, 77)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("our 64", job(recipe=True), [failed(0, 64)], Phase.FAILED, Category.BAD_CONFIG, Code.FAILED),
    ("our 76", job(recipe=True), [failed(0, 76)], Phase.FAILED, Category.OUT_OF_MEMORY, Code.FAILED),
    ("our 77", job(recipe=True), [failed(0, 77)], Phase.FAILED, Category.DIVERGED, Code.FAILED),
    ("our 78 is tried again", job(recipe=True), [failed(0, 78)], Phase.QUEUED, Category.STALLED, Code.BACKING_OFF),
    ("killed", job(), [failed(0, 137, signal=9)], Phase.QUEUED, Category.KILLED, Code.BACKING_OFF),
    ("a crash of the user's", job(), [failed(0, 139, signal=11)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("lost", job(), [pod(0, PodPhase.FAILED, lost=True)], Phase.QUEUED, Category.NODE_LOST, Code.BACKING_OFF),
    ("refused", job(), [pod(0, PodPhase.FAILED, reason=REJECTED)], Phase.QUEUED, Category.REJECTED, Code.BACKING_OFF),
    (
        "stopped by somebody else",
        job(),
        [failed(0, 75, stop_requested=True)],
        Phase.QUEUED,
        Category.INTERRUPTED,
        Code.BACKING_OFF,
    ),
    (
        "suspended",
        job(Phase.STOPPING, intent=Intent.SUSPEND, suspend=True),
        [failed(0, 75, stop_requested=True)],
        Phase.SUSPENDED,
        Category.INTERRUPTED,
        Code.SUSPENDED,
    ),
    (
        "cancelled",
        job(Phase.STOPPING, intent=Intent.CANCEL, cancel=True),
        [failed(0, 143, signal=15, stop_requested=True)],
        Phase.CANCELLED,
        Category.INTERRUPTED,
        Code.CANCELLED,
    ),
    (
        "done before the stop came",
        job(Phase.STOPPING, intent=Intent.SUSPEND),
        [done()],
        Phase.SUCCEEDED,
        None,
        Code.COMPLETED,
    ),
    (
        "out of time",
        job(Phase.STOPPING, intent=Intent.MAX_DURATION),
        [failed(0, 75, stop_requested=True)],
        Phase.FAILED,
        Category.MAX_DURATION,
        Code.FAILED,
    ),
    (
        "failed by itself while a suspend was asked",
        job(Phase.STOPPING, intent=Intent.SUSPEND, recipe=True),
        [failed(0, 64)],
        Phase.FAILED,
        Category.BAD_CONFIG,
        Code.FAILED,
    ),
    (
        "withdrawn before it ran",
        job(Phase.STOPPING, intent=Intent.WITHDRAW),
        [pod(0, PodPhase.FAILED, reason=NEVER_STARTED)],
        Phase.QUEUED,
        Category.START_TIMEOUT,
        Code.BACKING_OFF,
    ),
]


STOPPED = {"stop": {"exitZeroAfterSignal": "Stopped"}}
ZERO = "exit 0 after SIGTERM counts as done; set stop.exitZeroAfterSignal: Stopped"


@pytest.mark.parametrize("intent", list(Intent))
@pytest.mark.parametrize("workers", [1, 2])
def test_exit_0_after_a_stop_is_exit_75_where_the_job_says_so_and_else_done_with_a_warning(
    workers: int, intent: Intent
) -> None:
    phase = Phase.RUNNING if intent is Intent.NONE else Phase.STOPPING

    def ended(code: int, **spec: Any) -> Step:
        make = failed if code else done
        end = {"exit_code": code} if code else {}
        pods = [make(w, stop_requested=True, deleting=True, **end) for w in range(workers)]
        return go(job(phase, intent=intent, workers=workers, **spec), *pods)

    as_75 = status_of(ended(75))
    stopped = ended(0, **STOPPED)
    assert stopped.before is None
    now = status_of(stopped)
    assert (now.phase, now.reason) == (as_75.phase, as_75.reason)
    assert (now.retries, now.not_before) == (as_75.retries, as_75.not_before)
    assert now.attempts[-1].category is as_75.attempts[-1].category

    by_default = ended(0)
    assert status_of(by_default).phase is Phase.SUCCEEDED
    assert by_default.before is not None and by_default.before.warning and ZERO in by_default.before.message
    assert go(job(phase, intent=intent, workers=workers), *(done(w) for w in range(workers))).before is None


@pytest.mark.parametrize(
    ("case", "peer"),
    [
        ("saved and said 75", failed(1, 75, stop_requested=True)),
        ("ended with 0 and no request of its own", done(1)),
        ("ended by the signal", failed(1, 143, signal=15, stop_requested=True)),
    ],
)
def test_a_gang_of_which_one_worker_stopped_with_0_is_stopped(case: str, peer: Pod) -> None:
    status = status_of(go(job(workers=2, **STOPPED), done(0, stop_requested=True), peer))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.INTERRUPTED), case


def test_a_gang_does_not_wait_for_the_peers_of_a_worker_that_stopped_with_0() -> None:
    """SIGTERM reached one worker's supervisor, and its pod is not under deletion: its phase says Succeeded."""
    ended = done(0, stop_requested=True)
    assert [p.metadata.name for p in go(job(workers=2, **STOPPED), ended, pod(1)).stop] == ["j-1-1"]
    assert go(job(workers=2), ended, pod(1)) == Step()
    assert go(job(workers=2, **STOPPED), done(0), pod(1)) == Step(), "done without a stop"


def test_a_failure_explains_peers_that_stopped_with_0() -> None:
    status = status_of(go(job(workers=2, **STOPPED), done(0, stop_requested=True), failed(1, 3, failed_at=5.0)))
    assert (status.phase, status.attempts[-1].category) == (Phase.FAILED, Category.USER_ERROR)


def test_a_recipes_exit_0_is_done_without_a_warning_whatever_was_asked() -> None:
    result = go(job(recipe=True), done(stop_requested=True))
    assert (status_of(result).phase, result.before) == (Phase.SUCCEEDED, None)


@pytest.mark.parametrize(("case", "subject", "pods", "phase", "category", "reason"), LIFE, ids=[c[0] for c in LIFE])
def test_how_an_attempt_ends(
    case: str, subject: TrainingJob, pods: list[Pod], phase: Phase, category: Category | None, reason: Code
) -> None:
    status = status_of(go(subject, *pods))
    assert (status.phase, status.attempts[-1].category, status.reason) == (phase, category, reason)
    assert status.placement == ()
    assert status.intent is Intent.NONE
    assert (status.finished_at is not None) == (phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED))


def test_retries_are_counted_per_category_with_doubling_back_off_and_end() -> None:
    rules = {"rules": [{"categories": ["UserError"], "limit": 2, "backoff": "4s"}]}
    first = status_of(go(job(retry=rules), failed()))
    assert first.not_before == NOW + timedelta(seconds=4)
    second = status_of(go(job(retry=rules, retries=first.retries, attempts=first.attempts), failed()))
    assert second.not_before == NOW + timedelta(seconds=8)
    third = status_of(go(job(retry=rules, retries=second.retries), failed()))
    assert (third.phase, third.reason) == (Phase.FAILED, Code.RETRIES_EXHAUSTED)


def interrupted(subject: TrainingJob, *, saved: int | None = None, ran_s: float = 1.0) -> TrainingJobStatus:
    """The status after one more attempt that was stopped from outside."""
    now = NOW + timedelta(seconds=ran_s)
    end = failed(0, 75, stop_requested=True, saved=saved)
    running = subject.model_copy(update={"status": subject.status.model_copy(update={"started_at": NOW})})
    status = status_of(go(running, end, now=now))
    assert (status.phase, status.not_before is not None) == (Phase.QUEUED, True)
    return status.model_copy(
        update={
            "phase": Phase.RUNNING,
            "placement": subject.status.placement,
            "not_before": NOW + ((status.not_before or now) - now),
        }
    )


def test_ends_that_are_nobodys_fault_spend_no_retries_but_wait_longer_while_nothing_comes_of_it() -> None:
    subject, waits = job(), []
    for options in ({}, {}, {}, {"saved": 5}, {"saved": 9}, {"saved": 9}, {}, {"ran_s": 3600.0}, {}):
        status = interrupted(subject, **options)
        waits.append((status.not_before - NOW).total_seconds())
        subject = subject.model_copy(update={"status": status})
    assert waits == [1, 2, 4, 1, 1, 1, 2, 1, 1]
    for _ in range(60):
        subject = subject.model_copy(update={"status": interrupted(subject)})
    assert subject.status.not_before == NOW + timedelta(minutes=10)


def test_a_requeued_job_keeps_its_place_in_the_queue() -> None:
    since = NOW - timedelta(hours=1)
    assert status_of(go(job(queued_at=since), failed(0, 137, signal=9))).queued_at == since


def test_lost_and_refused_workers_blame_their_nodes_for_a_while() -> None:
    status = status_of(go(job(workers=2), pod(0, PodPhase.FAILED, lost=True), failed(1, 75, stop_requested=True)))
    assert [(b.node, b.until) for b in status.blamed] == [("n0", NOW + timedelta(seconds=120))]


@pytest.mark.parametrize(
    ("intent", "subject", "now"),
    [
        (Intent.CANCEL, job(cancel=True), NOW),
        (Intent.SUSPEND, job(suspend=True), NOW),
        (Intent.CANCEL, job(Phase.STOPPING, intent=Intent.SUSPEND, suspend=True, cancel=True), NOW),
        (Intent.MAX_DURATION, job(stop={"maxDuration": "30s"}, ran_s=15.0), NOW),
        (Intent.WITHDRAW, job(Phase.STARTING), NOW + timedelta(seconds=31)),
    ],
)
def test_what_is_asked_is_recorded_before_any_pod_is_stopped(
    intent: Intent, subject: TrainingJob, now: datetime
) -> None:
    phase = PodPhase.PENDING if subject.status.phase is Phase.STARTING else PodPhase.RUNNING
    status = status_of(go(subject, pod(0, phase), now=now))
    assert (status.phase, status.intent) == (Phase.STOPPING, intent)
    stopping = subject.model_copy(update={"status": status})
    assert len(go(stopping, pod(0, phase), now=now).stop) == 1
    assert go(stopping, pod(0, phase, deleting=True), now=now).stop == (), "asked once"


def test_waking_times_are_the_deadlines() -> None:
    assert go(job(Phase.STARTING)).wake_at == NOW + timedelta(seconds=30)
    limited = job(stop={"maxDuration": "50s"}, ran_s=10.0)
    assert go(limited, pod()).wake_at == NOW + timedelta(seconds=20)


def test_waiting_jobs_follow_suspend_resume_and_cancel() -> None:
    assert status_of(go(job(Phase.QUEUED, suspend=True))).phase is Phase.SUSPENDED
    resumed = status_of(go(job(Phase.SUSPENDED)))
    assert (resumed.phase, resumed.queued_at) == (Phase.QUEUED, NOW)
    assert status_of(go(job(Phase.QUEUED, cancel=True))).phase is Phase.CANCELLED
    assert status_of(go(job(Phase.SUSPENDED, suspend=True, cancel=True))).phase is Phase.CANCELLED
    assert go(job(Phase.QUEUED)) == Step()


def test_a_failed_job_runs_again_when_its_retry_generation_is_raised() -> None:
    over = job(Phase.FAILED, attempt=3, retry_generation=1, retries={Category.USER_ERROR: 2}, finished_at=NOW)
    status = status_of(go(over))
    assert (status.phase, status.attempt, dict(status.retries)) == (Phase.QUEUED, 3, {})
    assert status.observed_retry_generation == 1 and status.finished_at is None
    assert go(job(Phase.SUCCEEDED, retry_generation=1)).status is None


def test_pods_go_only_after_their_outcome_is_in_the_status() -> None:
    ended = go(job(Phase.SUCCEEDED, attempt=1), done())
    assert (len(ended.release), ended.discard) == (1, ())  # the last attempt's pods stay to be looked at
    queued = go(job(Phase.QUEUED, attempt=1), failed())
    assert (len(queued.release), len(queued.discard)) == (1, 1)
    former = go(job(Phase.RUNNING, attempt=2), pod(0, attempt=2), failed(0, attempt=1))
    assert [p.metadata.name for p in former.discard] == ["j-1-0"]


def test_pods_without_a_job_are_stopped_and_let_go() -> None:
    result = orphans([pod(0), failed(1)], NOW, SETTINGS)
    assert [p.metadata.name for p in result.stop] == ["j-1-0"]
    assert [p.metadata.name for p in result.release] == ["j-1-1"]


def test_a_gang_that_breaks_while_its_pods_are_made_gets_no_more_of_them() -> None:
    half = job(Phase.STARTING, workers=3)
    status = status_of(go(half, failed(0)))
    assert status.phase is Phase.STOPPING
    over = status_of(go(half.model_copy(update={"status": status}), failed(0)))
    assert over.attempts[0].category is Category.USER_ERROR
