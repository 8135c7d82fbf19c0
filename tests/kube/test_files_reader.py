"""The pod that reads an ended job's files, made by the operator against a real API server, scheduler and admission."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from stoker.spec.job import JOBS, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import ANNOTATION_FILES_WANTED
from stoker.spec.pod import Pod
from tests.support.testbed.kubelets import Play

from .operator_world import World


async def _claim(world: World, name: str = "mine") -> None:
    """A bound claim; nothing of it is looked at without a kubelet."""
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{world.project}-{name}"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": world.project, "name": name},
        },
    }  # fmt: skip
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": world.project},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": f"{world.project}-{name}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }  # fmt: skip
    for one in (volume, claim):
        await world.kubectl("create", "-f", "-", stdin=json.dumps(one))


async def _want(world: World, name: str, at: datetime | None = None) -> TrainingJob:
    """What the api does when an ended job's files are asked for."""
    job = await world.store.get(JOBS, Key(world.project, name))
    annotations = {**job.metadata.annotations, ANNOTATION_FILES_WANTED: (at or datetime.now(UTC)).isoformat()}
    metadata = job.metadata.model_copy(update={"annotations": annotations})
    return await world.store.update(JOBS, job.model_copy(update={"metadata": metadata}))


def _reader(world: World, name: str) -> Pod | None:
    return world.pods.get(Key(world.project, f"{name}-files"))


def _runs(world: World, name: str) -> bool:
    pod = _reader(world, name)
    return pod is not None and pod.status.phase == "Running"


def _script(pod: Pod) -> Play:
    return Play() if pod.metadata.name.endswith("-files") else Play(code=0)


async def _ended(world: World, **spec: Any) -> TrainingJob:
    world.kubelet.script = _script
    await _claim(world)
    await world.submit("a", checkpoint={"claim": "mine"}, gpusPerWorker=1, **spec)
    return await world.phase("a", Phase.SUCCEEDED)


async def test_it_is_made_on_request_near_the_claim_and_charged_to_no_queue(world: World) -> None:
    await world.node("other", gpus=0)
    node = await world.node("n", gpus=1)
    await _ended(world)
    assert _reader(world, "a") is None, "no request yet"
    await _want(world, "a")
    await world.until(lambda: _runs(world, "a"), "the reader runs")
    pod = json.loads(await world.kubectl("get", "pod", "-n", world.project, "a-files", "-o", "json"))
    assert pod["spec"]["nodeName"] == node, "the node of its last attempt"
    assert not world.job("a").status.placement
    # The node's GPU is another job's to have meanwhile.
    await world.submit("b", gpusPerWorker=1)
    await world.phase("b", Phase.SUCCEEDED)
    assert _runs(world, "a"), "it is no worker"
    await world.kubectl("delete", "trainingjob", "-n", world.project, "a", "--wait=true", "--timeout=30s")
    await world.until(lambda: _reader(world, "a") is None, "it goes with its job")


async def test_it_goes_when_it_has_ended_and_is_made_again_when_asked_again(world: World) -> None:
    await world.node("n", gpus=1)
    await _ended(world)
    await _want(world, "a", datetime.now(UTC) - timedelta(minutes=10))
    await world.phase("a", Phase.SUCCEEDED)
    world.kubelet.script = lambda pod: Play(code=0, lasts_s=0.5) if pod.metadata.name == "a-files" else Play(code=0)
    await _want(world, "a")
    await world.until(lambda: _reader(world, "a") is not None, "the reader")
    first = _reader(world, "a")
    assert first is not None
    await _want(world, "a", datetime.now(UTC) - timedelta(minutes=10))  # as when nothing was asked for long
    await world.until(lambda: _reader(world, "a") is None, "one that has ended is removed, and not made anew")
    world.kubelet.script = _script
    await _want(world, "a")
    await world.until(lambda: _runs(world, "a"), "the next one")
    second = _reader(world, "a")
    assert second is not None and second.uid != first.uid


async def test_a_job_that_goes_on_gets_its_claim_back(world: World) -> None:
    await world.node("n", gpus=1)
    world.kubelet.script = lambda pod: Play() if pod.metadata.name.endswith("-files") else Play(code=1)
    await _claim(world)
    await world.submit("a", checkpoint={"claim": "mine"})
    job = await world.phase("a", Phase.FAILED)
    await _want(world, "a")
    await world.until(lambda: _runs(world, "a"), "the reader runs")
    world.kubelet.script = lambda pod: Play()
    job = await world.store.get(JOBS, job.key)
    await world.store.update(JOBS, job.model_copy(update={"spec": job.spec.model_copy(update={"retry_generation": 1})}))
    await world.phase("a", Phase.RUNNING)
    await world.until(lambda: _reader(world, "a") is None, "no reader beside a worker")


async def test_what_has_nothing_to_read_gets_none(world: World) -> None:
    await world.node("n", gpus=1)
    await world.submit("a")
    await world.phase("a", Phase.SUCCEEDED)
    job = await _want(world, "a")
    await world.jobs.at_least(job.metadata.resource_version, timeout_s=20)
    await world.submit("b")
    await world.phase("b", Phase.SUCCEEDED)
    assert _reader(world, "a") is None


async def test_a_pod_of_that_name_that_is_not_ours_is_left_alone(world: World) -> None:
    await world.node("n", gpus=1)
    await world.forge("a-files")
    await _ended(world)
    job = await _want(world, "a")
    await world.jobs.at_least(job.metadata.resource_version, timeout_s=20)
    await world.submit("b")
    await world.phase("b", Phase.SUCCEEDED)
    assert "a-files" in await world.kubectl("get", "pods", "-n", world.project, "-o", "name")
