"""A sick GPU comes back by a job that tests it: when it runs, where, and whose word counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.controller import burn_ins
from stoker.controller.burn_ins import BurnIns
from stoker.life.burn_in import AGAIN_S, FAILED, BurnIn, job_name
from stoker.spec.event import EVENTS
from stoker.spec.gpu_health import HEALTH, GPUNodeHealth, GPUNodeHealthSpec
from stoker.spec.job import JOBS, Phase, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import BURN_IN, SYSTEM_PROJECT
from stoker.spec.node import NODES, Gpu, GPUNode, GPUNodeStatus
from stoker.spec.outcome import Intent
from stoker.store.clock import SystemClock

from .conftest import World

ABSENT = 4
TEST = Key(SYSTEM_PROJECT, job_name("n1-0"))


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


OVER = {"code": "RecoveryAction", "since": ago(3600), "ends": ago(60), "message": "the driver asks for a reset"}


async def sick(world: World, *causes: dict[str, Any], gpus: int = 2) -> None:
    """GPU 0 of n1."""
    await world.store.create(HEALTH, GPUNodeHealth(metadata=ObjectMeta(name="n1")))
    known: list[dict[str, Any]] = [{"uuid": f"n1-{i}", "index": i} for i in range(gpus)]
    known[0]["causes"] = list(causes)
    await world.store.patch_status(HEALTH, Key("", "n1"), {"gpus": known}, manager="api")


@asynccontextmanager
async def operating(world: World, *, knows_uuids: bool = True) -> AsyncIterator[None]:
    loop = BurnIns(
        world.store,
        world.jobs,
        world.known,
        world.operator.feed,
        world.operator.recorder,
        SystemClock(),
        BurnIn(),
        project=SYSTEM_PROJECT,
        knows_uuids=knows_uuids,
    )
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def spec(world: World) -> GPUNodeHealthSpec:
    known: GPUNodeHealth = await world.store.get(HEALTH, Key("", "n1"))
    return known.spec


async def test_a_gpu_that_passes_takes_jobs_again_and_its_event_names_who_found_it_healthy(world: World) -> None:
    world.kubelet.script = lambda pod: 0
    await sick(world, OVER)
    await world.node(2)
    await world.submit("both", gpusPerWorker=2)
    async with operating(world):
        await world.phase("both", Phase.SUCCEEDED)
    assert world.kubelet.ran == [f"{TEST.name}-1-0", "both-1-0"]
    (word,) = (await spec(world)).cleared
    assert (word.gpu, word.by) == ("n1-0", BURN_IN)
    test = world.jobs.get(TEST)
    assert test is not None and test.status.burn_in is not None and test.status.burn_in.at == word.at
    assert test.status.attempts[0].intent is Intent.NONE, "it is not moved off the GPU that it tests"
    said: set[str] = set()
    async with asyncio.timeout(10):
        while said != {"TrainingJob", "GPUNodeHealth"}:
            events = (await world.store.list(EVENTS)).items
            said = {event.involved_object.kind for event in events if event.reason == "BurnInPassed"}
            await asyncio.sleep(0.01)


async def test_a_gpu_that_fails_stays_closed_until_its_cordon_is_taken_away_and_what_was_found_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kubelet.script = lambda pod: FAILED
    await sick(world, OVER)
    await world.node(2)
    async with operating(world):
        await world.nodes.wait_for(
            lambda nodes: "burn-in failed: exit 3" in nodes.get(Key("", "n1")).status.gpus[0].unavailable, timeout_s=10
        )
    assert world.nodes.get(Key("", "n1")).status.gpus[0].unavailable.startswith("sick: the driver asks for a reset")
    assert world.kubelet.ran == [f"{TEST.name}-1-0"], "no second one"
    known = await world.store.get(HEALTH, Key("", "n1"))
    (closed,) = known.spec.cordons
    assert (closed.gpu, closed.by) == ("n1-0", BURN_IN)
    await world.store.update(HEALTH, known.model_copy(update={"spec": GPUNodeHealthSpec()}))
    await world.known.health.wait_for(lambda found: not found.get(Key("", "n1")).spec.cordons, timeout_s=10)
    monkeypatch.setattr(burn_ins, "AGAIN_S", 0.0)
    monkeypatch.setattr(burn_ins, "_REFUSED_S", 0.01)
    world.kubelet.script = lambda pod: 0
    async with operating(world):  # half an hour later
        await world.nodes.wait_for(lambda nodes: not nodes.get(Key("", "n1")).status.sick, timeout_s=10)


async def test_one_that_says_nothing_is_repeated_but_not_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.kubelet.script = lambda pod: ABSENT
    await sick(world, OVER)
    await world.node(2)
    async with operating(world):
        await world.jobs.wait_for(lambda jobs: _phase(jobs.get(TEST)) is Phase.FAILED, timeout_s=10)
        first = world.jobs.get(TEST)
    assert AGAIN_S >= 600
    async with operating(world):
        assert world.jobs.get(TEST) == first
        world.kubelet.script = lambda pod: 0
        monkeypatch.setattr(burn_ins, "AGAIN_S", 0.0)
    monkeypatch.setattr(burn_ins, "_REFUSED_S", 0.01)
    async with operating(world):
        await world.nodes.wait_for(lambda nodes: not nodes.get(Key("", "n1")).status.sick, timeout_s=10)
    assert world.jobs.get(TEST).uid != first.uid and (await spec(world)).cordons == ()


async def test_what_another_made_under_its_name_says_nothing_of_a_gpu(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kubelet.script = lambda pod: 0 if pod.spec.containers[0].command == ("true",) else FAILED
    forged = TrainingJob(
        metadata=ObjectMeta(name=TEST.name, namespace=TEST.namespace),
        spec={"trainer": {"command": ["true"]}, "cpu": "1", "memory": "1Gi"},  # type: ignore[arg-type]
    )
    await world.store.create(JOBS, forged)
    await world.node(2)
    await world.jobs.wait_for(lambda jobs: _phase(jobs.get(TEST)) is Phase.SUCCEEDED, timeout_s=10)
    monkeypatch.setattr(burn_ins, "_REFUSED_S", 0.01)
    await sick(world, OVER)
    async with operating(world):
        await world.known.health.wait_for(lambda found: found.get(Key("", "n1")).spec.cordons, timeout_s=10)
    assert (await spec(world)).cleared == ()


async def test_on_a_cluster_it_takes_all_free_gpus_of_a_node_that_is_left_out_as_a_whole(world: World) -> None:
    world.kubelet.script = lambda pod: 0 if "burn-in" in pod.metadata.name else None
    blank = tuple(Gpu(uuid="", index=i, model="H200", memory_bytes=2**34) for i in range(4))
    status = GPUNodeStatus(ready=True, cpu_milli=64_000, memory_bytes=2**40, gpus=blank)
    await world.store.create(NODES, GPUNode(metadata=ObjectMeta(name="n1")))
    patch = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    await world.store.patch_status(NODES, Key("", "n1"), patch, manager="agent")
    await world.submit("runs", gpusPerWorker=1)
    await world.phase("runs", Phase.RUNNING)
    await sick(world, OVER, gpus=4)
    async with operating(world, knows_uuids=False):
        await world.nodes.wait_for(lambda nodes: not nodes.get(Key("", "n1")).status.sick, timeout_s=10)
    test = world.jobs.get(TEST)
    assert test is not None and test.spec.gpus_per_worker == 3 and world.kubelet.most_gpus == 4


def _phase(job: TrainingJob | None) -> Phase | None:
    return None if job is None else job.status.phase
