"""A sick GPU's burn-in on a real API server, with the rights that the chart gives the operator."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from stoker.controller.burn_ins import BurnIns
from stoker.life.burn_in import BurnIn, job_name
from stoker.spec.gpu_health import HEALTH, GPUNodeHealth
from stoker.spec.job import Phase
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import BURN_IN
from stoker.store.clock import SystemClock
from tests.support.testbed.kubelets import Play

from .operator_world import World


async def test_it_takes_the_free_gpus_of_the_node_that_is_left_out_and_opens_it(world: World) -> None:
    name = await world.node("n", gpus=4)
    test = Key(world.project, job_name("GPU-0"))
    world.kubelet.script = lambda pod: Play(0) if pod.metadata.name.startswith(test.name) else Play()
    await world.submit("runs", gpusPerWorker=1)
    await world.phase("runs", Phase.RUNNING)
    now = datetime.now(UTC)
    cause = {"code": "RecoveryAction", "message": "the driver asks for a reset"}
    cause |= {"since": (now - timedelta(hours=1)).isoformat(), "ends": (now - timedelta(minutes=1)).isoformat()}
    made = await world.store.create(HEALTH, GPUNodeHealth(metadata=ObjectMeta(name=name)))
    gpus = [{"uuid": f"GPU-{i}", "index": i, "causes": [cause] if i == 0 else []} for i in range(4)]
    loop = BurnIns(
        world.own,
        world.jobs,
        world.known,
        world.operator.feed,
        world.operator.recorder,
        SystemClock(),
        BurnIn(image="trainer:test"),
        project=world.project,
    )
    running = asyncio.create_task(loop.run())
    try:
        await world.store.patch_status(HEALTH, made.key, {"gpus": gpus}, manager="api")
        await world.submit("waits", gpusPerWorker=3)
        await world.phase("waits", Phase.RUNNING)
        known = await world.store.get(HEALTH, made.key)
        assert [(one.gpu, one.by) for one in known.spec.cleared] == [("GPU-0", BURN_IN)]
        job = world.job(test.name)
        assert (job.status.phase, job.spec.gpus_per_worker, job.spec.trainer.image) == (
            Phase.SUCCEEDED,
            3,
            "trainer:test",
        )
        assert job.status.burn_in is not None and job.status.burn_in.gpu == "GPU-0"
        said = await world.kubectl("get", "events", "-n", "default", "--field-selector", f"involvedObject.name={name}")
        assert "BurnIn" in said
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.store.delete(HEALTH, made.key)
