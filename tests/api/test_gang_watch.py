"""Which GPU of a gang is blamed for holding it back, and by what: what exporters counted of all of them for a while."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.spec.gpu_health import HEALTH, GPUNodeHealth
from stoker.spec.job import Phase, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.usage import GpuReceipt
from stoker.store.port import Unavailable
from stoker_api.usage.gang_watch import WINDOW_S, GangWatch
from stoker_api.usage.straggler import blamed, gang_of

from .receipts import receipt

HOT = {"hw_thermal": 0.2, "sw_thermal": 0.2}


def gang(*active: float | None, held: dict[str, float] | None = None, seq: int = 10, **more: Any) -> list[GpuReceipt]:
    """A worker each: which share of `seq` minutes its SMs were active. The first is held down by these shares of it."""
    s = 60.0 * seq
    return [
        receipt(
            seq,
            worker=number,
            uuid=f"GPU-{number}",
            sm_active_s=None if share is None else share * s,
            throttled_s={why: part * s for why, part in (held or {}).items()} if number == 0 else {},
            **more,
        )
        for number, share in enumerate(active)
    ]


@pytest.mark.parametrize(
    ("receipts", "expected"),
    [
        (gang(0.9, 0.5, 0.5, 0.5, held=HOT), [0]),
        (gang(0.5, 0.5, 0.5, 0.5, held=HOT), [0]),
        (gang(None, None, None, None, held=HOT), [0]),
        (gang(0.9, 0.5, 0.5, 0.5), []),
        (gang(0.3, 0.5, 0.5, 0.5, held=HOT), []),
        (gang(0.9, 0.5, 0.5, 0.5, held={"hw_power_brake": 0.9, "sw_power_cap": 0.9}), []),
        (gang(0.9, 0.5, 0.5, 0.5, held={"hw_thermal": 0.09}), []),
        (gang(0.9, 0.5, 0.5, held=HOT), []),
    ],
    ids=[
        "hot, and the others wait", "hot, activity does not show it", "hot, activity is not known",
        "more work than the others", "hot, and it waits itself", "held down by power", "a little hot", "too few",
    ],
)  # fmt: skip
def test_only_a_gpu_that_is_hot_and_does_not_wait_is_blamed(receipts: list[GpuReceipt], expected: list[int]) -> None:
    found = list(blamed(gang_of(receipts, 1)))
    assert [which.worker for which, _ in found] == expected
    assert all(why == "held down by heat 40% of the time, the gang's median 0%" for _, why in found)


class Looks:
    """A gang of four that was looked at before, with a real store behind it."""

    def __init__(self, world: Any, keeper: Any = None, **status: Any) -> None:
        self._world, self.receipts = world, gang(0.9, 0.5, 0.5, 0.5, held=HOT)
        spec: Any = {"trainer": {"command": ["x"]}, "workers": 4, "gpus_per_worker": 1}
        state = TrainingJobStatus(**{"phase": Phase.RUNNING, "attempt": 1, **status})
        self.job = TrainingJob(metadata=ObjectMeta(name="one", namespace="alpha", uid="uid-1"), spec=spec, status=state)
        view: Any = SimpleNamespace(receipts=lambda _: self.receipts)
        self.watch = GangWatch(lambda: [self.job], view, keeper or world.services.gpu_health, world.deps.clock)

    async def blamed(self, receipts: list[GpuReceipt]) -> dict[str, list[str]]:
        """By GPU, by which jobs, once these were seen too."""
        self.receipts = receipts
        await self.watch.look()
        health: GPUNodeHealth = await self._world.store.get(HEALTH, Key("", "node-a"))
        return {gpu.uuid: [one.job_uid for one in gpu.blames] for gpu in health.blamed()}


async def report(world: Any) -> None:
    body = json.dumps({"node": "node-a", "gpus": [{"uuid": f"GPU-{n}", "index": n} for n in range(4)]})
    headers = {"Authorization": f"Bearer {await world.exporter_token()}", "Content-Type": "application/json"}
    assert (await world.client.post("/v1/report/gpus", content=body, headers=headers)).status_code == 200


async def test_a_gang_is_looked_at_for_a_while_before_its_gpu_is_blamed(world):
    await report(world)
    looks, minutes = Looks(world), round(WINDOW_S / 60)
    assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT)) == {}, "what was before may have been the start"
    assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT, seq=9 + minutes)) == {}
    late = [*gang(0.9, 0.5, 0.5, 0.5, held=HOT, seq=10 + minutes)[:3], *gang(0.9, 0.5, 0.5, 0.5)[3:]]
    assert await looks.blamed(late) == {}, "of one GPU no newer receipt has come"
    assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT, seq=10 + minutes)) == {"GPU-0": ["uid-1"]}
    await report(world)
    assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT, seq=60)) == {"GPU-0": ["uid-1"]}, "kept, and once"


async def test_a_gpu_whose_blame_can_not_be_written_is_blamed_at_the_next_look(world):
    await report(world)
    fails = [Unavailable("gone")]

    async def take_blame(*blame: Any) -> None:
        if fails:
            raise fails.pop()
        await world.services.gpu_health.take_blame(*blame)

    looks, late = Looks(world, SimpleNamespace(take_blame=take_blame)), 10 + round(WINDOW_S / 60)
    found = [await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT, seq=seq)) for seq in (10, late, late)]
    assert found == [{}, {}, {"GPU-0": ["uid-1"]}]


@pytest.mark.parametrize("what", [{"simulated": True}, {"method": "even"}])
async def test_shared_and_simulated_gpus_are_not_blamed(world, what):
    await report(world)
    looks = Looks(world)
    for seq in (10, 40):
        assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT, seq=seq, **what)) == {}


async def test_another_attempt_is_looked_at_anew(world):
    await report(world)
    looks = Looks(world, attempt=2)
    assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT)) == {}
    assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT, attempt=2)) == {}
    assert await looks.blamed(gang(0.9, 0.5, 0.5, 0.5, held=HOT, attempt=2, seq=11)) == {}
