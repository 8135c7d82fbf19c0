"""Jobs that may not run as they stand: said once, never half run, let go as soon as an administrator says so."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.controller.admission import Admission
from stoker.spec.event import EVENTS
from stoker.spec.job import JOBS, Phase, TrainingJob
from stoker.spec.meta import Condition, Key, ObjectMeta
from stoker.spec.queue import QUEUES, Queue, QueueSpec
from stoker.spec.reasons import Code
from stoker.spec.runtime import RUNTIMES, TrainingRuntime, TrainingRuntimeSpec

from .conftest import World


async def queue(world: World, name: str = "q", **spec: Any) -> None:
    await put(world, QUEUES, Queue(metadata=ObjectMeta(name=name), spec=QueueSpec(**spec)))


async def runtime(world: World, name: str, **spec: Any) -> None:
    await put(world, RUNTIMES, TrainingRuntime(metadata=ObjectMeta(name=name), spec=TrainingRuntimeSpec(**spec)))


async def put(world: World, kind: Any, wanted: Any) -> None:
    """Created, or its spec replaced."""
    there = [obj for obj in (await world.store.list(kind)).items if obj.key == wanted.key]
    if there:
        # Whatever version: the operator may write its status meanwhile.
        meta = there[0].metadata.model_copy(update={"resource_version": ""})
        await world.store.update(kind, there[0].model_copy(update={"metadata": meta, "spec": wanted.spec}))
    else:
        await world.store.create(kind, wanted)


def reported(job: TrainingJob) -> Condition | None:
    return next((found for found in job.status.conditions if found.type == "Accepted"), None)


async def barred(world: World, name: str, code: Code) -> TrainingJob:
    await world.until(lambda: (c := reported(world.job(name))) is not None and c.reason == code, f"{name} to be {code}")
    job = world.job(name)
    assert (job.status.phase, job.status.reason, job.status.attempt) == (Phase.QUEUED, code, 0)
    return job


async def events(world: World, name: str) -> list[str]:
    page = await world.store.list(EVENTS, namespace="p")
    found = sorted(page.items, key=lambda event: int(event.metadata.resource_version))
    return [event.reason for event in found if event.involved_object.name == name]


async def test_a_queue_that_is_tightened_bars_who_waits_and_lets_go_on_who_runs(world: World) -> None:
    await world.node(gpus=1)
    await queue(world)
    world.kubelet.script = lambda _pod: None
    await world.submit("runs", queue="q", gpus_per_worker=1)
    await world.phase("runs", Phase.RUNNING)
    await world.submit("waits", queue="q", gpus_per_worker=1)
    await world.until(lambda: world.job("waits").status.reason is Code.NO_CAPACITY, "the reason")
    await queue(world, projects=("others",))
    first = await barred(world, "waits", Code.PROJECT_NOT_ALLOWED)
    assert first.status.message == "queue 'q' is not open to project 'p'" == reported(first).message  # type: ignore[union-attr]
    assert world.job("runs").status.phase is Phase.RUNNING

    # Whatever else is changed: written once, no one writes again.
    await queue(world, projects=("others", "more"))
    await world.submit("other", queue="q")
    await barred(world, "other", Code.PROJECT_NOT_ALLOWED)
    assert world.job("waits").metadata.resource_version == first.metadata.resource_version
    assert (await events(world, "waits")).count("NotAccepted") == 1

    await queue(world, projects=("p",))
    await world.until(lambda: reported(world.job("waits")) is None, "the condition gone")
    await world.change("runs", cancel=True)
    await world.phase("runs", Phase.CANCELLED)
    await world.phase("waits", Phase.RUNNING)
    assert world.job("waits").status.attempt == 1


async def test_a_priority_above_the_highest_waits_until_one_of_them_moves(world: World) -> None:
    await world.node(gpus=1)
    await queue(world, highest_priority=5)
    for name in ("lowered", "raised"):
        await world.submit(name, queue="q", priority=9)
        await barred(world, name, Code.PRIORITY_TOO_HIGH)
    await world.change("lowered", priority=5)
    await world.phase("lowered", Phase.SUCCEEDED)
    await queue(world, highest_priority=9)
    done = await world.phase("raised", Phase.SUCCEEDED)
    assert reported(done) is None
    assert not world.kubelet.ran.count("raised-1-0") > 1


async def test_runtimes_bar_and_free_by_name_and_as_the_projects_default(world: World) -> None:
    await world.node(gpus=1)
    await runtime(world, "closed", projects=("others",))
    await world.submit("named", runtime="closed")
    await world.submit("missing", runtime="later")
    for name in ("named", "missing"):
        await barred(world, name, Code.RUNTIME_MISSING)
    await runtime(world, "strict", projects=("others",), default_for=("p",))
    await world.submit("unnamed")
    job = await barred(world, "unnamed", Code.RUNTIME_MISSING)
    assert job.status.message == "runtime 'strict' is not open to project 'p'"
    await runtime(world, "strict", projects=("others",))  # `default` is theirs again, which is built in
    await runtime(world, "closed")
    await runtime(world, "later")
    for name in ("named", "missing", "unnamed"):
        assert reported(await world.phase(name, Phase.SUCCEEDED)) is None


async def test_data_that_the_runtime_does_not_offer_is_waited_for(world: World) -> None:
    await world.node(gpus=1)
    await world.submit("built-in", data=[{"name": "d", "path": "sets"}])
    await runtime(world, "a", data=[{"name": "other", "source": {}}])
    await world.submit("named", runtime="a", data=[{"name": "d", "path": "sets"}])
    job = await barred(world, "built-in", Code.DATA_MISSING)
    assert job.status.message == "runtime 'default' offers no data 'sets'"
    await barred(world, "named", Code.DATA_MISSING)
    for name in ("default", "a"):
        await runtime(world, name, data=[{"name": "sets", "source": {"hostPath": {"path": "/srv"}}}])
    for name in ("built-in", "named"):
        assert reported(await world.phase(name, Phase.SUCCEEDED)) is None


CHANGES = [
    ("its own queue's projects", queue, {"name": "q", "projects": ("x",)}, {"named", "unnamed", "strange"}),
    ("its own queue's highest priority", queue, {"name": "q", "highest_priority": 1}, {"named", "unnamed", "strange"}),
    ("a queue's limit", queue, {"name": "q", "limit": {"gpus": 1}}, set()),
    ("another queue", queue, {"name": "r", "projects": ("x",)}, set()),
    ("the runtime it names", runtime, {"name": "a", "projects": ("x",)}, {"named"}),
    ("what the runtime gives", runtime, {"name": "a", "image": "x"}, set()),
    ("`default`", runtime, {"name": "default", "projects": ("x",)}, {"unnamed", "strange"}),
    ("a claim of its project", runtime, {"name": "b", "default_for": ("p",)}, {"unnamed"}),
]


@pytest.mark.parametrize(("change", "fields", "expect"), [one[1:] for one in CHANGES], ids=[one[0] for one in CHANGES])
async def test_only_what_it_concerns_is_looked_at_again(
    world: World, change: Any, fields: dict[str, Any], expect: set[str]
) -> None:
    await world.stop()
    for make, name in ((queue, "q"), (queue, "r"), (runtime, "a"), (runtime, "b"), (runtime, "default")):
        await make(world, name)
    for project, name, named in (("p", "named", "a"), ("p", "unnamed", None), ("s", "strange", None)):
        spec = {"queue": "q", "runtime": named, "trainer": {"command": ["x"]}}
        job = TrainingJob(metadata=ObjectMeta(name=name, namespace=project), spec=spec)  # type: ignore[arg-type]
        await world.store.create(JOBS, job)
    await world.until(lambda: len(world.jobs) == 3 and len(world.runtimes) == 3, "the caches")
    admission, seen = Admission(world.jobs, world.queues, world.nodes, world.runtimes), set[Key]()
    stops = admission.subscribe(seen.add)
    seen.clear()
    await change(world, **fields)
    await queue(world, "end")  # whatever came before is through then
    await runtime(world, "end")
    await world.until(lambda: all(c.get(Key("", "end")) for c in (world.queues, world.runtimes)), "the last change")
    for stop in stops:
        stop()
    assert {key.name for key in seen} == expect
