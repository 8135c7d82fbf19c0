"""Elastic jobs on the embedded store: one grows, one shrinks for another, and what a dead leader leaves of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stoker.spec.job import Phase
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.outcome import Intent
from stoker.spec.queue import QUEUES, Preemption, Queue, QueueResources, QueueSpec, WithinQueue
from stoker.spec.reasons import Code
from stoker.store.port import Invalid

from .dying import Dying

if TYPE_CHECKING:
    from .conftest import World

ELASTIC: dict[str, Any] = {"queue": "q", "gpus_per_worker": 1, "workers": 3, "elastic": {"min": 1, "max": 4}}


async def lent(world: World, gpus: int = 4) -> None:
    """GPUs of a queue `q` that lends what is guaranteed to `owner`."""
    how = Preemption(within_queue=WithinQueue.LOWER_PRIORITY)
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="q"), spec=QueueSpec(preemption=how)))
    owns = QueueSpec(guarantee=QueueResources(gpus=2))
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="owner"), spec=owns))
    await world.node(gpus=gpus)


def workers_of(world: World, name: str) -> str:
    pod = world.pods.get(Key("p", name))
    assert pod is not None
    return next(one.value for one in pod.spec.containers[0].env if one.name == "STOKER_WORKERS")


async def test_it_starts_with_what_fits_and_grows_into_what_gets_free(world: World) -> None:
    world.kubelet.script = lambda pod: None
    await lent(world)
    await world.submit("first", queue="q", gpus_per_worker=2)
    await world.phase("first", Phase.RUNNING)
    await world.submit("e", **ELASTIC)
    job = await world.phase("e", Phase.RUNNING)
    assert len(job.status.placement) == 2, "of 3 that are wished for"
    assert {workers_of(world, f"e-1-{worker}") for worker in range(2)} == {"2"}
    await world.change("first", cancel=True)
    await world.until(lambda: world.job("e").status.attempt == 2, "it goes on with more")
    job = await world.phase("e", Phase.RUNNING)
    (ended,) = job.status.attempts
    assert (ended.intent, job.status.retries, len(job.status.placement)) == (Intent.RESIZE, {}, 4)
    assert "goes on with 4 workers instead of 2: GPUs are idle" in ended.message
    assert {workers_of(world, f"e-2-{worker}") for worker in range(4)} == {"4"}
    assert job.status.claim is None and len(ended.workers) == 2
    assert world.kubelet.most_gpus == 4


async def test_one_whose_growth_the_store_refuses_still_counts_in_its_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kubelet.script = lambda pod: None
    patch_status, refused = world.store.patch_status, 0

    async def refuse(kind: Any, key: Key, patch: Any, **options: Any) -> Any:
        nonlocal refused
        if key.name == "e" and patch.get("claim"):
            refused += 1
            raise Invalid(["the object is larger than the store takes"])
        return await patch_status(kind, key, patch, **options)

    monkeypatch.setattr(world.store, "patch_status", refuse)
    limited = QueueSpec(limit=QueueResources(gpus=4))
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="q"), spec=limited))
    await world.node(gpus=8)
    await world.submit("e", **ELASTIC)
    await world.until(lambda: refused, "it would grow")
    await world.submit("more", queue="q", gpus_per_worker=2)
    await world.until(lambda: world.job("more").status.reason is Code.QUEUE_LIMIT, lambda: world.job("more").status)
    assert len(world.job("e").status.placement) == 3 and refused < 4 and world.operator.reconcile_errors == 0
    await world.change("e", cancel=True)
    await world.phase("more", Phase.RUNNING)


async def test_an_owner_reclaims_and_the_borrower_goes_on_with_fewer(world: World) -> None:
    world.kubelet.script = lambda pod: None
    await lent(world)
    await world.submit("e", **(ELASTIC | {"workers": 4}))
    before = await world.phase("e", Phase.RUNNING)
    await world.submit("own", queue="owner", gpus_per_worker=2)
    own = await world.phase("own", Phase.RUNNING)
    await world.until(lambda: world.job("e").status.attempt == 2, "it goes on with fewer")
    job = await world.phase("e", Phase.RUNNING)
    (ended,) = job.status.attempts
    assert (ended.intent, len(job.status.placement)) == (Intent.RESIZE, 2)
    assert ended.message == ("goes on with 2 of 4 workers: the others make room for job own (project p)"), ended.message
    assert (own.status.claim, job.status.queued_at) == (None, before.status.queued_at)
    assert world.kubelet.most_gpus == 4
    assert world.counters.preempted_gpus.labels("q", "Reclaimed")._value.get() == 0, "a shrink that saved is none"
    assert world.counters.decisions.labels(Code.RESIZED.value)._value.get() >= 1


@pytest.mark.parametrize("which", ["shrinks", "grows"])
async def test_a_leader_killed_between_any_two_writes_is_followed_by_one_that_comes_to_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    world.kubelet.script = lambda pod: None
    await lent(world)
    if which == "grows":
        await world.submit("own", queue="owner", gpus_per_worker=2)
        await world.phase("own", Phase.RUNNING)
    await world.submit("e", **(ELASTIC | {"workers": 4}))
    await world.phase("e", Phase.RUNNING)
    dying = Dying(world, monkeypatch)
    if which == "grows":
        await world.change("own", cancel=True)
    else:
        await world.submit("own", queue="owner", gpus_per_worker=2)

    async def resized() -> None:
        await world.until(lambda: world.job("e").status.attempt == 2, "it goes on")
        await world.phase("e", Phase.RUNNING, timeout_s=60)

    claims = await dying.each_time_until(resized, "own" if which == "shrinks" else "e")
    job = world.job("e")
    (ended,) = job.status.attempts
    assert (ended.intent, job.status.attempt, job.status.retries) == (Intent.RESIZE, 2, {})
    assert len(job.status.placement) == (2 if which == "shrinks" else 4)
    assert len({claim.placement for claim in claims}) == 1, "the same claim, under any leader"
    assert any("Stopping Resize True" in step for step in dying.seen), dying.seen
    assert any("Queued None True" in step for step in dying.seen), dying.seen
    assert world.kubelet.most_gpus == 4
