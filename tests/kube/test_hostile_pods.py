"""What who may edit pods can do to jobs by labels, owners and finalizers: nothing, on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.spec.job import Phase
from stoker.spec.meta import Key
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.reasons import Code
from tests.support.testbed.kubelets import Play

from .operator_world import World


async def victim(world: World) -> Any:
    world.kubelet.script = lambda pod: Play() if pod.metadata.name.startswith("vic") else Play(code=0)
    await world.submit("vic", gpusPerWorker=1)
    return await world.phase("vic", Phase.RUNNING)


def labels(job: Any, worker: int = 0) -> dict[str, str]:
    said = {"job": "vic", "job-uid": job.uid, "attempt": "1", "worker": str(worker)}
    return {f"stoker.dev/{name}": value for name, value in said.items()}


@pytest.mark.parametrize("grace_s", [None, 400_000_000_000], ids=["there", "deleted with an endless grace"])
async def test_a_pod_with_a_jobs_labels_hides_no_gpu(world: World, grace_s: int | None) -> None:
    node = await world.node("n", gpus=4)
    await world.forge("hidden", node, gpus=3, labels=labels(await victim(world)))
    if grace_s is not None:
        far = ("--wait=false", f"--grace-period={grace_s}")
        await world.kubectl("delete", "pod", "-n", world.project, "hidden", *far)
    await world.until(lambda: Key(world.project, "hidden") in [pod.key for pod in world.others.values()], "seen")
    await world.submit("next", gpusPerWorker=1)
    await world.until(lambda: world.job("next").status.reason is Code.NO_CAPACITY, lambda: world.job("next").status)
    assert f"{world.project}/hidden" in world.job("next").status.message and not world.job("next").status.attempts
    await world.kubectl("delete", "pod", "-n", world.project, "hidden", "--force", "--grace-period=0")


@pytest.mark.parametrize(
    "patch",
    [
        {"stoker.dev/job-uid": None},
        {"stoker.dev/attempt": None, "stoker.dev/worker": None},
        {"stoker.dev/attempt": "abc", "stoker.dev/job-uid": "abc", "stoker.dev/job": "other"},
    ],
    ids=["without job-uid", "without attempt and worker", "nonsense"],
)
async def test_a_workers_pod_is_its_jobs_whatever_its_labels_say(world: World, patch: dict[str, Any]) -> None:
    await world.node("n")
    await victim(world)
    change = json.dumps({"metadata": {"labels": patch}})
    await world.kubectl("patch", "pod", "-n", world.project, "vic-1-0", "--type=merge", "-p", change)
    await world.kubectl("patch", "tj", "-n", world.project, "vic", "--type=merge", "-p", '{"spec": {"cancel": true}}')
    job = await world.phase("vic", Phase.CANCELLED)
    assert (job.status.attempt, world.operator.reconcile_errors) == (1, 0)
    await world.kubectl("delete", "tj", "-n", world.project, "vic", "--timeout=20s")
    await world.kubectl("wait", "pod/vic-1-0", "-n", world.project, "--for=delete", "--timeout=20s")


async def test_a_forged_worker_of_a_job_replaces_none(world: World) -> None:
    node = await world.node("n", gpus=4)
    job = await victim(world)
    owner = {"apiVersion": job.api_version, "kind": job.kind, "name": "vic", "uid": job.uid, "controller": True}
    await world.forge("vic-forged", node, gpus=1, labels=labels(job), ownerReferences=[owner])
    await world.kubectl("wait", "pod/vic-forged", "-n", world.project, "--for=delete", "--timeout=20s")
    assert (world.job("vic").status.attempt, world.job("vic").status.phase) == (1, Phase.RUNNING)


async def test_a_pod_that_names_a_job_as_an_owner_but_no_controller_is_no_worker(world: World) -> None:
    """Policy `stoker-pods` lets such a pod through: the garbage collector's owners are anybody's to name."""
    node = await world.node("n")
    world.kubelet.script = lambda _pod: Play(code=0)
    job = await world.submit("vic", gpusPerWorker=1, suspend=True)
    owner = {"apiVersion": job.api_version, "kind": job.kind, "name": "vic", "uid": job.uid}
    await world.forge("vic-1-0", node, labels=labels(job), ownerReferences=[owner])
    await world.kubectl("patch", "tj", "-n", world.project, "vic", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    await world.until(lambda: "there is a Pod vic-1-0 already" in world.job("vic").status.message, "it is named")
    await world.kubectl("delete", "pod", "-n", world.project, "vic-1-0", "--force", "--grace-period=0")
    await world.phase("vic", Phase.SUCCEEDED)


async def test_our_finalizer_comes_off_any_pod_that_is_to_go(world: World) -> None:
    node = await world.node("n")
    finalizers = [FINALIZER_OUTCOME]
    world.kubelet.script = lambda _pod: Play(code=0)
    for name, where in (("waiting", ""), ("running", node), ("never-1-0", ""), ("labelled", node)):
        said = {"stoker.dev/job-uid": "x", "stoker.dev/attempt": "y"} if name == "labelled" else {}
        await world.forge(name, where, finalizers=finalizers, labels=said)
        await world.kubectl("delete", "pod", "-n", world.project, name, "--wait=false", "--ignore-not-found")
    await world.kubectl("wait", "pod", "--all", "-n", world.project, "--for=delete", "--timeout=20s")
