"""What a node's health means for what may be placed there: the GPU alone where it is known, else its node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.node_health import joined
from stoker.spec.gpu_health import (
    HEALTH,
    Cordon,
    GpuHealth,
    GpuHolder,
    GPUNodeHealth,
    GPUNodeHealthSpec,
    GPUNodeHealthStatus,
)
from stoker.spec.job import JOBS, Phase
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import BURN_IN
from stoker.spec.node import Gpu, GPUNode, GPUNodeStatus
from stoker.spec.outcome import Intent
from stoker.spec.reasons import Code
from stoker.why.explain import explain

from .conftest import World

T0 = datetime(2026, 11, 24, 10, 0, tzinfo=UTC)
SICK = "sick: XID 79 since 2026-11-24 10:00Z"


def health(
    gpus: int, sick: dict[int, str], *, cordons: tuple[str, ...] = (), watts: Any = 700, name: str = "n1"
) -> GPUNodeHealth:
    """`sick`: number of a GPU → its cause."""
    return GPUNodeHealth.model_validate(
        {
            "metadata": {"name": name},
            "spec": {"cordons": [{"gpu": gpu} for gpu in cordons]},
            "status": {
                "gpus": [
                    {
                        "uuid": f"{name}-{i}",
                        "index": i,
                        "powerLimitWatts": watts,
                        "causes": [{"code": sick[i], "since": T0, "message": "XID 79"}] if i in sick else [],
                    }
                    for i in range(gpus)
                ]
            },
        }
    )


def node(*unavailable: str, uuids: bool = True, part: bool = False) -> GPUNode:
    gpus = tuple(
        Gpu(uuid=f"n1-{i}" if uuids else "", index=i, model="H200", memory_bytes=1, unavailable=why, part=part)
        for i, why in enumerate(unavailable)
    )
    return GPUNode(metadata=ObjectMeta(name="n1"), status=GPUNodeStatus(ready=True, gpus=gpus))


def why(seen: GPUNode) -> list[str]:
    return [gpu.unavailable for gpu in seen.status.gpus]


def test_where_gpus_are_known_by_uuid_the_sick_one_is_left_out() -> None:
    assert why(joined(node("", "", ""), health(3, {1: "OffTheBus"}))) == ["", SICK, ""]
    assert why(joined(node("", "in use", ""), health(3, {}, cordons=("n1-1", "n1-2")))) == ["", "in use", "cordoned"]
    assert joined(node(""), None) == node("")


@pytest.mark.parametrize(
    ("plugin", "sick", "part", "left_out"),
    [
        (["", "", ""], {1: "OffTheBus"}, False, True),
        (["", "", "unhealthy"], {1: "OffTheBus"}, False, False),
        (["", ""], {2: "OffTheBus"}, False, False),
        (["", "", "unhealthy"], {0: "OffTheBus", 1: "ContainedError"}, False, True),
        (["", "", "unhealthy"], {1: "Throttled"}, False, True),
        (["", "", "unhealthy"], {1: "OffTheBus"}, True, True),
        (["", "", "unhealthy"], {}, False, False),
    ],
)
def test_where_the_device_plugin_picks_the_whole_node_is_unless_it_leaves_them_out_itself(
    plugin: list[str], sick: dict[int, str], part: bool, left_out: bool
) -> None:
    seen = why(joined(node(*plugin, uuids=False, part=part), health(3, sick)))
    assert all(seen) if left_out else seen == plugin
    if left_out and len(sick) == 1:
        assert seen[0] == f"GPU {next(iter(sick))} of its node is {SICK}"
    elif left_out:
        assert seen[0] == f"2 GPUs of its node are out of use, the first (GPU 0) is {SICK}"


def test_a_cordoned_gpu_takes_its_node_along_where_which_one_it_is_is_not_known() -> None:
    seen = why(joined(node("", "", "unhealthy", uuids=False), health(3, {}, cordons=("n1-2",))))
    assert seen[0] == "GPU 2 of its node is cordoned"


def test_what_a_burn_in_found_is_reported_and_the_plug_in_may_still_take_the_gpu_away() -> None:
    known = health(2, {1: "OffTheBus"})
    closed = Cordon(gpu="n1-1", reason="burn-in failed: exit 3", by=BURN_IN)
    known = known.model_copy(update={"spec": GPUNodeHealthSpec(cordons=(closed,))})
    assert why(joined(node("", ""), known)) == ["", f"{SICK}; burn-in failed: exit 3"]
    assert why(joined(node("", "unhealthy", uuids=False), known)) == ["", "unhealthy"]
    assert why(joined(node("", "", uuids=False), known))[0].endswith("burn-in failed: exit 3")


def test_what_is_over_is_reported_so() -> None:
    known = health(1, {0: "RecoveryAction"})
    over = known.status.gpus[0].causes[0].model_copy(update={"ends": T0 + timedelta(hours=1)})
    gpu = known.status.gpus[0].model_copy(update={"causes": (over,)})
    known = known.model_copy(update={"status": GPUNodeHealthStatus(gpus=(gpu,))})
    assert why(joined(node(""), known)) == [f"{SICK}, over at 2026-11-24 11:00Z"]


def test_a_cordoned_node_takes_nothing() -> None:
    seen = joined(node(""), health(1, {}, cordons=("",)))
    assert (seen.status.ready, seen.status.message) == (False, "cordoned")


def test_the_power_limit_counts_where_all_gpus_have_it() -> None:
    one = health(2, {})
    assert [gpu.power_limit_watts for gpu in joined(node("", ""), one).status.gpus] == [700, 700]
    assert [gpu.power_limit_watts for gpu in joined(node("", "", uuids=False), one).status.gpus] == [700, 700]
    none = health(2, {}, watts=None)
    assert [gpu.power_limit_watts for gpu in joined(node("", "", uuids=False), none).status.gpus] == [0, 0]


async def _write(world: World, known: GPUNodeHealth) -> None:
    made = await world.store.create(HEALTH, known)
    status = known.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    await world.store.patch_status(HEALTH, made.key, status, manager="api")


async def test_a_sick_gpu_gets_no_job_and_why_names_it_until_it_is_well(world: World) -> None:
    await _write(world, health(2, {0: "OffTheBus"}))
    await world.node(2)
    await world.submit("one", gpusPerWorker=1)
    await world.submit("two", gpusPerWorker=2)
    await world.jobs.wait_for(lambda jobs: jobs.get(Key("p", "one")).status.placement, timeout_s=10)
    await world.jobs.wait_for(lambda jobs: jobs.get(Key("p", "two")).status.reason is Code.NO_CAPACITY, timeout_s=10)
    async with world.operator.feed.current() as state:
        said = explain(state, Key("p", "two"), datetime.now(UTC)).summary
    assert f"1 GPU can't be leased (1 of n1: {SICK})" in said
    world.kubelet.script = lambda pod: 0
    await world.store.delete(HEALTH, Key("", "n1"))
    await world.jobs.wait_for(lambda jobs: jobs.get(Key("p", "two")).status.phase == "Succeeded", timeout_s=10)
    assert (await world.store.get(JOBS, Key("p", "two"))).status.attempt == 1


@pytest.mark.parametrize("cause", ["OffTheBus", "Throttled"])
async def test_a_job_whose_gpu_falls_sick_goes_on_elsewhere_and_its_neighbour_stays(world: World, cause: str) -> None:
    """At once, or once it has saved."""
    world.kubelet.script = lambda pod: None
    await world.node(1, "n1")
    for name in ("moved", "stays"):
        await world.submit(name, gpusPerWorker=1)
        await world.phase(name, Phase.RUNNING)
        await world.node(1, "n2" if name == "moved" else "n3")
    job = world.jobs.get(Key("p", "moved"))
    assert job.status.placement[0].node == "n1"
    known = health(1, {0: cause})
    holders = (GpuHolder(job_uid=job.uid, attempt=1),)
    gpu = known.status.gpus[0].model_copy(update={"holders": holders})
    await _write(world, known.model_copy(update={"status": GPUNodeHealthStatus(gpus=(gpu,))}))
    await world.nodes.wait_for(lambda nodes: nodes.get(Key("", "n1")).status.sick, timeout_s=10)
    if cause == "Throttled":
        progress = {"at": 1.0, "checkpoint": {"step": 5, "at": T0.timestamp() + 1}}
        assert world.jobs.get(Key("p", "moved")).status.intent is Intent.NONE
        await world.store.patch_status(JOBS, job.key, {"progress": progress}, manager="api")
    await world.jobs.wait_for(lambda jobs: jobs.get(job.key).status.attempt == 2, timeout_s=10)
    moved = await world.phase("moved", Phase.RUNNING)
    assert moved.status.placement[0].node == "n3" and moved.status.retries == {}
    assert moved.status.attempts[0].intent is Intent.PREEMPT
    assert world.jobs.get(Key("p", "stays")).status.attempt == 1
    counted = world.counters.preempted_gpus.labels("default", "GpuSick")
    assert counted._value.get() == 1


@pytest.mark.parametrize("world", [60.0], indirect=True)
async def test_a_job_that_blames_a_gpu_leaves_its_node_once_it_has_saved_and_others_may_come(world: World) -> None:
    world.kubelet.script = lambda pod: None
    await world.node(1, "n1")
    await world.submit("moved", gpusPerWorker=1)
    job = await world.phase("moved", Phase.RUNNING)
    await world.node(1, "n2")
    blame = {"jobUid": job.uid, "attempt": 1, "at": T0, "message": "held down by heat"}
    (gpu,) = health(1, {}).status.gpus
    gpu = GpuHealth.model_validate({**gpu.model_dump(by_alias=True), "blames": [blame]})
    await _write(world, health(1, {}).model_copy(update={"status": GPUNodeHealthStatus(gpus=(gpu,))}))
    await world.nodes.wait_for(lambda nodes: nodes.get(Key("", "n1")).status.blamed, timeout_s=10)
    progress = {"at": 1.0, "checkpoint": {"step": 5, "at": T0.timestamp() + 1}}
    await world.store.patch_status(JOBS, job.key, {"progress": progress}, manager="api")
    await world.jobs.wait_for(lambda jobs: jobs.get(job.key).status.attempt == 2, timeout_s=10)
    moved = await world.phase("moved", Phase.RUNNING)
    assert [placed.node for placed in moved.status.placement] == ["n2"] and moved.status.retries == {}
    assert [one.node for one in moved.status.blamed] == ["n1"]
    assert moved.status.attempts[0].message.startswith("GPU 0 of n1 holds the gang back (held down by heat)")
    await world.submit("comes", gpusPerWorker=1)
    assert (await world.phase("comes", Phase.RUNNING)).status.placement[0].node == "n1"
