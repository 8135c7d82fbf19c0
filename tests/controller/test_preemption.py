"""Preemption on the embedded store: claim, intents, start; and that a leader may die between any two of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stoker.controller.counters import Counters
from stoker.spec.event import EVENTS
from stoker.spec.job import JOBS, AttemptEnd, Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.outcome import Category, Intent
from stoker.spec.queue import QUEUES, Preemption, Queue, QueueResources, QueueSpec, WithinQueue
from stoker.spec.reasons import Code
from stoker.spec.worker import Checkpoint, Progress
from stoker.store.port import Invalid

from .dying import Dying
from .test_metrics import Page

if TYPE_CHECKING:
    from .conftest import World


async def crowded(world: World) -> None:
    """Two low-priority jobs fill the node, and run until they are stopped."""
    world.kubelet.script = lambda pod: None if pod.metadata.name.startswith("low") else 0
    how = Preemption(within_queue=WithinQueue.LOWER_PRIORITY)
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="q"), spec=QueueSpec(preemption=how)))
    await world.node(gpus=2)
    for name in ("low-a", "low-b"):
        await world.submit(name, queue="q", gpus_per_worker=1)
        await world.phase(name, Phase.RUNNING)


async def test_a_job_of_higher_priority_preempts_and_the_victim_goes_on_where_it_was_in_the_queue(world: World) -> None:
    await crowded(world)
    before = {name: world.job(name).status for name in ("low-a", "low-b")}
    await world.submit("high", queue="q", gpus_per_worker=1, priority=5)
    high = await world.phase("high", Phase.SUCCEEDED)
    assert high.status.claim is None
    (victim,) = [name for name in before if world.job(name).status.attempts]
    job = await world.phase(victim, Phase.RUNNING)
    (ended,) = job.status.attempts
    assert (ended.intent, job.status.attempt, job.status.retries) == (Intent.PREEMPT, 2, {})
    assert job.status.queued_at == before[victim].queued_at
    assert "preempted for job high" in ended.message
    (other,) = before.keys() - {victim}
    assert world.job(other).status.attempt == 1, "no more than need be"
    assert world.kubelet.most_gpus == 2
    assert world.counters.preempted_gpus.labels("q", "Preempted")._value.get() == 1


@pytest.mark.parametrize("how", ["preempted", "cancelled", "ended"])
async def test_a_job_whose_status_the_store_refuses_gives_its_gpu_back(
    how: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of one which its owner has made as large as an object may be. Once it is smaller, its attempt ends."""
    await crowded(world)
    patch_status, refuses = world.store.patch_status, True

    async def refuse(kind: Any, key: Key, patch: Any, **options: Any) -> Any:
        if kind is JOBS and refuses and key.name.startswith("low"):
            raise Invalid(["the object is larger than the store takes"])
        return await patch_status(kind, key, patch, **options)

    monkeypatch.setattr(world.store, "patch_status", refuse)
    if how == "cancelled":
        await world.change("low-a", cancel=True)
    elif how == "ended":
        (pod,) = [pod for pod in world.pods.values() if pod.metadata.name == "low-a-1-0"]
        await world.kubelet.end(pod, 0)
    await world.submit("high", queue="q", gpus_per_worker=1, priority=5 if how == "preempted" else 0)
    await world.phase("high", Phase.SUCCEEDED)
    lows = [pod for pod in world.pods.values() if pod.metadata.name.startswith("low")]
    (gone,) = [pod for pod in lows if pod.ended]
    assert [world.job(name).status.attempt for name in ("low-a", "low-b")] == [1, 1], "one victim is enough"
    events = (await world.store.list(EVENTS)).items
    assert sum(event.reason == "StatusRefused" for event in events) == (how != "ended")
    victim = gone.metadata.name.removesuffix("-1-0")
    await world.change(victim, priority=-1)  # a newer version of it is no other attempt
    await world.submit("next", queue="q", gpus_per_worker=1)
    await world.phase("next", Phase.SUCCEEDED)
    refuses = False
    await world.change(victim, cancel=True)
    await world.phase(victim, Phase.SUCCEEDED if how == "ended" else Phase.CANCELLED)
    assert world.kubelet.most_gpus == 2 + (how == "ended")  # there the kubelet was not asked


async def test_an_owner_reclaims_and_prometheus_sees_what_was_lent_taken_back_and_lost(world: World) -> None:
    def gpus(queue: str) -> dict[str, float | None]:
        page = Page(world)
        rows = page.rows("stoker_queue_gpus", queue=queue)
        return {row["state"]: page.value("stoker_queue_gpus", **row) for row in rows}

    world.kubelet.script = lambda pod: None
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="lent"), spec=QueueSpec()))
    owns = QueueSpec(guarantee=QueueResources(gpus=2))
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="owner"), spec=owns))
    await world.node(gpus=3)
    await world.submit("low", queue="lent", gpus_per_worker=2)
    await world.phase("low", Phase.RUNNING)
    assert gpus("lent") == {"allocated": 2, "requested": 0, "guarantee": 0, "borrowed": 2}
    assert gpus("owner") == {"allocated": 0, "requested": 0, "guarantee": 2, "borrowed": 0}
    await world.submit("own", queue="owner", gpus_per_worker=2)
    await world.phase("own", Phase.RUNNING)
    assert gpus("lent") == {"allocated": 0, "requested": 2, "guarantee": 0, "borrowed": 0}
    assert gpus("owner") == {"allocated": 2, "requested": 0, "guarantee": 2, "borrowed": 0}
    page = Page(world)
    for name in ("stoker_preempted_gpus_total", "stoker_preempted_gpu_seconds_lost_total"):
        assert page.value(name, queue="lent", reason="Preempted") in (None, 0), name
    assert page.value("stoker_preempted_gpus_total", queue="lent", reason="Reclaimed") == 2
    assert (page.value("stoker_preempted_gpu_seconds_lost_total", queue="lent", reason="Reclaimed") or 0) > 0
    assert world.counters.decisions.labels("Reclaimed")._value.get() >= 1
    await world.change("own", cancel=True)
    low = await world.phase("low", Phase.RUNNING)
    (ended,) = low.status.attempts
    assert ended.intent is Intent.PREEMPT and "preempted for job own" in ended.message


ENDED_S = 1_000.0
T0 = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("case", "category", "recorded", "live", "held_s", "lost_s"),
    [
        ("nothing was saved", Category.INTERRUPTED, None, None, 0, 1_000),
        ("saved as it was stopped", Category.INTERRUPTED, 990, 600, 0, 10),
        ("killed: what it had reported counts", Category.INTERRUPTED, None, 600, 0, 400),
        ("saved in a former attempt only", Category.INTERRUPTED, -50, None, 0, 1_000),
        ("it was done", None, None, None, 0, 0),
        ("it had failed by itself and was held", Category.USER_ERROR, 100, None, 500, 0),
    ],
)
def test_what_a_preemption_lost_is_the_work_since_the_last_checkpoint(
    case: str,
    category: Category | None,
    recorded: float | None,
    live: float | None,
    held_s: float,
    lost_s: float,
) -> None:
    def progress(saved_s: float | None) -> Progress | None:
        at = None if saved_s is None else T0.timestamp() + saved_s
        return None if at is None else Progress(at=at, checkpoint=Checkpoint(step=1, at=at))

    placement = tuple(Placed(worker=worker, node="n") for worker in range(3))
    stopping = TrainingJobStatus(
        phase=Phase.STOPPING,
        reason=Code.RECLAIMED,
        intent=Intent.PREEMPT,
        placement=placement,
        progress=progress(live),
    )
    spec: Any = {"trainer": {"command": ["x"]}, "queue": "q", "gpusPerWorker": 2, "workers": 3}
    job = TrainingJob(metadata=ObjectMeta(name="a", namespace="p"), spec=spec, status=stopping)
    over = AttemptEnd(
        number=1,
        started_at=T0,
        ended_at=T0 + timedelta(seconds=ENDED_S),
        intent=Intent.PREEMPT,
        category=category,
        held_s=held_s,
        progress=progress(recorded),
    )
    counters = Counters()
    new = stopping.model_copy(update={"phase": Phase.QUEUED, "placement": (), "attempts": (over,)})
    counters.written(job, new, over.ended_at)
    counted = {
        (sample.name, sample.labels["reason"]): sample.value
        for family in counters.collect()
        for sample in family.samples
        if sample.name.startswith("stoker_preempted") and sample.name.endswith("_total")
    }
    expected = {"gpus": 6.0, "gpu_seconds_lost": lost_s * 6.0} if category else {}
    assert counted == {(f"stoker_preempted_{name}_total", "Reclaimed"): some for name, some in expected.items()}, case


async def test_one_preemption_is_carried_through_before_the_last_is_begun(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner reclaims forty GPUs at once from a store that takes one write after the other."""
    count = 40
    world.kubelet.script = lambda pod: None
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="lent"), spec=QueueSpec()))
    owns = QueueSpec(guarantee=QueueResources(gpus=count))
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="owner"), spec=owns))
    await world.node(gpus=count)
    for number in range(count):
        await world.submit(f"low-{number}", queue="lent", gpus_per_worker=1)
    await world.until(lambda: all(job.status.phase is Phase.RUNNING for job in world.jobs.values()), "the borrowers")
    steps: list[tuple[str, str]] = []
    patch_status, turn = world.store.patch_status, asyncio.Lock()

    async def noted(kind: Any, key: Key, patch: Any, **options: Any) -> Any:
        if kind is JOBS:
            steps.append((key.name, "claim" if patch.get("claim") else patch["phase"]))
        async with turn:
            await asyncio.sleep(0.005)  # what it costs
            return await patch_status(kind, key, patch, **options)

    monkeypatch.setattr(world.store, "patch_status", noted)
    async with world.operator.feed._lock:
        for number in range(count):
            await world.submit(f"own-{number}", queue="owner", gpus_per_worker=1)
        await world.until(lambda: len(world.jobs) == 2 * count, "the watch")
    owners = lambda: [job for job in world.jobs.values() if job.metadata.name.startswith("own")]  # noqa: E731
    await world.until(lambda: all(job.status.phase is Phase.RUNNING for job in owners()), "the owner's jobs")
    claims = [at for at, (_, what) in enumerate(steps) if what == "claim"]
    running = [at for at, (name, what) in enumerate(steps) if name.startswith("own") and what == "Running"]
    assert len(claims) == count and running[0] < claims[-1], "the first is done before the last is begun"
    own = [what for name, what in steps if name == "own-0"]
    assert own == ["claim", "Starting", "Running"], "three writes each, the reason why it waits among them"


async def test_a_cancelled_claimant_keeps_no_room_and_its_victims_go_on(world: World) -> None:
    await crowded(world)
    world.kubelet.stops = False
    await world.submit("high", queue="q", gpus_per_worker=2, priority=5)
    await world.until(lambda: world.job("high").status.claim, "the claim")
    assert world.job("high").status.reason is Code.PREEMPTING
    await world.change("high", cancel=True)
    job = await world.phase("high", Phase.CANCELLED)
    assert job.status.claim is None
    world.kubelet.stops = True
    for name in ("low-a", "low-b"):
        await world.phase(name, Phase.RUNNING)


async def test_a_leader_killed_between_any_two_writes_is_followed_by_one_that_comes_to_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of the operator's from the claim on is its last: the next one finishes what the objects say."""
    await crowded(world)
    dying = Dying(world, monkeypatch)
    await world.submit("high", queue="q", gpus_per_worker=1, priority=5)
    claims = await dying.each_time_until(lambda: world.phase("high", Phase.SUCCEEDED, timeout_s=60), "high")
    assert len(claims) == 1, "the same claim, under any leader"
    high = await world.phase("high", Phase.SUCCEEDED)
    assert high.status.attempt == 1
    preempted = [name for name in ("low-a", "low-b") if world.job(name).status.attempts]
    assert len(preempted) == 1, "the same victim, under any leader"
    assert any("Queued None True" in step for step in dying.seen) and any("Preempt" in step for step in dying.seen)
    assert world.kubelet.most_gpus == 2
