"""The answer to a worker that asks whether it is still wanted: each reason to stop, none where there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, PLACED, Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import PODS, Container, Pod, PodPhase, PodSpec, PodStatus
from stoker.spec.reports import WorkerReport
from stoker.store.clock import SystemClock
from stoker.store.port import Unavailable
from stoker_api.deps import Deps, caches
from stoker_api.jobs.stray_workers import unwanted, why_stop
from stoker_worker.alive import AliveLane
from stoker_worker.folder import Launch
from stoker_worker.link import Answer


async def ask(world: Any, job: TrainingJob, pod: Pod, token: str, **change: Any) -> Any:
    said = {
        "podUid": pod.uid, "jobUid": job.uid, "project": "alpha", "jobName": job.metadata.name, "attempt": 1,
        "worker": 0, **change,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return await world.client.post("/v1/report/alive", headers=headers, content=json.dumps(said))


async def running(world: Any, attempt: int = 1) -> tuple[TrainingJob, Pod, str]:
    job = await world.status(await world.job("one"), phase="Running", attempt=attempt)
    pod = await world.pod(job)
    token = await world.worker_token(pod)
    assert (await ask(world, job, pod, token)).json()["stop"] is (attempt > 1)
    return job, pod, token


async def test_a_worker_whose_attempt_runs_goes_on(world):
    job, pod, token = await running(world)
    assert (await ask(world, job, pod, token)).json() == {"stop": False, "why": ""}
    await world.status(job, phase="Stopping", intent="Suspend")
    assert (await ask(world, job, pod, token)).json()["stop"] is False, "its node decides that"


async def test_a_later_attempt_stops_it(world):
    job, pod, token = await running(world)
    await world.status(job, phase="Starting", attempt=2)
    reported = (await ask(world, job, pod, token)).json()
    assert reported == {"stop": True, "why": "attempt 2 of job one has begun; this is attempt 1"}
    assert b'stoker_api_alive_posts_total{outcome="stop"} 1.0' in world.services.metrics.text()


async def test_a_gang_hears_that_worker_0_makes_no_progress(world):
    job = await world.status(await world.job("one", workers=2), phase="Running", attempt=1)
    pods = [await world.pod(job, worker=worker) for worker in (0, 1)]
    tokens = [await world.worker_token(pod) for pod in pods]
    now = world.deps.clock.now().timestamp()
    stalled = {"attempt": 1, "since": now - 600, "until": now + 15, "step": 7, "message": "step 7 since 600 s"}
    who = {"podUid": pods[0].uid, "jobUid": job.uid, "project": "alpha", "jobName": "one", "attempt": 1, "worker": 0}
    said = {**who, "progress": {"at": now, "step": 7, "stepAt": now - 600, "stalled": stalled}}
    headers = {"Authorization": f"Bearer {tokens[0]}", "Content-Type": "application/json"}
    answer = await world.client.post("/v1/report/progress", headers=headers, content=json.dumps(said))
    assert answer.status_code == 204, answer.text

    reported = (await ask(world, job, pods[1], tokens[1], worker=1)).json()
    assert reported["stop"] is False and reported["stalled"]["why"] == "worker 0: step 7 since 600 s"
    assert 0 < reported["stalled"]["inS"] <= 15.5
    heard = []
    lane = AliveLane(_launch(), None, None, lambda in_s, why: heard.append((in_s, why)))
    assert lane.take(Answer(200, json.dumps(reported).encode(), 0.0), 0.0), "in the supervisor's own reading"
    assert heard == [(reported["stalled"]["inS"], "worker 0: step 7 since 600 s")]
    assert "stalled" not in (await ask(world, job, pods[0], tokens[0])).json(), "it knows"
    assert job.status.attempt == 1 and world.services.board.newest(job).stalled.step == 7

    await world.status(job, phase="Starting", attempt=2)
    assert "stalled" not in (await ask(world, job, pods[1], tokens[1], worker=1)).json(), "that attempt is over"


def _launch() -> Launch:
    data = {"podUid": "x", "project": "p", "jobName": "j", "jobUid": "u", "attempt": 1, "worker": 1, "workers": 2}
    return Launch({**data, "ranks": 1, "argv": ["x"], "workingDir": "/", "graceS": 1, "masterPort": 1})


@pytest.mark.parametrize("phase", ["Queued", "Failed"])
async def test_the_end_of_its_attempt_stops_it(world, phase):
    job, pod, token = await running(world)
    await world.status(job, phase=phase)
    reported = (await ask(world, job, pod, token)).json()
    assert reported == {"stop": True, "why": f"attempt 1 of job one is over: the job is {phase}"}


async def test_the_deletion_of_its_pod_stops_it_and_so_does_its_absence(world):
    job, pod, token = await running(world)
    await world.pod_finalizers(pod, FINALIZER_OUTCOME)
    try:
        await world.store.delete(PODS, pod.key)
        await world.deps.pods.wait_for(lambda pods: pods.get(pod.key).metadata.deletion_timestamp, timeout_s=5)
        assert (await ask(world, job, pod, token)).json() == {"stop": True, "why": "its pod one-1-0 is being deleted"}
    finally:
        await world.pod_finalizers(pod)
    await world.deps.pods.wait_for(lambda pods: pods.get(pod.key) is None, timeout_s=5)
    assert (await ask(world, job, pod, token)).json() == {"stop": True, "why": "its pod one-1-0 is gone"}


async def test_a_pod_that_the_cluster_counts_as_over_stops(world):
    job, pod, token = await running(world)
    await world.store.patch_status(PODS, pod.key, {"phase": "Failed", "reason": "NodeLost"}, manager="cluster")
    await world.deps.pods.wait_for(lambda pods: pods.get(pod.key).ended, timeout_s=5)
    reported = (await ask(world, job, pod, token)).json()
    assert reported == {"stop": True, "why": "its pod one-1-0 is over for the cluster (Failed)"}


async def test_the_end_of_its_job_stops_it_also_if_there_is_another_of_that_name(world):
    job, pod, token = await running(world)
    await world.store.delete(JOBS, job.key)
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key) is None, timeout_s=5)
    assert (await ask(world, job, pod, token)).json() == {"stop": True, "why": "job one is gone"}
    await world.job("one")
    assert (await ask(world, job, pod, token)).json() == {"stop": True, "why": "job one is gone"}


async def test_a_worker_asks_only_for_itself(world):
    job, pod, token = await running(world)
    for change in ({"podUid": "other"}, {"jobUid": "other"}, {"attempt": 2}):
        assert (await ask(world, job, pod, token, **change)).status_code == 403, change
    for change in ({"project": "../beta"}, {"jobName": ".."}):
        assert (await ask(world, job, pod, token, **change)).status_code == 422, change
    assert (await ask(world, job, pod, token, worker="x" * 70_000)).status_code == 413


async def test_a_store_that_can_not_be_asked_stops_no_worker(world, monkeypatch):
    job, pod, token = await running(world)
    await world.store.delete(JOBS, job.key)
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key) is None, timeout_s=5)

    async def away(*_: Any) -> Any:
        raise Unavailable("no connection")

    monkeypatch.setattr(world.deps.store, "get", away)
    answer = await ask(world, job, pod, token)
    assert answer.status_code == 503 and "stop" not in answer.json()


# Old caches.


def a_job(attempt: int = 2, phase: Phase = Phase.RUNNING, **meta: Any) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name="one", namespace="alpha", **meta),
        spec=TrainingJobSpec(trainer=Trainer(command=("x",))),
        status=TrainingJobStatus(phase=phase, attempt=attempt),
    )


def a_pod(phase: PodPhase = PodPhase.RUNNING, attempt: int = 2) -> Pod:
    meta = ObjectMeta(name=f"one-{attempt}-0", namespace="alpha")
    return Pod(metadata=meta, spec=PodSpec(containers=(Container(),)), status=PodStatus(phase=phase))


@pytest.mark.parametrize("phase", Phase)
def test_an_earlier_attempt_in_the_cache_stops_no_worker(phase):
    """The cache shows how attempt 1 ended; this is attempt 2, which its newest version began."""
    assert unwanted(a_pod(), a_job(attempt=1, phase=phase), 2) == ""
    assert unwanted(None, None, 2) == ""


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("pod", [*PodPhase, None])
def test_the_same_attempt_stops_where_it_is_over(phase, pod):
    why = unwanted(None if pod is None else a_pod(pod), a_job(phase=phase), 2)
    assert bool(why) == (phase not in PLACED or pod in (PodPhase.SUCCEEDED, PodPhase.FAILED))


async def test_what_the_caches_lack_is_asked_of_the_store(tmp_path):
    """Caches that have seen nothing yet: a worker is gone only by the store's own word."""
    clock = SystemClock()
    async with EmbeddedStore(tmp_path / "store.db", clock) as store:
        deps = Deps(store, **caches(store, clock), logs=None, identity=None, clock=clock)  # type: ignore[arg-type]
        job = await store.create(JOBS, a_job())
        await store.patch_status(JOBS, job.key, {"phase": "Running", "attempt": 2}, manager="operator")
        pod = await store.create(PODS, a_pod())
        said = WorkerReport(
            pod_uid=pod.uid, job_uid=job.uid, project="alpha", job_name="one", attempt=2, worker=0
        )  # fmt: skip
        assert await why_stop(deps, said) == ""
        await store.patch_status(JOBS, job.key, {"phase": "Starting", "attempt": 3}, manager="operator")
        assert await why_stop(deps, said) == "attempt 3 of job one has begun; this is attempt 2"
        await store.patch_status(JOBS, job.key, {"phase": "Running", "attempt": 2}, manager="operator")
        await store.delete(PODS, pod.key)
        await store.create(PODS, a_pod())
        assert await why_stop(deps, said) == "its pod one-2-0 is gone"
        await store.delete(JOBS, job.key)
        assert await why_stop(deps, said) == "job one is gone"
