"""The job's life between its attempts and at its end, rule by rule: the name is the rule, the body is data."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from stoker.controller.render import grace_s, worker_env
from stoker.life.lifecycle import orphans, step
from stoker.life.pod_end import EARLIEST
from stoker.life.step import NO_FACTS, Facts, Step
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.outcome import Category, Intent
from stoker.spec.pod import PodPhase

from .gang import FAILED, NOW, SETTINGS, after, ago, container, done, failed, go, job, pod, record, running, status_of


def test_a_requeued_job_keeps_its_place_in_the_queue() -> None:
    since = NOW - timedelta(hours=1)
    assert status_of(go(job(queued_at=since), failed(0, 137, signal=9))).queued_at == since


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
    def worker(deleted_at: datetime | None = None) -> object:
        return (pod if subject.status.phase is Phase.STARTING else running)(0, deleted_at=deleted_at)

    status = status_of(go(subject, worker(), now=now))
    assert (status.phase, status.intent) == (Phase.STOPPING, intent)
    stopping = after(subject, status)
    assert len(go(stopping, worker(), now=now).stop) == 1
    assert go(stopping, worker(NOW), now=now).stop == (), "asked once"


def test_it_wakes_at_its_deadlines() -> None:
    assert go(job(Phase.STARTING), pod(phase="Pending", bound=False)).wake_at == NOW + timedelta(seconds=30)
    limited = job(stop={"maxDuration": "50s"}, ran_s=10.0)
    assert go(limited, running()).wake_at == NOW + timedelta(seconds=20)


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


# -- pods


def test_pods_go_only_after_their_outcome_is_in_the_status() -> None:
    over = go(job(Phase.SUCCEEDED), done())
    assert (len(over.release), over.discard) == (1, ())  # the last attempt's pods stay to be looked at
    queued = go(job(Phase.QUEUED), failed())
    assert (len(queued.release), len(queued.discard)) == (1, 1)
    former = go(job(attempt=2), running(attempt=2), failed(0, attempt=1))
    assert [p.metadata.name for p in former.discard] == ["j-1-0"]


def test_pods_without_a_job_are_stopped_and_let_go() -> None:
    result = orphans([running(), failed(1)], NOW, SETTINGS)
    assert [p.metadata.name for p in result.stop] == ["j-1-0"]
    assert [p.metadata.name for p in result.release] == ["j-1-1"]


def test_a_pod_that_was_never_bound_and_is_deleted_is_over() -> None:
    """The API server would remove it at once but for our finalizer, and no kubelet will ever say that it ended."""
    gone = pod(bound=False, deleted_at=NOW)
    status = status_of(go(job(Phase.STARTING), gone))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.INTERRUPTED)
    assert go(job(Phase.QUEUED), gone).release == (gone,)
    assert orphans([gone], NOW, SETTINGS).release == (gone,)


# -- lost nodes


def test_a_worker_on_a_lost_node_is_given_up_and_then_counted_as_ended() -> None:
    two, here, there = job(workers=2), running(0), running(1)
    lost = {"n1": ago(40)}
    assert go(two, here, there, lost=lost) == Step(wake_at=NOW + timedelta(seconds=20))
    late = NOW + timedelta(seconds=20)
    assert len(go(two, here, there, lost=lost, now=late).stop) == 2

    deleted_at = late + timedelta(seconds=30)  # Kubernetes writes when the grace will be over
    stopped = pod(0, phase=FAILED, **container(code=75, message=record(75, stop_requested=True)))
    silent = running(1, deleted_at=deleted_at)
    waits = go(two, stopped, silent, lost=lost, now=late)
    over_at = deleted_at + timedelta(seconds=10)
    assert (waits.stop, waits.wake_at) == ((), over_at)
    status = status_of(go(two, stopped, silent, lost=lost, now=over_at))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.NODE_LOST)
    assert status.message.startswith("worker 1:") and "n1 has not reported" in status.message
    assert [blame.node for blame in status.blamed] == ["n1"]

    queued = after(two, status)
    assert [p.metadata.name for p in go(queued, stopped, silent, lost=lost, now=over_at).release] == ["j-1-0", "j-1-1"]
    lingering = silent.model_copy(update={"metadata": silent.metadata.model_copy(update={"finalizers": ()})})
    assert go(queued, lingering, lost=lost, now=over_at) == Step(), "others' from here on"


def test_a_node_that_comes_back_in_time_keeps_its_workers() -> None:
    assert go(job(), running(), lost={}) == Step()


def test_a_node_that_is_gone_has_been_lost_for_ever() -> None:
    assert len(go(job(), running(), lost={"n0": EARLIEST}).stop) == 1
    status = status_of(go(job(), running(deleted_at=ago(10)), lost={"n0": EARLIEST}))
    assert "node n0 is gone" in status.message


# -- deletion


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.QUEUED, Phase.SUCCEEDED])
def test_a_job_under_deletion_gets_no_pods_and_no_status_any_more(phase: Phase) -> None:
    going = job(phase, workers=2, deleting=True, suspend=True)
    result = go(going, running(0))
    assert (result.status, result.create) == (None, ())
    assert [p.metadata.name for p in result.stop] == ["j-1-0"]
    over = pod(0, phase=FAILED, deleted_at=NOW, **container(code=75))
    assert go(going, over).release == (over,)


@pytest.mark.parametrize("long", ["99999999h", "9" * 31 + "s"])
def test_a_duration_longer_than_the_bound_that_stands_in_a_stored_job_counts_as_the_bound(long: str) -> None:
    bound = timedelta(days=3650)
    every = {"stop": {"maxDuration": long}, "onFailure": {"hold": long}, "checkpoint": {"grace": long}}
    stored = TrainingJob.model_validate_json(job(ttlAfterFinished=long, **every).model_dump_json(by_alias=True))
    at_work = after(stored, job().status)
    assert go(at_work, running()).wake_at == at_work.status.started_at + bound
    assert (grace_s(at_work), worker_env(at_work, 0, "")["STOKER_HOLD_SECONDS"]) == (3600, "315360000")
    assert go(after(stored, job(Phase.SUCCEEDED, finished_at=NOW).status)).wake_at == NOW + bound


@pytest.mark.parametrize(
    ("own", "queue_s", "operator_s", "kept_s"),
    [
        ("10s", 20, 30, 10),
        (None, 20, 30, 20),
        (None, None, 30, 30),
        ("10s", None, None, 10),
        (None, 20, None, 20),
        (None, None, None, None),
    ],
)
def test_how_long_an_ended_job_is_kept_says_the_job_else_its_queue_else_the_operator(
    own: str | None, queue_s: float | None, operator_s: float | None, kept_s: float | None
) -> None:
    over = job(Phase.FAILED, ttlAfterFinished=own, finished_at=NOW)
    settings, around = replace(SETTINGS, ttl_s=operator_s), Facts(queue_ttl_s=queue_s)
    due_at = None if kept_s is None else NOW + timedelta(seconds=kept_s)
    assert step(over, (), NOW, settings, around) == Step(wake_at=due_at)
    assert step(over, (), due_at or NOW + timedelta(days=9999), settings, around).expire == (kept_s is not None)


def test_an_ended_job_is_deleted_when_its_time_is_over_and_its_pods_outcome_is_written() -> None:
    over = job(Phase.SUCCEEDED, ttlAfterFinished="60s", finished_at=ago(60))
    held = pod(phase=PodPhase.SUCCEEDED, **container("Completed", 0))
    assert (go(over, held).expire, go(over, held).release) == (False, (held,))
    assert go(over).expire
    again = job(Phase.FAILED, ttlAfterFinished="60s", finished_at=ago(99), retryGeneration=1)
    assert status_of(go(again)).phase is Phase.QUEUED, "asked to run again is not over"


@pytest.mark.parametrize(
    ("asked", "phase", "event"),
    [
        ({"facts": Facts(preempted_for="preempted for job other")}, Phase.QUEUED, "Requeued"),
        ({"cancel": True}, Phase.CANCELLED, "Cancelled"),
        ({"suspend": True}, Phase.SUSPENDED, "Suspended"),
    ],
)
def test_an_attempt_that_has_no_pods_yet_ends_in_one_write(asked: dict[str, Any], phase: Phase, event: str) -> None:
    facts = asked.pop("facts", NO_FACTS)
    subject = job(Phase.STARTING, workers=2, **asked)
    found = step(subject, (), NOW, SETTINGS, facts)
    assert found.status is not None and found.note is not None and found.before is None
    (ended,) = found.status.attempts
    assert (found.status.phase, found.status.placement, found.note.reason) == (phase, (), event)
    assert (ended.intent is Intent.PREEMPT) == (phase is Phase.QUEUED) and found.status.retries == {}
    begun = step(subject, [pod(0)], NOW, SETTINGS, facts)
    assert begun.status is not None and begun.status.phase is Phase.STOPPING, "what may run is stopped first"
