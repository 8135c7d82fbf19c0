"""The job's life under a real kubelet and a real scheduler, rule by rule: the name is the rule, the body is data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.controller.render import grace_s, worker_env
from stoker.life.lifecycle import orphans, step
from stoker.life.pod_end import EARLIEST
from stoker.life.step import Facts, Settings, Step
from stoker.spec.job import Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.outcome import Category, Intent
from stoker.spec.pod import Container, Pod, PodPhase, PodSpec, PodStatus
from stoker.spec.reasons import Code
from stoker.spec.worker import ExitRecord, Progress, RankExit

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SETTINGS = Settings(
    start_timeout_s=60,
    blame_s=120,
    notice_after_s=2,
    unschedulable_s=10,
    image_timeout_s=120,
    pull_timeout_s=1800,
    node_lost_s=60,
    lost_margin_s=10,
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(phase: Phase = Phase.RUNNING, *, workers: int = 1, since_s: float = 30, **given: Any) -> TrainingJob:
    """A job that was placed `since_s` seconds ago on the nodes n0, n1, …"""
    spec = {name: given.pop(name) for name in list(given) if name not in TrainingJobStatus.model_fields}
    metadata = {"deletion_timestamp": NOW} if spec.pop("deleting", False) else {}
    status: dict[str, Any] = {
        "phase": phase,
        "reason": Code.PLACED,
        "attempt": 1,
        "placement": tuple(Placed(worker=w, node=f"n{w}") for w in range(workers)),
        "placed_at": ago(since_s),
        "started_at": ago(since_s - 10) if phase is not Phase.STARTING else None,
    }
    return TrainingJob(
        metadata=ObjectMeta(name="j", namespace="p", uid="u1", creation_timestamp=ago(300), **metadata),
        spec={"trainer": {"command": ["true"]}, "workers": workers} | spec,  # type: ignore[arg-type]
        status=TrainingJobStatus(**(status | given)),
    )


def pod(
    worker: int = 0, *, bound: bool = True, deleted_at: datetime | None = None, attempt: int = 1, **status: Any
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=f"j-{attempt}-{worker}",
            namespace="p",
            uid=f"pod-{attempt}-{worker}",
            finalizers=(FINALIZER_OUTCOME,),
            deletion_timestamp=deleted_at,
        ),
        spec=PodSpec(node_name=f"n{worker}" if bound else "", containers=(Container(),)),
        status=PodStatus.model_validate(status),
    )


def running(worker: int = 0, **given: Any) -> Pod:
    state = {"running": {"startedAt": ago(5).isoformat()}}
    statuses = [{"name": "worker", "state": state}]
    return pod(worker, phase="Running", startTime=ago(25).isoformat(), containerStatuses=statuses, **given)


def container(reason: str = "Error", code: int = 1, message: str = "", started: bool = True) -> dict[str, Any]:
    terminated: dict[str, Any] = {"exitCode": code, "reason": reason, "message": message}
    if started:
        terminated |= {"startedAt": ago(20).isoformat(), "finishedAt": NOW.isoformat()}
    return {"containerStatuses": [{"name": "worker", "state": {"terminated": terminated}}]}


def waiting(reason: str, message: str = "", *, sandbox: bool = True, init: bool = False) -> dict[str, Any]:
    statuses = [{"name": "stoker-supervisor" if init else "worker", "state": {"waiting": {"reason": reason}}}]
    statuses[0]["state"]["waiting"]["message"] = message  # type: ignore[index]
    return {
        ("initContainerStatuses" if init else "containerStatuses"): statuses,
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "PodReadyToStartContainers", "status": "True" if sandbox else "False"},
        ],
    }


def unschedulable(since_s: float, message: str = "0/2 nodes are available: 1 Insufficient gpu.") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [condition | {"lastTransitionTime": ago(since_s).isoformat()}]}


def disrupted(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "drained"}]}


def record(code: int = 0, *, stop_requested: bool = False, **given: Any) -> str:
    return ExitRecord(
        pod_uid="pod-1-0",
        started_at=ago(20).timestamp(),
        finished_at=NOW.timestamp(),
        stop_requested=stop_requested,
        exit_code=code,
        **given,
    ).model_dump_json(by_alias=True)


def go(
    subject: TrainingJob, *pods: Pod, now: datetime = NOW, lost: Mapping[str, datetime] | None = None, **around: Any
) -> Step:
    return step(subject, pods, now, SETTINGS, Facts(lost=lost or {}, **around))


def status_of(result: Step) -> TrainingJobStatus:
    assert result.status is not None
    assert not (result.create or result.stop or result.release or result.discard), "status is written first"
    return result.status


FAILED = PodPhase.FAILED
ENDS = [
    # (case, the pod, category, words)
    (
        "the kubelet has no device",
        pod(phase=FAILED, reason="UnexpectedAdmissionError", message="Allocate failed"),
        Category.REJECTED,
        "UnexpectedAdmissionError: Allocate failed",
    ),
    (
        "the kubelet has no room",
        pod(phase=FAILED, reason="OutOfnvidia.com/gpu", message="Node didn't have enough resource"),
        Category.REJECTED,
        "OutOfnvidia.com/gpu",
    ),
    (
        "the kubelet has other labels than the scheduler saw",
        pod(phase=FAILED, reason="NodeAffinity", message="Predicate NodeAffinity failed"),
        Category.REJECTED,
        "NodeAffinity",
    ),
    ("a port is taken", pod(phase=FAILED, reason="NodePorts"), Category.REJECTED, "NodePorts"),
    (
        "rejected as the node goes down",
        pod(phase=FAILED, reason="NodeShutdown", message="rejected as the node is shutting down"),
        Category.REJECTED,
        "shutting down",
    ),
    (
        "evicted without a record",
        pod(phase=FAILED, reason="Evicted", message="low on memory", **container(code=137)),
        Category.INTERRUPTED,
        "low on memory",
    ),
    (
        "evicted, and it saved",
        pod(phase=FAILED, reason="Evicted", **container(code=75, message=record(75, stop_requested=True))),
        Category.INTERRUPTED,
        "",
    ),
    (
        "drained, and its supervisor saw SIGTERM and had nothing to save",
        pod(
            phase=FAILED,
            deleted_at=NOW,
            **container(code=75, message=record(75, stop_requested=True, message="Terminated")),
            **disrupted("EvictionByEvictionAPI"),
        ),
        Category.INTERRUPTED,
        "stopped from outside: evicted from n0, by a drain or on request (EvictionByEvictionAPI: drained)",
    ),
    (
        "preempted by a critical pod of the node's",
        pod(phase=FAILED, reason="Preempting"),
        Category.INTERRUPTED,
        "Preempting",
    ),
    ("the node shuts down", pod(phase=FAILED, reason="Terminated"), Category.INTERRUPTED, "Terminated"),
    (
        "evicted by the taint manager",
        pod(phase=FAILED, deleted_at=NOW, **container(code=143), **disrupted("DeletionByTaintManager")),
        Category.INTERRUPTED,
        "DeletionByTaintManager: drained",
    ),
    (
        "its node was removed, the garbage collector cleared up",
        pod(phase=FAILED, **disrupted("DeletionByPodGC")),
        Category.INTERRUPTED,
        "DeletionByPodGC",
    ),
    (
        "deleted by hand, without a supervisor",
        pod(phase=FAILED, deleted_at=NOW, **container(code=143)),
        Category.INTERRUPTED,
        "",
    ),
    (
        "deleted before its container was made",
        pod(phase=FAILED, deleted_at=NOW, **container("ContainerStatusUnknown", 137, started=False)),
        Category.INTERRUPTED,
        "",
    ),
    (
        "the container is not to be found",
        pod(phase=FAILED, **container("ContainerStatusUnknown", 137)),
        Category.NODE_LOST,
        "",
    ),
    ("the kernel killed it", pod(phase=FAILED, **container("OOMKilled", 137)), Category.KILLED, "out of memory"),
    ("somebody killed it", pod(phase=FAILED, **container(code=137)), Category.KILLED, "killed"),
    (
        "a bare worker failed",
        pod(phase=FAILED, **container(code=3, message="one\nValueError: no\n")),
        Category.USER_ERROR,
        "ValueError: no",
    ),
    ("a bare worker is done", pod(phase=PodPhase.SUCCEEDED, **container("Completed", 0)), None, ""),
    (
        "there is no shell in the image",
        pod(phase=FAILED, **container("StartError", 128, 'exec: "/bin/sh": no such file')),
        Category.USER_ERROR,
        "/bin/sh",
    ),
    (
        "the node's driver is broken",
        pod(
            phase=FAILED, **container("StartError", 128, "error running prestart hook: nvidia-container-cli: no driver")
        ),
        Category.REJECTED,
        "nvidia",
    ),
    (
        "the supervisor could not be installed",
        pod(
            phase=FAILED,
            initContainerStatuses=[
                {
                    "name": "stoker-supervisor",
                    "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no space"}},
                }
            ],
        ),
        Category.REJECTED,
        "no space",
    ),
]


@pytest.mark.parametrize(("case", "ended", "category", "words"), ENDS, ids=[end[0] for end in ENDS])
def test_how_a_worker_ended(case: str, ended: Pod, category: Category | None, words: str) -> None:
    status = status_of(go(job(), ended))
    assert status.attempts[-1].category is category, case
    assert words in status.message
    back = category in (Category.REJECTED, Category.INTERRUPTED, Category.KILLED, Category.NODE_LOST)
    assert (status.phase is Phase.QUEUED) == back
    blamed = [blame.node for blame in status.blamed]
    assert blamed == (["n0"] if category in (Category.REJECTED, Category.NODE_LOST) else [])


def test_of_an_exit_record_that_was_cut_the_whole_fields_count_and_another_pods_is_none() -> None:
    whole = record(
        76,
        message="x" * 300,
        ranks=tuple(RankExit(rank=rank, exit_code=1, at=1.0) for rank in range(200)),
        progress=Progress(at=0),
    )
    assert len(whole) > 4096
    trainer = {"recipe": "image-classification"}
    status = status_of(go(job(trainer=trainer), pod(phase=FAILED, **container(code=76, message=whole[:4096]))))
    assert status.attempts[-1].category is Category.OUT_OF_MEMORY
    other = whole.replace("pod-1-0", "pod-1-1")
    foreign = status_of(go(job(trainer=trainer), pod(phase=FAILED, **container(code=76, message=other[:4096]))))
    assert foreign.attempts[-1].category is Category.USER_ERROR, "another pod's record says nothing of this one"
    hopeless = status_of(go(job(), pod(phase=FAILED, **container(code=76, message=whole[:60]))))
    assert hopeless.attempts[-1].category is Category.USER_ERROR


@pytest.mark.parametrize("why", [{"deleted_at": NOW}, disrupted("EvictionByEvictionAPI")], ids=["deleted", "drained"])
def test_exit_0_of_a_worker_without_a_supervisor_is_a_stop_if_its_pod_was_under_deletion(why: dict[str, Any]) -> None:
    ended = pod(phase=PodPhase.SUCCEEDED, **why, **container("Completed", 0))
    result = go(job(), ended)
    assert status_of(result).phase is Phase.SUCCEEDED
    assert result.before is not None and result.before.reason == "ExitZeroAfterSignal"
    status = status_of(go(job(stop={"exitZeroAfterSignal": "Stopped"}), ended))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.INTERRUPTED)


def test_a_pod_that_was_never_bound_and_is_deleted_is_over() -> None:
    """The API server would remove it at once but for our finalizer, and no kubelet will ever say that it ended."""
    gone = pod(bound=False, deleted_at=NOW)
    status = status_of(go(job(Phase.STARTING), gone))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.INTERRUPTED)
    assert go(job(Phase.QUEUED), gone).release == (gone,)
    assert orphans([gone], NOW, SETTINGS).release == (gone,)


# -- on the way


def test_a_pod_that_nobody_schedules_is_told_and_then_withdrawn_and_only_its_node_blamed() -> None:
    two = job(Phase.STARTING, workers=2, since_s=3)
    good, stuck = pod(0, **waiting("ContainerCreating")), pod(1, bound=False, **unschedulable(3))
    status = status_of(go(two, good, stuck))
    assert (status.phase, status.reason) == (Phase.STARTING, Code.POD_UNSCHEDULABLE)
    assert "worker 1: does not fit on n1: 0/2 nodes are available" in status.message
    told = two.model_copy(update={"status": status})
    assert go(told, good, stuck) == Step(wake_at=NOW + timedelta(seconds=7)), "told once"

    late = NOW + timedelta(seconds=7)
    withdrawn = status_of(go(told, good, stuck, now=late))
    assert (withdrawn.phase, withdrawn.intent) == (Phase.STOPPING, Intent.WITHDRAW)
    stopping = two.model_copy(update={"status": withdrawn})
    assert [p.metadata.name for p in go(stopping, good, stuck, now=late).stop] == ["j-1-0", "j-1-1"]
    ended = pod(0, phase=FAILED, deleted_at=late, **container("ContainerStatusUnknown", 137, started=False))
    status = status_of(go(stopping, ended, pod(1, bound=False, deleted_at=late, **unschedulable(10)), now=late))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.START_TIMEOUT)
    assert [blame.node for blame in status.blamed] == ["n1"]
    assert "0/2 nodes are available" in status.message


def test_a_gang_that_starts_within_two_seconds_costs_no_word() -> None:
    starting = job(Phase.STARTING, since_s=1)
    result = go(starting, pod(**waiting("ContainerCreating")))
    assert result == Step(wake_at=NOW + timedelta(seconds=1))


def test_pulling_is_told_and_does_not_count_into_the_start_timeout() -> None:
    starting = job(Phase.STARTING, since_s=600)
    pulls = pod(**waiting("PodInitializing"))
    status = status_of(go(starting, pulls))
    assert (status.reason, status.phase) == (Code.IMAGE_PULLING, Phase.STARTING)
    assert "n0" in status.message
    told = starting.model_copy(update={"status": status})
    assert go(told, pulls) == Step(wake_at=ago(600) + timedelta(seconds=1800))
    capped = status_of(go(told, pulls, now=NOW + timedelta(seconds=1200)))
    assert capped.intent is Intent.WITHDRAW

    no_sandbox = status_of(go(starting, pod(**waiting("ContainerCreating", sandbox=False))))
    assert no_sandbox.intent is Intent.WITHDRAW, "a volume that is not there is no pull"


@pytest.mark.parametrize("init", [False, True])
def test_an_image_that_cannot_be_pulled_is_told_then_withdrawn_and_tried_twice_more(init: bool) -> None:
    starting = job(Phase.STARTING, since_s=100)
    stuck = pod(**waiting("ErrImagePull", "connection reset by peer", init=init))
    status = status_of(go(starting, stuck))
    assert (status.phase, status.reason) == (Phase.STARTING, Code.IMAGE_UNAVAILABLE)
    assert "ErrImagePull on n0: connection reset by peer" in status.message
    told = starting.model_copy(update={"status": status})
    later = pod(**waiting("ImagePullBackOff", "Back-off pulling image", init=init))
    assert go(told, later) == Step(wake_at=NOW + timedelta(seconds=120)), "counted from when it was told"

    late = NOW + timedelta(seconds=120)
    stopping = told.model_copy(update={"status": status_of(go(told, later, now=late))})
    assert stopping.status.intent is Intent.WITHDRAW
    gone = pod(phase=FAILED, deleted_at=late, **container("ContainerStatusUnknown", 137, started=False))
    status = status_of(go(stopping, gone, now=late))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.IMAGE)
    assert (status.not_before, status.blamed) == (late + timedelta(seconds=30), ())
    assert [c.type for c in status.conditions] == ["Scheduled"], "the next attempt counts anew"

    spent = stopping.model_copy(update={"status": stopping.status.model_copy(update={"retries": {Category.IMAGE: 2}})})
    assert status_of(go(spent, gone, now=late)).reason is Code.RETRIES_EXHAUSTED


@pytest.mark.parametrize(
    "words",
    [
        'rpc error: code = NotFound desc = failed to pull and unpack image "r/x:1": r/x:1: not found',
        "failed to resolve reference: pull access denied, repository does not exist or may require authorization",
        "unexpected status from HEAD request to https://r/v2/x/manifests/1: 403 Forbidden",
        "failed to fetch anonymous token: unexpected status: 401 Unauthorized",
    ],
)
def test_a_registrys_no_is_tried_once_more_and_then_frees_the_gpus(words: str) -> None:
    starting = job(Phase.STARTING, since_s=3)
    told = status_of(go(starting, pod(**waiting("ErrImagePull", words))))
    assert (told.phase, told.reason) == (Phase.STARTING, Code.IMAGE_UNAVAILABLE)
    again = pod(**waiting("ImagePullBackOff", f'Back-off pulling image "r/x:1": ErrImagePull: {words}'))
    starting = starting.model_copy(update={"status": told})
    assert go(starting, again) == Step(wake_at=NOW + timedelta(seconds=20))
    assert status_of(go(starting, again, now=NOW + timedelta(seconds=20))).intent is Intent.WITHDRAW


@pytest.mark.parametrize(("reason", "blamed"), [("InvalidImageName", []), ("ErrImageNeverPull", ["n0"])])
def test_an_image_that_never_will_be_there_is_not_waited_for(reason: str, blamed: list[str]) -> None:
    status = status_of(go(job(Phase.STARTING, since_s=1), pod(**waiting(reason))))
    assert (status.intent, status.reason) == (Intent.WITHDRAW, Code.IMAGE_UNAVAILABLE)
    assert [blame.node for blame in status.blamed] == blamed


def test_an_image_that_comes_at_last_lets_the_job_run_as_if_nothing_had_been() -> None:
    told = status_of(go(job(Phase.STARTING, since_s=100), pod(**waiting("ErrImagePull"))))
    starting = job(Phase.STARTING, since_s=100).model_copy(update={"status": told})
    status = status_of(go(starting, running()))
    assert (status.phase, status.started_at, status.conditions) == (Phase.RUNNING, ago(5), ())


def test_a_refused_pod_withdraws_the_gang_with_the_servers_words_and_blames_nobody() -> None:
    starting = job(Phase.STARTING, since_s=1, workers=2)
    status = status_of(go(starting, refused="exceeded quota: gpus"))
    assert status.intent is Intent.WITHDRAW and "exceeded quota: gpus" in status.message
    stopping = starting.model_copy(update={"status": status})
    ended = status_of(go(stopping))
    assert (ended.phase, ended.attempts[-1].category, ended.blamed) == (Phase.QUEUED, Category.START_TIMEOUT, ())
    assert "exceeded quota: gpus" in ended.message


def test_a_job_whose_checkpoints_nobody_keeps_is_warned_of_it() -> None:
    status = status_of(go(job(Phase.STARTING), running(), ephemeral=True))
    assert [(c.type, c.status) for c in status.conditions] == [("CheckpointsPersistent", "False")]


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
    assert (waits.stop, waits.wake_at) == ((), deleted_at + timedelta(seconds=10))
    status = status_of(go(two, stopped, silent, lost=lost, now=deleted_at + timedelta(seconds=10)))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.NODE_LOST)
    assert status.message.startswith("worker 1:") and "n1 has not reported" in status.message
    assert [blame.node for blame in status.blamed] == ["n1"]

    queued = two.model_copy(update={"status": status})
    after = go(queued, stopped, silent, lost=lost, now=deleted_at + timedelta(seconds=10))
    assert [p.metadata.name for p in after.release] == ["j-1-0", "j-1-1"]
    lingering = silent.model_copy(update={"metadata": silent.metadata.model_copy(update={"finalizers": ()})})
    assert go(queued, lingering, lost=lost, now=deleted_at + timedelta(seconds=10)) == Step(), "others' from here on"


def test_a_node_that_comes_back_in_time_keeps_its_workers() -> None:
    assert go(job(), running(), lost={}) == Step()


def test_a_node_that_is_gone_has_been_lost_for_ever() -> None:
    result = go(job(), running(), lost={"n0": EARLIEST})
    assert len(result.stop) == 1
    silent = running(deleted_at=ago(10))
    status = status_of(go(job(), silent, lost={"n0": EARLIEST}))
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
    at_work = stored.model_copy(update={"status": job(Phase.RUNNING).status})
    assert go(at_work, running()).wake_at == at_work.status.started_at + bound
    assert (grace_s(at_work), worker_env(at_work, 0)["STOKER_HOLD_SECONDS"]) == (315_360_000, "315360000")
    ended = stored.model_copy(update={"status": job(Phase.SUCCEEDED, finished_at=NOW).status})
    assert go(ended).wake_at == NOW + bound


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
    ended = job(Phase.FAILED, ttlAfterFinished=own, finished_at=NOW)
    settings, around = replace(SETTINGS, ttl_s=operator_s), Facts(queue_ttl_s=queue_s)
    due_at = None if kept_s is None else NOW + timedelta(seconds=kept_s)
    assert step(ended, (), NOW, settings, around) == Step(wake_at=due_at)
    assert step(ended, (), due_at or NOW + timedelta(days=9999), settings, around).expire == (kept_s is not None)


def test_an_ended_job_is_deleted_when_its_time_is_over_and_its_pods_have_told_all() -> None:
    ended = job(Phase.SUCCEEDED, ttlAfterFinished="60s", finished_at=ago(59))
    assert go(ended) == Step(wake_at=NOW + timedelta(seconds=1))
    late = NOW + timedelta(seconds=1)
    held = pod(phase=PodPhase.SUCCEEDED, **container("Completed", 0))
    assert (go(ended, held, now=late).expire, go(ended, held, now=late).release) == (False, (held,))
    assert go(ended, now=late).expire
    again = job(Phase.FAILED, ttlAfterFinished="60s", finished_at=ago(99), retryGeneration=1)
    assert status_of(go(again)).phase is Phase.QUEUED, "asked to run again is not over"
