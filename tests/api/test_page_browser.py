"""The page in a real browser on both stores: a real API server with its own tokens, too; the test is the operator."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, Gpu, GPUNode
from stoker_api.gpu_health import SILENT_S
from tests.support.browser import browsing

from .receipts import body, receipt


async def signed_in(page: Any, world: Any, who: str, view: str = "/") -> None:
    ticket = (await world.call("POST", "/v1/sign-in-tickets", who=who)).json()["ticket"]
    await page.goto(f"{world.base}{view}#ticket={ticket}")
    await page.get_by_role("button", name="Sign out").wait_for()


async def measured(world: Any, job: TrainingJob) -> None:
    """Play the exporter for three minutes."""
    headers = {"Authorization": f"Bearer {await world.exporter_token()}", "Content-Type": "application/json"}
    for seq in (1, 2, 3):
        report = body(receipt(seq, job_uid=job.uid, begin_at=time.time() - 600))
        assert (await world.client.post("/v1/report/usage", headers=headers, json=report)).status_code == 200


@pytest.mark.slow
async def test_a_job_as_its_status_changes(served, chromium_path):
    job = await served.job("one", gpusPerWorker=1)
    async with browsing(chromium_path) as page:
        await signed_in(page, served, "alice")
        await page.get_by_role("row", name="one").get_by_text("Queued").wait_for()
        placement = [{"worker": 0, "node": "node-a"}]
        job = await served.status(job, phase="Running", attempt=1, placement=placement, message="running")
        pod = await served.pod(job)
        await served.logs.append(pod.uid, b"hello from the worker\n")
        await page.get_by_role("row", name="one").get_by_text("Running").wait_for()
        await page.get_by_role("link", name="one").click()
        await page.get_by_role("link", name="Log", exact=True).click()
        await page.get_by_text("hello from the worker").wait_for()
        await served.event(job, "Noticed")
        await page.get_by_role("link", name="Attempts and events").click()
        await page.get_by_text("Noticed").wait_for()
        await measured(served, job)
        await page.get_by_role("link", name="Curves").click()
        await page.locator("figure", has_text="Power").get_by_text("300 W").first.wait_for()
        await page.locator("figure", has_text="SM activity").get_by_text("50 %").first.wait_for()
        await page.get_by_role("button", name="Suspend").click()
        await page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
        await page.get_by_role("button", name="Resume").wait_for()
        assert (await served.call("GET", "/v1/projects/alpha/jobs/one")).json()["spec"]["suspend"] is True


@pytest.mark.slow
async def test_of_another_project_nothing_is_seen(served, chromium_path):
    await served.job("one")
    for who, sees, acts in (("bob", 0, 0), ("reader", 1, 0), ("alice", 1, 1)):
        async with browsing(chromium_path) as page:
            await signed_in(page, served, who)
            await page.locator("table.jobs, .empty").first.wait_for()
            assert await page.get_by_role("link", name="one", exact=True).count() == sees
            await page.goto(f"{served.base}/jobs/alpha/one")
            await page.locator(".tabs, .failure").first.wait_for()
            assert await page.locator(".tabs").count() == sees
            if acts:
                await page.get_by_role("button", name="Cancel").wait_for()
            assert await page.get_by_role("button", name="Cancel").count() == acts


async def add_node(world: Any, name: str, *, ready: bool = True, simulated: bool = False) -> None:
    """One with a GPU."""
    gpu = Gpu(uuid=f"GPU-{name}", index=0, model="Tiny", memory_bytes=8 << 30, simulated=simulated)
    await world.store.create(NODES, GPUNode(metadata=ObjectMeta(name=name)))
    status = {"ready": ready, "message": "" if ready else "does not report", "gpus": [gpu.model_dump(by_alias=True)]}
    await world.store.patch_status(NODES, Key("", name), status, manager="agent")
    await world.deps.nodes.wait_for(
        lambda nodes: (found := nodes.get(Key("", name))) and found.status.gpus, timeout_s=5
    )


async def report(world: Any, name: str, **facts: Any) -> None:
    """Play the node's exporter."""
    headers = {"Authorization": f"Bearer {await world.exporter_token(name)}"}
    gpu = {"uuid": f"GPU-{name}", "index": 0, **facts}
    answer = await world.client.post("/v1/report/gpus", headers=headers, json={"node": name, "gpus": [gpu]})
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.parametrize("new_world", ["embedded"], indirect=True)
async def test_nodes_that_need_a_look_come_first(served, chromium_path, monkeypatch):
    """Lost, sick, silent, never reported; then one with an idle job, one that is healthy, and one that is simulated."""
    for name in ("b-well", "c-silent", "d-sick", "f-idle"):
        await add_node(served, name)
    await add_node(served, "a-simulated", simulated=True)
    await add_node(served, "e-lost", ready=False)
    await report(served, "c-silent")
    clock, real = served.deps.clock, served.deps.clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: real() + SILENT_S + 1)
    for name in ("b-well", "e-lost", "f-idle"):
        await report(served, name)
    await report(served, "d-sick", xids=[{"code": 79, "at": time.time() - 5}])
    idle = await served.job("idle", gpusPerWorker=1)
    since = {"idleSince": "2026-11-24T10:00:00Z"}
    placement = [{"worker": 0, "node": "f-idle"}]
    await served.status(idle, phase="Running", attempt=1, placement=placement, usage=since)
    async with browsing(chromium_path) as page:
        await signed_in(page, served, "alice", "/gpus")
        await page.get_by_label("Node d-sick").get_by_text("OffTheBus (XID 79)").wait_for()
        await page.get_by_label("Node c-silent").get_by_text("does not report any more").wait_for()
        await page.get_by_label("Node node-a").get_by_text("No exporter has reported").wait_for()
        await page.get_by_label("Node e-lost").get_by_text("does not report").wait_for()
        await page.get_by_label("Node f-idle").get_by_text("idle for").wait_for()
        order = await page.locator(".node h2").all_inner_texts()
        assert order == ["e-lost", "d-sick", "c-silent", "node-a", "f-idle", "a-simulated", "b-well"]
        assert await page.locator(".node .note").count() == 3
