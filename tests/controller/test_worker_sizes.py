"""Jobs that don't say what their workers get: it is worked out once, before they start, by operators that may die."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.spec.job import JOBS, Phase, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES
from stoker.spec.pod import PODS
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.reasons import Code

from .conftest import World

SILENT = {"cpu": None, "memory": None}
SHARE = ("14", "230Gi")
"""Of a node with 64 cores, 1Ti and 4 GPUs, less a tenth."""


async def queue(world: World, name: str, **defaults: Any) -> None:
    spec = {"defaults": {"perGpu": defaults}}
    await world.store.create(QUEUES, Queue.model_validate({"metadata": {"name": name}, "spec": spec}))


def got(job: TrainingJob) -> tuple[str, str] | None:
    resources = job.status.resources
    return None if resources is None else (resources.cpu, resources.memory)


async def test_a_worker_gets_its_share_and_keeps_it(world: World) -> None:
    world.kubelet.script = lambda pod: None
    await world.node(4)
    await world.submit("j", gpusPerWorker=1, **SILENT)
    job = await world.phase("j", Phase.RUNNING)
    assert got(job) == SHARE
    pod = await world.store.get(PODS, Key("p", "j-1-0"))
    assert pod.spec.containers[0].resources.requests == {"cpu": "14", "memory": "230Gi", "nvidia.com/gpu": "1"}
    await world.node(8, "n2", cpu_milli=8_000)
    await world.submit("later", gpusPerWorker=1, **SILENT)
    assert got(await world.phase("later", Phase.RUNNING)) == ("900m", "115Gi"), "the smaller node's share now"
    # A retry is the same job: what it gets was settled when it was accepted.
    world.kubelet.script = lambda pod: 3
    await world.change("j", cancel=True)
    await world.phase("j", Phase.CANCELLED)
    world.kubelet.script = lambda pod: None
    await world.change("j", cancel=False, retry_generation=1)
    await world.until(lambda: world.job("j").status.attempt == 2, "the second attempt")
    assert got(world.job("j")) == SHARE


async def test_the_queues_defaults_count_in_its_own_sums(world: World) -> None:
    world.kubelet.script = lambda pod: None
    await world.node(4)
    await queue(world, "q", cpu="3", memory="5Gi")
    await world.submit("j", queue="q", gpusPerWorker=2, **SILENT)
    assert got(await world.phase("j", Phase.RUNNING)) == ("6", "10Gi")

    def used() -> tuple[str, str] | None:
        found = world.queues.get(Key("", "q"))
        return found and (found.status.used.cpu, found.status.used.memory)

    await world.until(lambda: used() == ("6", "10Gi"), lambda: f"the queue's status: {used()}")


async def test_without_a_node_whose_gpus_would_do_it_waits_for_the_first(world: World) -> None:
    await world.node(4, model="Tesla T4")
    await world.submit("j", gpusPerWorker=1, gpu={"models": ["a100"]}, **SILENT)
    await world.submit("said", gpusPerWorker=1, gpu={"models": ["a100"]})
    for name in ("j", "said"):
        await world.until(lambda name=name: world.job(name).status.reason is Code.NEVER_FITS, "why it waits")
    assert got(world.job("j")) is None
    await world.node(4, "n2", model="NVIDIA A100")
    assert got(await world.phase("j", Phase.SUCCEEDED)) == SHARE
    assert got(await world.phase("said", Phase.SUCCEEDED)) is None


async def test_one_that_is_barred_gets_what_holds_when_it_is_let_in(world: World) -> None:
    await world.node(4)
    await world.submit("j", queue="later", gpusPerWorker=1, **SILENT)
    await world.until(lambda: world.job("j").status.reason is Code.QUEUE_MISSING, "why it waits", 30)
    assert got(world.job("j")) is None
    await queue(world, "later", cpu="2")
    job = await world.phase("j", Phase.SUCCEEDED)
    assert got(job) == ("2", SHARE[1])


@pytest.mark.parametrize("name", ["written", "unwritten"])
async def test_an_operator_that_dies_around_the_write_leaves_one_answer(world: World, name: str) -> None:
    """The next one takes what is in the status; what was only worked out it works out again."""
    await world.node(4)
    await world.stop()
    await world.submit("j", gpusPerWorker=1, **SILENT)
    if name == "written":
        resources = {
            "cpu": "5",
            "cpuFrom": "GpuShare",
            "memory": "7Gi",
            "memoryFrom": "GpuShare",
            "sharedMemory": "1Gi",
        }
        await world.store.patch_status(JOBS, Key("p", "j"), {"resources": resources}, manager="operator")
    await world.store.delete(NODES, Key("", "n1"))
    await world.node(8, "n2")
    world.start()
    assert got(await world.phase("j", Phase.SUCCEEDED)) == (("5", "7Gi") if name == "written" else ("7", "115Gi"))


async def test_a_job_that_says_both_costs_no_write_more(world: World) -> None:
    await world.node(1)
    meta = ObjectMeta(name="j", namespace="p")
    spec: Any = {"trainer": {"command": ["x"]}, "gpusPerWorker": 1, "cpu": "1", "memory": "1Gi"}
    await world.store.create(JOBS, TrainingJob(metadata=meta, spec=spec))
    assert (await world.phase("j", Phase.SUCCEEDED)).status.resources is None
