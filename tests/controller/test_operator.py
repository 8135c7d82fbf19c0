"""The operator end to end on the embedded store: what it promises about jobs, gangs and crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from stoker.controller import unreadable_jobs
from stoker.controller.recorder import Recorder
from stoker.controller.render import owned_by
from stoker.controller.renderers import CannotRender, LocalRenderer
from stoker.controller.scheduling import Scheduling
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import JOBS, Phase, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.outcome import Category
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.queue import QUEUES, Queue, QueueResources, QueueSpec
from stoker.spec.reasons import Code
from stoker.store.cache import WatchCache
from stoker.store.clock import ManualClock, SystemClock
from stoker.store.port import Invalid, Unreadable

from .test_metrics import Page

if TYPE_CHECKING:
    from .conftest import World


@asynccontextmanager
async def running(cache: WatchCache[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(cache.run())
    try:
        yield
    finally:
        task.cancel()


async def test_a_job_goes_from_submitted_to_succeeded_and_holds_nothing_then(world: World) -> None:
    await world.node(gpus=1)
    await world.submit("a", gpus_per_worker=1)
    job = await world.phase("a", Phase.SUCCEEDED)
    assert (job.status.attempt, job.status.placement) == (1, ())
    assert [a.category for a in job.status.attempts] == [None]
    await world.until(
        lambda: all(FINALIZER_OUTCOME not in p.metadata.finalizers for p in world.pods.values()), "finalizers gone"
    )


async def test_gpus_are_never_in_two_hands_and_every_job_gets_its_turn(world: World) -> None:
    await world.node(gpus=3)
    for number in range(30):
        await world.submit(f"j{number}", gpus_per_worker=1, workers=1 + number % 3)
    for number in range(30):
        await world.phase(f"j{number}", Phase.SUCCEEDED)
    assert world.kubelet.most_gpus <= 3
    assert len(world.kubelet.ran) == len(set(world.kubelet.ran)) == 60


async def test_a_gang_waits_until_all_of_it_fits(world: World) -> None:
    await world.node(gpus=2)
    world.kubelet.script = lambda pod: None
    await world.submit("one", gpus_per_worker=1)
    await world.phase("one", Phase.RUNNING)
    await world.submit("gang", gpus_per_worker=1, workers=2)
    await world.until(lambda: world.job("gang").status.reason is Code.NO_CAPACITY, "the reason")
    assert not [name for name in world.kubelet.ran if name.startswith("gang")]
    await world.change("one", cancel=True)
    await world.phase("gang", Phase.RUNNING)


async def test_one_failed_worker_ends_the_gang(world: World) -> None:
    await world.node(gpus=2)
    world.kubelet.script = lambda pod: 1 if pod.metadata.name.endswith("-1") else None
    await world.submit("gang", gpus_per_worker=1, workers=2)
    job = await world.phase("gang", Phase.FAILED)
    assert job.status.attempts[0].category is Category.USER_ERROR
    assert job.status.message.startswith("worker 1:")
    assert world.kubelet.held_gpus == 0


async def test_suspend_resume_cancel(world: World) -> None:
    await world.node(gpus=1)
    world.kubelet.script = lambda pod: None
    await world.submit("a", gpus_per_worker=1)
    await world.phase("a", Phase.RUNNING)
    await world.change("a", suspend=True)
    await world.phase("a", Phase.SUSPENDED)
    assert world.kubelet.held_gpus == 0
    await world.change("a", suspend=False)
    job = await world.phase("a", Phase.RUNNING)
    assert job.status.attempt == 2
    await world.change("a", cancel=True)
    job = await world.phase("a", Phase.CANCELLED)
    assert [a.intent for a in job.status.attempts] == ["Suspend", "Cancel"]


async def test_a_job_deleted_in_mid_run_leaves_no_pod(world: World) -> None:
    from stoker.spec.job import JOBS

    await world.node(gpus=1)
    world.kubelet.script = lambda pod: None
    job = await world.submit("a", gpus_per_worker=1)
    await world.phase("a", Phase.RUNNING)
    await world.store.delete(JOBS, job.key)
    await world.until(lambda: len(world.pods) == 0, "the pods gone")
    assert world.kubelet.held_gpus == 0


async def test_a_queues_time_for_ended_jobs_applies_to_those_that_have_ended_already(world: World) -> None:
    await world.node(gpus=1)
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="short")))
    for name, queue, ttl in (("a", "short", None), ("own", "short", "1h"), ("other", "default", None)):
        await world.submit(name, queue=queue, ttl_after_finished=ttl)
        await world.phase(name, Phase.SUCCEEDED)
    queue = await world.store.get(QUEUES, Key("", "short"))
    spec = queue.spec.model_copy(update={"ttl_after_finished": "1ms"})
    await world.store.update(QUEUES, queue.model_copy(update={"spec": spec}))
    await world.until(lambda: {job.metadata.name for job in world.jobs.values()} == {"own", "other"}, "only a gone")


@pytest.mark.parametrize("name", ["bad-poison", "bad-1-1", "bad-2-0", "bad-1-00", "bad-1-x"])
async def test_a_pod_that_its_job_never_made_is_removed_and_changes_nothing(world: World, name: str) -> None:
    await world.node(gpus=2)
    world.kubelet.script = lambda pod: None
    job = await world.submit("bad", gpus_per_worker=1)
    await world.phase("bad", Phase.RUNNING)
    forged = ObjectMeta(
        name=name,
        namespace="p",
        labels={f"stoker.dev/{name}": "0" for name in ("attempt", "worker", "job-uid")},
        finalizers=(FINALIZER_OUTCOME,),
        owner_references=(owned_by(job),),
    )
    await world.store.create(PODS, Pod(metadata=forged, spec=PodSpec(containers=(Container(),))))
    await world.until(lambda: Key("p", name) not in [pod.key for pod in world.pods.values()], "it is gone")
    await world.submit("good", gpus_per_worker=1)
    await world.phase("good", Phase.RUNNING)
    assert (world.job("bad").status.attempt, world.job("bad").status.phase) == (1, Phase.RUNNING)
    assert world.operator.reconcile_errors == 0


async def test_a_queue_made_later_lets_its_jobs_go(world: World) -> None:
    await world.node(gpus=1)
    await world.submit("a", queue="later")
    await world.until(lambda: world.job("a").status.reason is Code.QUEUE_MISSING, "the reason")
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="later"), spec=QueueSpec()))
    await world.phase("a", Phase.SUCCEEDED)


@pytest.mark.parametrize(
    ("finalizers", "gpus"),
    [((), 1), (("example.com/kept",), 1), ((), 2)],
    ids=["of its node", "kept by its owner's finalizer", "of its queue's limit"],
)
async def test_a_deleted_jobs_pod_holds_its_gpus_until_it_has_ended(
    world: World, finalizers: tuple[str, ...], gpus: int
) -> None:
    """Its process may save for minutes; the node, or the queue, has nothing to give to the next one meanwhile."""
    await world.node(gpus=gpus)
    spec = QueueSpec(limit=QueueResources(gpus=1) if gpus > 1 else QueueResources())
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="small"), spec=spec))
    world.kubelet.script = lambda pod: None if pod.metadata.name.startswith("held") else 0
    world.kubelet.stops = False
    held = await world.submit("held", gpus_per_worker=1, queue="small")
    job = await world.phase("held", Phase.RUNNING)
    any_version = job.metadata.model_copy(update={"finalizers": finalizers, "resource_version": ""})
    await world.store.update(JOBS, job.model_copy(update={"metadata": any_version}))
    await world.store.delete(JOBS, held.key)
    gone = lambda: (there := world.jobs.get(held.key)) is None or there.metadata.deletion_timestamp  # noqa: E731
    await world.until(gone, "the job is deleted")
    await world.submit("next", gpus_per_worker=1, queue="small")
    await world.until(lambda: world.job("next").status.message, "placed, or why not")
    assert world.job("next").status.phase is Phase.QUEUED, world.job("next").status
    world.kubelet.stops = True
    assert (await world.phase("next", Phase.SUCCEEDED)).status.attempt == 1
    assert world.kubelet.most_gpus == 1
    used = lambda: world.queues.get(Key("", "small")).status.used.jobs  # type: ignore[union-attr]  # noqa: E731
    await world.until(lambda: used() == 0, "its queue counts nothing of it")
    assert Page(world).value("stoker_queue_gpus", queue="small", parent="", state="allocated") == 0


async def test_a_new_scheduler_waits_until_its_cache_shows_what_the_last_one_placed(world: World) -> None:
    await world.node(gpus=1)
    await world.stop()
    held = await world.submit("held", gpus_per_worker=1)
    await world.submit("next", gpus_per_worker=1, priority=1)
    lagging = WatchCache(world.store, JOBS, clock=SystemClock())
    async with running(lagging):
        await lagging.synced()
    placed = {"phase": "Starting", "attempt": 1, "placement": [{"worker": 0, "node": "n1"}]}
    await world.store.patch_status(JOBS, held.key, placed, manager="operator")

    clock = SystemClock()
    feed = SchedulerFeed(lagging, world.queues, world.nodes)
    loop = Scheduling(world.store, lagging, feed, Recorder(world.store, clock), clock)
    deciding = asyncio.create_task(loop.run())
    try:
        done, _ = await asyncio.wait({deciding}, timeout=0.2)
        assert not done and loop.passes == 0
        async with running(lagging):
            await world.until(lambda: loop.passes, "the first pass")
            assert (await world.store.get(JOBS, Key("p", "next"))).status.placement == ()
    finally:
        deciding.cancel()


async def test_events_show_what_happened(world: World) -> None:
    from stoker.spec.event import EVENTS

    await world.node(gpus=1)
    await world.submit("a")
    await world.phase("a", Phase.SUCCEEDED)

    async def reasons() -> list[str]:
        page = await world.store.list(EVENTS, namespace="p")
        return [e.reason for e in sorted(page.items, key=lambda e: int(e.metadata.resource_version))]

    async with asyncio.timeout(5):
        while "Succeeded" not in await reasons():
            await asyncio.sleep(0.01)
    assert [r for r in await reasons() if r != "Running"] == ["Placed", "Succeeded"]


@pytest.mark.parametrize("seed", range(3))
async def test_taken_away_at_any_moment_the_next_operator_goes_on(world: World, seed: int) -> None:
    """Crash-only: cancelled between any two of its calls, again and again, nothing is lost or run twice."""
    rng = random.Random(seed)
    await world.node(gpus=3)
    world.kubelet.script = lambda pod: rng.choice((0, 0, 0, 1))
    for number in range(20):
        await world.submit(f"j{number}", gpus_per_worker=1, workers=1 + number % 2)
    for _ in range(15):
        await asyncio.sleep(rng.uniform(0, 0.02))
        await world.stop()
        world.start()
    for number in range(20):
        await world.phase(f"j{number}", Phase.SUCCEEDED, Phase.FAILED)
    assert len(world.kubelet.ran) == len(set(world.kubelet.ran)), "a pod ran twice"
    assert all(job.status.attempt == 1 for job in world.jobs.values())
    assert world.kubelet.most_gpus <= 3 and world.kubelet.held_gpus == 0


async def test_a_job_begins_with_another_that_has_ended(world: World) -> None:
    await world.node(gpus=2)
    world.kubelet.script = lambda pod: None if pod.metadata.name.startswith("base") else 0
    await world.submit("base", gpus_per_worker=1)
    base = await world.phase("base", Phase.RUNNING)
    late = {"trainer": {"recipe": "image-classification", "initFrom": {"job": "base"}}}
    await world.submit("next", **late)
    await world.until(lambda: "has not ended" in world.job("next").status.message, "why it does not start")
    assert "next-1-0" not in world.kubelet.ran
    await world.change("base", cancel=True)
    await world.phase("base", Phase.CANCELLED)
    await world.phase("next", Phase.SUCCEEDED)
    (pod,) = [pod for pod in world.pods.values() if pod.metadata.name.startswith("next-")]
    (begin,) = [one.value for one in pod.spec.containers[0].env if one.name == "STOKER_INIT_FROM"]
    assert begin == f"../{base.uid}/output/weights.pt"


async def test_a_later_attempt_does_not_need_what_the_first_began_with(world: World) -> None:
    job = TrainingJob.model_validate(
        {
            "metadata": {"name": "next", "namespace": "default", "uid": "u"},
            "spec": {"trainer": {"command": ["x"]}, "checkpoint": {"from": {"job": "none"}}},
            "status": {"attempt": 1, "placement": [{"worker": 0, "node": "n"}]},
        }
    )
    renderer = LocalRenderer(world.jobs)
    with pytest.raises(CannotRender, match="there is no job none in project default"):
        renderer.pod(job, 0)
    later = job.model_copy(update={"status": job.status.model_copy(update={"attempt": 2})})
    (begin,) = [one.value for one in renderer.pod(later, 0).spec.containers[0].env if "FROM" in one.name]
    assert begin == "../gone/checkpoints"


async def test_unreadable_jobs_that_come_and_go_fill_no_memory_and_one_too_large_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []

    async def patch(kind: Any, key: Key, *_args: Any, **_options: Any) -> None:
        written.append(key.name)
        if key.name == "large":
            raise Invalid(["the object is larger than the store takes"])

    monkeypatch.setattr(unreadable_jobs, "_REMEMBERED", 2)
    clock, recorded = ManualClock(), SimpleNamespace(record_about=lambda *_: None)
    jobs = unreadable_jobs.UnreadableJobs(SimpleNamespace(patch_unread=patch), clock)
    task = asyncio.create_task(jobs.run(recorded))  # type: ignore[arg-type]
    names = ["large", "a", "b", "c"]
    for name in names:
        jobs.found(Unreadable(JOBS.kind, Key("p", name), name, "1", ("spec: nonsense",)))
    while len(written) < len(names):
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
        clock.advance(60)
    assert written == names and jobs.reported == 2
    task.cancel()
