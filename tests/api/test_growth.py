"""Nothing of a deleted job stays in the api, but for what has a bound of its own; in both modes."""

from __future__ import annotations

import asyncio

from stoker.spec.event import EVENTS
from stoker.spec.meta import Key
from tests.support.growth import grown

EACH = 8
BOUNDED = {"History._events", "LogStreams._parts", "TTLCache._kept"}
"""The last 1,024 changes of a kind, 64 parts of logs, what the cluster said of a token in the last minute."""
OURS = {"FileLogs.ended"}


async def test_a_deleted_job_leaves_nothing_behind(served):
    world, number = served, 0
    caches, gone = (served.deps.jobs, served.deps.pods, served.deps.events), list[tuple[Key, Key, Key]]()

    async def one(name):
        job = await world.job(name)
        path = f"/v1/projects/alpha/jobs/{name}"
        pod = await world.pod(job)
        await world.logs.append(pod.uid, b"line\n", end=True)
        await world.status(job, phase="Running", attempt=1)
        worker = {"Authorization": f"Bearer {await world.worker_token(pod)}"}
        report = await world.client.post("/v1/report/progress", headers=worker, json={"step": 1})
        assert report.status_code < 500, report.text
        event = await world.event(job, "Started")
        await world.status(job, phase="Succeeded", attempt=1)
        for asked in ("", "/explain", "/logs", "/events"):
            answer = await world.call("GET", path + asked)
            assert answer.status_code == 200, (asked, answer.text)
        assert (await world.call("DELETE", path)).status_code in (200, 202, 204)
        await world.store.delete(EVENTS, event.key)  # else the store's, by its own limits
        gone.append((job.key, pod.key, event.key))

    async def work():
        nonlocal number
        for n in range(number, number + EACH):
            await one(f"j{n}")
        number += EACH
        async with asyncio.timeout(120):  # a cluster that has just been started collects nothing for a while
            while any(cache.get(key) for keys in gone for cache, key in zip(caches, keys, strict=True)):
                await asyncio.sleep(0.01)
        gone.clear()

    assert await grown(work, EACH) <= BOUNDED | OURS
