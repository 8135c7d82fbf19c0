"""A gang on its way to run under a real scheduler and kubelet: what its status says and when it is withdrawn."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from stoker.life.step import Step
from stoker.spec.job import Phase
from stoker.spec.outcome import Category, Intent
from stoker.spec.reasons import Code

from .gang import FAILED, NOW, after, ago, container, failed, go, job, pod, running, status_of


def waiting(reason: str, message: str = "", *, sandbox: bool = True, init: bool = False) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {
        "initContainerStatuses" if init else "containerStatuses": [
            {"name": "stoker-supervisor" if init else "worker", "state": state}
        ],
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "PodReadyToStartContainers", "status": "True" if sandbox else "False"},
        ],
    }


def unschedulable(since_s: float) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    condition |= {"message": "0/2 nodes are available: 1 Insufficient gpu.", "lastTransitionTime": ago(since_s)}
    return {"conditions": [condition]}


def never_made(deleted_at: datetime) -> dict[str, Any]:
    end = container("ContainerStatusUnknown", 137, started=False)
    return {"phase": FAILED, "deleted_at": deleted_at, **end}


def test_a_placed_job_gets_the_pods_that_are_missing() -> None:
    assert go(job(Phase.STARTING, workers=3), pod(1)).create == (0, 2)


def test_it_is_running_only_when_every_worker_runs() -> None:
    starting = job(Phase.STARTING, workers=2)
    assert go(starting, running(), pod(1)).status is None
    status = status_of(go(starting, running(), running(1)))
    assert (status.phase, status.reason, status.started_at) == (Phase.RUNNING, Code.WORKERS_RUNNING, ago(5))


def test_a_gang_that_breaks_while_its_pods_are_made_gets_no_more_of_them() -> None:
    half = job(Phase.STARTING, workers=3)
    stopping = after(half, status_of(go(half, failed(0), running(1))))
    assert (stopping.status.phase, stopping.status.intent) == (Phase.STOPPING, Intent.NONE)
    left = go(stopping, failed(0), running(1))
    assert (left.create, [p.metadata.name for p in left.stop]) == ((), ["j-1-1"])
    assert status_of(go(stopping, failed(0))).attempts[0].category is Category.USER_ERROR


def test_a_pod_that_the_scheduler_refuses_is_reported_and_then_withdrawn_and_its_node_alone_blamed() -> None:
    two = job(Phase.STARTING, workers=2, since_s=3)
    good, stuck = pod(0, **waiting("ContainerCreating")), pod(1, bound=False, **unschedulable(3))
    status = status_of(go(two, good, stuck))
    assert (status.phase, status.reason) == (Phase.STARTING, Code.POD_UNSCHEDULABLE)
    assert "worker 1: does not fit on n1: 0/2 nodes are available" in status.message
    reported = after(two, status)
    assert go(reported, good, stuck) == Step(wake_at=NOW + timedelta(seconds=7)), "once"

    late = NOW + timedelta(seconds=7)
    withdrawn = status_of(go(reported, good, stuck, now=late))
    assert (withdrawn.phase, withdrawn.intent) == (Phase.STOPPING, Intent.WITHDRAW)
    stopping = after(two, withdrawn)
    assert [p.metadata.name for p in go(stopping, good, stuck, now=late).stop] == ["j-1-0", "j-1-1"]
    deleted = pod(1, bound=False, deleted_at=late, **unschedulable(10))
    status = status_of(go(stopping, pod(0, **never_made(late)), deleted, now=late))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.START_TIMEOUT)
    assert [blame.node for blame in status.blamed] == ["n1"]
    assert "0/2 nodes are available" in status.message


def test_a_gang_that_starts_within_two_seconds_costs_no_write() -> None:
    starting = job(Phase.STARTING, since_s=1)
    assert go(starting, pod(**waiting("ContainerCreating"))) == Step(wake_at=NOW + timedelta(seconds=1))


def test_pulling_is_reported_and_does_not_count_into_the_start_timeout() -> None:
    starting = job(Phase.STARTING, since_s=600)
    pulls = pod(**waiting("PodInitializing"))
    status = status_of(go(starting, pulls))
    assert (status.reason, status.phase) == (Code.IMAGE_PULLING, Phase.STARTING)
    assert "n0" in status.message
    reported = after(starting, status)
    assert go(reported, pulls) == Step(wake_at=ago(600) + timedelta(seconds=1800))
    assert status_of(go(reported, pulls, now=NOW + timedelta(seconds=1200))).intent is Intent.WITHDRAW
    no_sandbox = status_of(go(starting, pod(**waiting("ContainerCreating", sandbox=False))))
    assert no_sandbox.intent is Intent.WITHDRAW, "a volume that is not there is no pull"


def data(**state: Any) -> dict[str, Any]:
    return {"initContainerStatuses": [{"name": "stoker-data", "state": state}]}


def test_data_that_is_being_fetched_is_reported_and_has_a_limit_of_its_own() -> None:
    starting = job(Phase.STARTING, since_s=7200)
    fetching = pod(**data(running={"startedAt": ago(7000)}))
    status = status_of(go(starting, fetching))
    assert (status.phase, status.reason) == (Phase.STARTING, Code.DATA_FETCHING)
    assert status.message.startswith("data is being fetched on n0 (given up after")
    apart = status_of(go(starting, fetching, keeps_data=False)).message
    assert apart.startswith("data is being fetched on n0, by each worker for itself since its runtime has no cache (")
    reported = after(starting, status)
    late = NOW + timedelta(hours=3)
    assert status_of(go(reported, fetching, now=late)).intent is Intent.WITHDRAW
    there = pod(**data(terminated={"exitCode": 0, "finishedAt": ago(10)}))
    assert go(reported, there).wake_at == ago(10) + timedelta(seconds=60), "the start time-out begins anew"


def test_data_that_can_not_be_fetched_is_tried_twice_more() -> None:
    starting = job(Phase.STARTING, since_s=5)
    why = "data d: https://x.example/d: 404 Not Found"
    failed = pod(phase=FAILED, **data(terminated={"exitCode": 1, "message": why}))
    status = status_of(go(starting, failed))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.DATA)
    assert why in status.attempts[-1].message and status.not_before == NOW + timedelta(seconds=30)
    spent = after(starting, starting.status.model_copy(update={"retries": {Category.DATA: 2}}))
    assert status_of(go(spent, failed)).reason is Code.RETRIES_EXHAUSTED


SUB_PATH = 'failed to prepare subPath for volumeMount "stoker-data" of container "worker"'
NO_FOLDER = 'MountVolume.SetUp failed for volume "data-0" : hostPath type check failed: /sets is not a directory'


@pytest.mark.parametrize(
    ("stuck", "failed_mounts", "message"),
    [
        (waiting("CreateContainerConfigError", SUB_PATH), {}, SUB_PATH),
        (waiting("ContainerCreating", sandbox=False), {"pod-1-0": NO_FOLDER}, NO_FOLDER),
    ],
)
def test_a_volume_that_is_not_there_is_the_reason_until_the_start_timeout_and_costs_a_retry_of_its_own(
    stuck: dict[str, Any], failed_mounts: dict[str, str], message: str
) -> None:
    starting, late = job(Phase.STARTING, since_s=20), NOW + timedelta(seconds=40)
    step = go(starting, pod(**stuck), failed_mounts=failed_mounts)
    status = status_of(step)
    assert (status.phase, status.reason) == (Phase.STARTING, Code.VOLUME_UNAVAILABLE)
    assert status.message == f"a volume can't be mounted on n0: {message}"
    assert step.note is not None and step.note.reason == "VolumeUnavailable"
    reported = after(starting, status)
    assert go(reported, pod(**stuck), failed_mounts=failed_mounts) == Step(wake_at=late), "the start time-out"
    stopping = after(reported, status_of(go(reported, pod(**stuck), now=late, failed_mounts=failed_mounts)))
    assert (stopping.status.intent, [blame.node for blame in stopping.status.blamed]) == (Intent.WITHDRAW, ["n0"])
    status = status_of(go(stopping, pod(**never_made(late)), now=late))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.VOLUME)
    assert (status.retries, message in status.message) == ({Category.VOLUME: 1}, True)


def test_what_a_kubelet_says_of_a_pod_that_runs_by_now_is_over() -> None:
    two = job(Phase.STARTING, workers=2, since_s=20)
    status = status_of(go(two, running(), pod(1, **waiting("ErrImagePull")), failed_mounts={"pod-1-0": NO_FOLDER}))
    assert status.reason is Code.IMAGE_UNAVAILABLE


@pytest.mark.parametrize("init", [False, True])
def test_an_image_that_cannot_be_pulled_is_reported_then_withdrawn_and_tried_twice_more(init: bool) -> None:
    starting = job(Phase.STARTING, since_s=100)
    stuck = pod(**waiting("ErrImagePull", "connection reset by peer", init=init))
    status = status_of(go(starting, stuck))
    assert (status.phase, status.reason) == (Phase.STARTING, Code.IMAGE_UNAVAILABLE)
    assert "ErrImagePull on n0: connection reset by peer" in status.message
    reported = after(starting, status)
    later = pod(**waiting("ImagePullBackOff", "Back-off pulling image", init=init))
    assert go(reported, later) == Step(wake_at=NOW + timedelta(seconds=120)), "counted from the first report"

    late = NOW + timedelta(seconds=120)
    stopping = after(reported, status_of(go(reported, later, now=late)))
    assert stopping.status.intent is Intent.WITHDRAW
    gone = pod(**never_made(late))
    status = status_of(go(stopping, gone, now=late))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.IMAGE)
    assert (status.not_before, status.blamed) == (late + timedelta(seconds=30), ())
    assert [c.type for c in status.conditions] == ["Scheduled"], "the next attempt counts anew"

    spent = after(stopping, stopping.status.model_copy(update={"retries": {Category.IMAGE: 2}}))
    assert status_of(go(spent, gone, now=late)).reason is Code.RETRIES_EXHAUSTED


@pytest.mark.parametrize(
    "message",
    [
        'rpc error: code = NotFound desc = failed to pull and unpack image "r/x:1": r/x:1: not found',
        "failed to resolve reference: pull access denied, repository does not exist or may require authorization",
        "unexpected status from HEAD request to https://r/v2/x/manifests/1: 403 Forbidden",
        "failed to fetch anonymous token: unexpected status: 401 Unauthorized",
    ],
)
def test_a_registrys_refusal_is_tried_once_more_and_then_frees_the_gpus(message: str) -> None:
    starting = job(Phase.STARTING, since_s=3)
    status = status_of(go(starting, pod(**waiting("ErrImagePull", message))))
    assert (status.phase, status.reason) == (Phase.STARTING, Code.IMAGE_UNAVAILABLE)
    again = pod(**waiting("ImagePullBackOff", f'Back-off pulling image "r/x:1": ErrImagePull: {message}'))
    starting, late = after(starting, status), NOW + timedelta(seconds=20)
    assert go(starting, again) == Step(wake_at=late)
    assert status_of(go(starting, again, now=late)).intent is Intent.WITHDRAW


@pytest.mark.parametrize(("reason", "blamed"), [("InvalidImageName", []), ("ErrImageNeverPull", ["n0"])])
def test_an_image_that_never_will_be_there_is_not_waited_for(reason: str, blamed: list[str]) -> None:
    status = status_of(go(job(Phase.STARTING, since_s=1), pod(**waiting(reason))))
    assert (status.intent, status.reason) == (Intent.WITHDRAW, Code.IMAGE_UNAVAILABLE)
    assert [blame.node for blame in status.blamed] == blamed


def test_an_image_that_comes_at_last_lets_the_job_run_as_if_nothing_had_been() -> None:
    starting = job(Phase.STARTING, since_s=100)
    reported = after(starting, status_of(go(starting, pod(**waiting("ErrImagePull")))))
    status = status_of(go(reported, running()))
    assert (status.phase, status.started_at, status.conditions) == (Phase.RUNNING, ago(5), ())


def test_a_refused_pod_withdraws_the_gang_with_the_servers_message_and_blames_no_node() -> None:
    starting = job(Phase.STARTING, since_s=1, workers=2)
    status = status_of(go(starting, refused="exceeded quota: gpus"))
    assert status.intent is Intent.WITHDRAW and "exceeded quota: gpus" in status.message
    end = status_of(go(after(starting, status)))
    assert (end.phase, end.attempts[-1].category, end.blamed) == (Phase.QUEUED, Category.START_TIMEOUT, ())
    assert "exceeded quota: gpus" in end.message


def test_a_job_whose_checkpoints_do_not_outlive_it_is_warned() -> None:
    status = status_of(go(job(Phase.STARTING), running(), ephemeral=True))
    assert [(c.type, c.status) for c in status.conditions] == [("CheckpointsPersistent", "False")]


def test_a_name_that_is_taken_is_the_reason() -> None:
    status = status_of(go(job(Phase.STARTING), name_taken="there is a Pod j-1-0 already that is not of this job"))
    assert (status.phase, status.reason) == (Phase.STARTING, Code.NAME_TAKEN)
    assert "there is a Pod j-1-0 already" in status.message
