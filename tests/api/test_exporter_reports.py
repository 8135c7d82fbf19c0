"""The exporter's own reporting and its question for owners, against the real api behind uvicorn, in both modes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from stoker.controller.render import owned_by
from stoker.exporter.allocation.jobs import NoAnswer
from stoker.exporter.allocation.owners_route import OwnersRoute
from stoker.exporter.owners import Owner
from stoker.exporter.receipts import Receipt
from stoker.exporter.reporting.reporter import UsageReporter
from stoker.nvml.frames import GpuEvent
from stoker.push.link import Link
from stoker.spec.meta import ObjectMeta
from stoker.spec.pod import PODS, Container, Pod, PodSpec

PLACED = {"placement": [{"worker": 0, "node": "node-a"}], "phase": "Running", "attempt": 1}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def receipt(job: Any, seq: int, **more: Any) -> Receipt:
    now = time.time()
    fields: dict[str, Any] = {
        "ledger": "l1", "node": "node-a", "uuid": "GPU-0", "job_uid": job.uid, "attempt": 1, "worker": 0,
        "project": "alpha", "job_name": job.metadata.name, "pod_uid": "p", "model": "H200", "seq": seq,
        "begin_at": now - 60, "at": now, "final": False, "allocated_s": 60.0, "unobserved_s": 1.0, "busy_s": 40.0,
        "idle_s": {"no_activity": 19.0}, "throttled_s": {"hw_thermal": 2.0}, "energy_j": 6000.0,
        "memory_peak_bytes": 1 << 30, "memory_total_bytes": 8 << 30, "idle_since": now - 5,
    }  # fmt: skip
    return Receipt(**{**fields, **more})


@pytest.fixture
async def exporter(served: Any, tmp_path: Any) -> AsyncIterator[Any]:
    token = tmp_path / "exporter-token"
    token.write_text(await served.exporter_token())
    served.token = token
    link = Link(served.base, token)
    served.reporter = UsageReporter(link, "node-a", tmp_path / "state", every_s=0.05, gather_s=0.01)
    served.reporter.start()
    yield served
    await asyncio.to_thread(served.reporter.stop)
    link.close()


async def test_receipts_become_the_jobs_usage_and_wrong_ones_cost_no_other(exporter):
    job = await exporter.status(await exporter.job("one", gpusPerWorker=1), **PLACED)
    exporter.reporter.offer([receipt(job, 1), receipt(job, 1, uuid="GPU-9", node="node-b")])
    await until(lambda: exporter.reporter.stats.receipts["refused"] == 1)
    await until(lambda: exporter.reporter.stats.receipts["sent"] == 1)
    exporter.reporter.offer([receipt(job, 2, allocated_s=75.0, busy_s=55.0, final=True)])
    await until(lambda: exporter.reporter.stats.receipts["sent"] == 2)
    usage = (await exporter.call("GET", "/v1/projects/alpha/jobs/one")).json()["status"]["usage"]
    assert (usage["gpuSeconds"], usage["busySeconds"], usage["energyJoules"]) == (75.0, 55.0, 6000.0)
    assert exporter.reporter.stats.waiting_receipts == 0


async def test_a_token_that_is_no_exporters_costs_nothing_but_time(exporter):
    job = await exporter.status(await exporter.job("one", gpusPerWorker=1), **PLACED)
    good = exporter.token.read_text()
    exporter.token.write_text(exporter.keys["alice"])
    exporter.reporter.offer([receipt(job, 1, final=True)])
    await until(lambda: exporter.reporter.stats.receipts["failed"])
    exporter.token.write_text(good)
    await until(lambda: exporter.reporter.stats.receipts["sent"] == 1)
    assert exporter.reporter.stats.receipts["refused"] == 0


async def test_gpu_events_reach_the_job(exporter):
    job = await exporter.status(await exporter.job("one", gpusPerWorker=1), **PLACED)
    owner = Owner("alpha", "one-1-0", "p", job.uid, "alpha", "one", 1, 0)
    for kind, code in (("xid", 79), ("lost", 0), ("recovered", 0), ("recovery_action", 2), ("mig_changed", 0)):
        exporter.reporter.event(GpuEvent(time.time(), "GPU-0", 0, kind, code, "x" * 5000), [owner])
    await until(lambda: exporter.reporter.stats.events["sent"] == 5)
    assert exporter.reporter.stats.events["refused"] == 0
    reasons: set[str] = set()
    async with asyncio.timeout(20):
        while not {"GpuXid", "GpuLost"} <= reasons:
            answer = await exporter.call("GET", "/v1/projects/alpha/jobs/one/events")
            reasons = {found["reason"] for found in answer.json()["items"]}
            await asyncio.sleep(0.02)


async def test_owners_of_pods_and_what_has_ended(exporter):
    job = await exporter.status(await exporter.job("one", gpusPerWorker=1), **PLACED)
    if "hands" in exporter.__dict__:
        pod = Pod.model_validate(await exporter.hands.pod("one-1-0", "alpha", job, nodeName="node-a"))
    else:
        meta = ObjectMeta(name="one-1-0", namespace="alpha", owner_references=(owned_by(job),))
        pod = await exporter.store.create(
            PODS, Pod(metadata=meta, spec=PodSpec(node_name="node-a", containers=(Container(),)))
        )
    await exporter.deps.pods.at_least(pod.metadata.resource_version, timeout_s=5)
    link = Link(exporter.base, exporter.token)
    route = OwnersRoute(link)
    asked = [("alpha", "one-1-0"), ("alpha", "nobody")]
    (reported,) = await asyncio.to_thread(route.ask, asked)
    assert reported.owner == Owner("alpha", "one-1-0", pod.uid, job.uid, "alpha", "one", 1, 0) and not reported.ended
    ended = await exporter.store.patch_status(PODS, pod.key, {"phase": "Succeeded"}, manager="agent")
    await exporter.deps.pods.at_least(ended.metadata.resource_version, timeout_s=5)
    (reported,) = await asyncio.to_thread(route.ask, asked)
    assert reported.ended
    exporter.token.write_text("exp.node-a.forged")
    with pytest.raises(NoAnswer, match="401"):
        await asyncio.to_thread(route.ask, asked)
    link.close()
