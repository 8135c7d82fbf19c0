"""What a job's status says while it waits: at once, with the condition Scheduled and one event, and never what was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker.controller import waiting_reasons
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import Condition
from stoker.spec.queue import QueueResources
from stoker.spec.reasons import Code

from .conftest import World
from .test_admission import events, queue


def scheduled(job: TrainingJob) -> Condition | None:
    return next((found for found in job.status.conditions if found.type == "Scheduled"), None)


async def waits(world: World, name: str, code: Code, text: str = "") -> TrainingJob:
    def says() -> bool:
        job = world.job(name)
        condition = scheduled(job)
        return (
            condition is not None
            and (condition.status, condition.reason) == ("False", code)
            and text in condition.message == job.status.message
        )

    await world.until(says, f"{name} to wait: {code} {text}")
    return world.job(name)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_reasons, "LOOK_S", 0.02)
    monkeypatch.setattr(waiting_reasons, "REWRITES_PER_S", 1000.0)
    monkeypatch.setattr(waiting_reasons, "REWORDINGS_PER_S", 1000.0)


async def test_a_job_without_a_place_says_so_and_one_that_starts_costs_no_write_more(world: World) -> None:
    written: list[tuple[str, str]] = []
    world.jobs.subscribe(
        lambda change: written.append((change.key.name, change.new.status.phase)) if change.new else None
    )
    await world.node(gpus=1)
    world.kubelet.script = lambda pod: None
    await world.submit("runs", gpus_per_worker=1)
    assert scheduled(await world.phase("runs", Phase.RUNNING)).status == "True"  # type: ignore[union-attr]
    assert [phase for _, phase in written] == ["Queued", "Starting", "Running"], "the first is its creation"

    await world.submit("waits", gpus_per_worker=1)
    first = await waits(world, "waits", Code.NO_CAPACITY, "job runs holds 1")
    assert [phase for name, phase in written if name == "waits"] == ["Queued"] * 2, "created, and written once"
    await world.change("runs", suspend=True)
    assert scheduled(await world.phase("runs", Phase.SUSPENDED)).status == "False"  # type: ignore[union-attr]
    job = await world.phase("waits", Phase.RUNNING)
    condition = scheduled(job)
    assert condition is not None and (condition.status, condition.reason) == ("True", Code.PLACED)
    assert condition.last_transition_time >= scheduled(first).last_transition_time  # type: ignore[union-attr]
    assert [reason for reason in await events(world, "waits") if reason != "Running"] == ["Queued", "Placed"]


async def test_a_job_that_goes_back_to_its_queue_has_no_place_again(world: World) -> None:
    await world.node(gpus=1)
    world.kubelet.script = lambda pod: 1
    retry = {"rules": [{"categories": ["UserError"], "limit": 1, "backoff": "1h"}]}
    await world.submit("a", gpus_per_worker=1, retry=retry)
    await world.until(lambda: world.job("a").status.attempts, "the first attempt over")
    job = await waits(world, "a", Code.BACKING_OFF)
    assert "exit 1" in job.status.message, "how it ended stays there to be read"


async def test_the_message_follows_its_facts_and_is_left_alone_without(world: World, often: None) -> None:
    await world.node(gpus=4)
    await queue(world, limit=QueueResources(gpus=2))
    world.kubelet.script = lambda pod: None
    await world.submit("runs", queue="q", gpus_per_worker=2)
    await world.phase("runs", Phase.RUNNING)
    await world.submit("waits", queue="q", gpus_per_worker=2)
    await waits(world, "waits", Code.QUEUE_LIMIT, "its limit is 2 GPUs, its jobs hold 2 GPUs")
    await queue(world, limit=QueueResources(gpus=3))
    same = await waits(world, "waits", Code.QUEUE_LIMIT, "its limit is 3 GPUs, its jobs hold 2 GPUs")

    looks = world.operator.scheduling.passes + 10
    await world.until(lambda: world.operator.scheduling.passes > looks, "it was looked at again and again")
    assert world.job("waits").metadata.resource_version == same.metadata.resource_version

    # More than the queue could ever hold is no matter of waiting for others.
    await queue(world, limit=QueueResources(gpus=1))
    await waits(world, "waits", Code.NEVER_FITS, "queue 'q' may never hold more than 1 GPU")
    assert (await events(world, "waits")).count("Queued") == 1


@pytest.mark.parametrize("why", ["so few a second", "the store is slow"])
async def test_a_message_whose_numbers_moved_is_seldom_rewritten(
    why: str, world: World, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a long rest, which no first reason waits for."""
    if why == "so few a second":
        monkeypatch.setattr(waiting_reasons, "REWORDINGS_PER_S", 1e-4)
    else:
        patch_status = world.store.patch_status

        async def slow(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0.4)
            return await patch_status(*args, **options)

        monkeypatch.setattr(world.store, "patch_status", slow)
    await world.node(gpus=4)
    await queue(world, limit=QueueResources(gpus=2))
    world.kubelet.script = lambda pod: None
    await world.submit("runs", queue="q", gpus_per_worker=2)
    await world.phase("runs", Phase.RUNNING)
    await world.submit("waits", queue="q", gpus_per_worker=2)
    await waits(world, "waits", Code.QUEUE_LIMIT, "its limit is 2 GPUs")
    await queue(world, limit=QueueResources(gpus=3))
    once = await waits(world, "waits", Code.QUEUE_LIMIT, "its limit is 3 GPUs")
    await queue(world, limit=QueueResources(gpus=2))
    for name in ("new", "newer", "newest"):
        await world.submit(name, queue="q", gpus_per_worker=2)
        await waits(world, name, Code.QUEUE_LIMIT, "its limit is 2 GPUs")
    assert world.job("waits").metadata.resource_version == once.metadata.resource_version


async def test_many_waiting_jobs_all_get_their_reason(world: World) -> None:
    """More than are written in one pass, of which none starves."""
    await world.node(gpus=1)
    world.kubelet.script = lambda pod: None
    await world.submit("runs", gpus_per_worker=1)
    await world.phase("runs", Phase.RUNNING)
    for number in range(200):
        await world.submit(f"j{number}", gpus_per_worker=1)
    await world.until(
        lambda: sum(job.status.reason is Code.NO_CAPACITY for job in world.jobs.values()) == 200, "every reason"
    )
