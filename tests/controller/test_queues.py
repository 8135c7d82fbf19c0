"""What a queue says of its jobs, and that one in use stays until the last of them has ended."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stoker.controller import queues
from stoker.spec.job import Phase
from stoker.spec.meta import Key
from stoker.spec.names import FINALIZER_IN_USE
from stoker.spec.queue import QUEUES, Queue, QueueAmount, QueueResources, QueueStatus
from stoker.spec.reasons import Code
from stoker.why.explain import explain

from .conftest import World
from .test_admission import barred, queue


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "STATUS_EVERY_S", 0.05)


def there(world: World, name: str) -> Queue | None:
    return world.queues.get(Key("", name))


async def shows(world: World, name: str, **wanted: QueueAmount) -> Queue:
    def right() -> bool:
        found = there(world, name)
        return found is not None and all(getattr(found.status, what) == amount for what, amount in wanted.items())

    await world.until(right, f"{name} to show {wanted}: {there(world, name)}")
    found = there(world, name)
    assert found is not None
    return found


async def test_a_queue_shows_what_its_jobs_hold_and_ask_for(often: None, world: World) -> None:
    nothing = QueueAmount()
    idle = await shows(world, "default", used=nothing, running=nothing, pending=nothing)
    await world.until(lambda: there(world, "default").status.conditions, "its first status")  # type: ignore[union-attr]
    await world.node(gpus=4)
    world.kubelet.script = lambda pod: None
    ask = {"gpus_per_worker": 2, "workers": 2, "cpu": "1500m", "memory": "1536Mi"}
    await world.submit("runs", **ask)
    await world.submit("waits", **ask)
    each = QueueAmount(jobs=1, gpus=4, cpu="3", memory="3Gi")
    busy = await shows(world, "default", used=each, running=each, pending=each)
    assert [(c.type, c.status, c.reason) for c in busy.status.conditions] == [("Active", "True", "Open")]
    assert busy.metadata.generation == idle.metadata.generation
    for name in ("runs", "waits"):
        await world.change(name, cancel=True)
    await shows(world, "default", used=nothing, running=nothing, pending=nothing)


async def test_a_queue_without_jobs_carries_no_finalizer_that_an_uninstalled_operator_would_leave(
    often: None, world: World
) -> None:
    await world.node(gpus=1)
    world.kubelet.script = lambda pod: None
    await world.submit("runs", gpus_per_worker=1)

    def held() -> bool:
        return FINALIZER_IN_USE in there(world, "default").metadata.finalizers  # type: ignore[union-attr]

    await world.until(held, "its finalizer")
    await world.change("runs", cancel=True)
    await world.until(lambda: not held(), "its release")


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "STATUS_EVERY_S", 3600.0)


async def test_a_status_is_written_at_most_once_in_its_interval(once: None, world: World) -> None:
    statuses: list[QueueStatus] = []
    world.queues.subscribe(lambda change: statuses.append(change.new.status) if change.new else None)
    await world.node(gpus=1)
    for number in range(10):
        await world.submit(f"j{number}", gpus_per_worker=1)
    for number in range(10):
        await world.phase(f"j{number}", Phase.SUCCEEDED)
    assert len({repr(status) for status in statuses}) <= 2, "the model's default and the first: 30 changes came after"


async def test_a_queue_in_use_goes_with_its_last_job_and_takes_no_new_ones(often: None, world: World) -> None:
    await world.node(gpus=1)
    await queue(world, name="idle")
    await world.store.delete(QUEUES, Key("", "idle"))
    await world.until(lambda: there(world, "idle") is None, "one that no job used goes at once")

    await queue(world)
    world.kubelet.script = lambda pod: None
    await world.submit("runs", queue="q", gpus_per_worker=1)
    await world.submit("waits", queue="q", gpus_per_worker=1)
    await world.phase("runs", Phase.RUNNING)
    await world.until(lambda: FINALIZER_IN_USE in there(world, "q").metadata.finalizers, "the finalizer")  # type: ignore[union-attr]
    await world.store.delete(QUEUES, Key("", "q"))
    await world.until(
        lambda: [c.reason for c in there(world, "q").status.conditions] == ["BeingDeleted"],  # type: ignore[union-attr]
        "the condition",
    )
    says = there(world, "q").status.conditions[0].message  # type: ignore[union-attr]
    assert says == "2 jobs that have not ended use it: it takes no new jobs, and goes with the last of them"

    # Jobs have whole seconds as their time of creation; one of the second of the deletion may be older than that.
    deleted_at = there(world, "q").metadata.deletion_timestamp  # type: ignore[union-attr]
    clock = world.operator.scheduling._clock
    await world.until(lambda: (clock.now() - deleted_at).total_seconds() > 1, "the next second")  # type: ignore[operator]
    await world.submit("late", queue="q", gpus_per_worker=1)
    late = await barred(world, "late", Code.QUEUE_MISSING)
    assert late.status.message == "queue 'q' is being deleted and takes no new jobs"

    await world.change("runs", cancel=True)
    await world.phase("waits", Phase.RUNNING)  # it was there before, and has its turn
    await world.stop()
    world.start()  # what an operator knows of queues it reads from the store
    await world.change("waits", cancel=True)
    await world.until(lambda: there(world, "q") is None, "the queue gone with the last job that it took")
    await world.until(lambda: world.job("late").status.message == "there is no queue 'q'", "the late one's reason")


async def test_a_queue_shows_what_those_below_hold_and_a_parent_that_does_not_count(often: None, world: World) -> None:
    await world.node(gpus=4)
    world.kubelet.script = lambda pod: None
    await queue(world, "low", parent="top")
    await world.submit("runs", queue="low", gpus_per_worker=2, cpu="1", memory="1Gi")
    each = QueueAmount(jobs=1, gpus=2, cpu="1", memory="1Gi")
    lost = await shows(world, "low", used=each, running=each)
    said = {c.type: (c.status, c.message) for c in lost.status.conditions}
    alone = "until that is mended it is a top-level queue without a guarantee"
    assert said["Valid"] == ("False", f"its parent 'top' does not exist; {alone}")
    key = world.job("runs").key
    levels = await world.operator.feed.on_thread(lambda state: explain(state, key, datetime.now(UTC)).queues)
    assert [(level.name, level.problem) for level in levels] == [("low", said["Valid"][1])]
    await queue(world, "top")
    await shows(world, "top", used=each, running=each)
    await world.until(lambda: valid(world, "low") == ("True", ""), "its parent to count")
    await queue(world, "top", parent="low")
    for name, chain in (("low", "low → top → low"), ("top", "low → top → low")):
        said_now = ("False", f"its parents form a cycle: {chain}; {alone}")
        await world.until(lambda name=name, said=said_now: valid(world, name) == said, f"{name} to name the cycle")
    await shows(world, "top", used=QueueAmount())


async def test_a_queue_shows_gpus_by_type_and_a_type_that_no_gpu_has(often: None, world: World) -> None:
    await world.node(gpus=4, model="NVIDIA H100 80GB HBM3")
    world.kubelet.script = lambda pod: None
    await queue(world, "q", limit=QueueResources(gpu_types={"h100": 2, "h1000": 1}))
    await world.submit("runs", queue="q", gpus_per_worker=2, cpu="1", memory="1Gi")
    await world.submit("waits", queue="q", gpus_per_worker=1, cpu="1", memory="1Gi")
    each = QueueAmount(jobs=1, gpus=2, cpu="1", memory="1Gi", gpu_types={"h100": 2})
    await shows(world, "q", used=each, running=each, pending=QueueAmount(jobs=1, gpus=1, cpu="1", memory="1Gi"))
    assert world.job("runs").status.gpu_type == "h100"
    state, message = valid(world, "q") or ("", "")
    assert state == "False" and message.startswith("no GPU can be of type h1000; correct the name, or add a model")


def valid(world: World, name: str) -> tuple[str, str] | None:
    found = there(world, name)
    conditions = found.status.conditions if found is not None else ()
    return next(((c.status, c.message) for c in conditions if c.type == "Valid"), None)
