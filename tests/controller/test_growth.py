"""Nothing of a deleted job stays in the operator, but for what has a bound of its own."""

from __future__ import annotations

from stoker.spec.job import JOBS
from stoker.spec.meta import Key
from tests.support.growth import grown

EACH = 25
BOUNDED = {"History._events", "JobRows._left"}
"""The last 1,024 changes of a kind, and rows of /metrics for 15 minutes."""
OURS = {"Kubelet.ran", "Kubelet._tasks", "WeakSet.data"}
"""The kubelet keeps its tasks, which asyncio lists."""


async def test_a_deleted_job_leaves_nothing_behind(world):
    await world.node(8)
    number = 0

    async def work():
        nonlocal number
        names = [f"j{number + n}" for n in range(EACH)]
        number += EACH
        for name in names:
            await world.submit(name, gpusPerWorker=1)
        for name in names:
            await world.phase(name, "Succeeded")
            await world.store.delete(JOBS, Key("p", name))
        await world.until(lambda: not len(world.jobs) and not len(world.pods), "all to be gone")
        b"".join(b"" for _ in world.metrics.collect())

    assert await grown(work, EACH) <= BOUNDED | OURS
