"""What exporters report of GPUs: kept per node, believed of the exporter's own node only, written when it changes."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.exporter.reporting.gpus_post import AGAIN_S
from stoker.exporter.reporting.reporter import EVERY_S
from stoker.life.burn_in import SETTLE_S, failed
from stoker.spec.gpu_health import HEALTH, MOST_GPUS, Cordon, GPUNodeHealth, GPUNodeHealthSpec
from stoker.spec.job import JOBS
from stoker.spec.meta import Key, ObjectMeta
from stoker.store import backlog
from stoker_api.gpu_health import SILENT_S, GpuHealthKeeper

NODE = Key("", "node-a")
FACTS = {"model": "NVIDIA H200", "memoryBytes": 141 << 30, "computeCapability": "9.0", "powerLimitWatts": 700}


def gpu(number: int, **facts: Any) -> dict[str, Any]:
    return {"uuid": f"GPU-{number}", "index": number, **FACTS, **facts}


async def post(world: Any, *gpus: dict[str, Any], node: str = "node-a", body: Any = None) -> Any:
    data = json.dumps({"node": node, "gpus": gpus}) if body is None else body
    headers = {"Authorization": f"Bearer {await world.exporter_token()}", "Content-Type": "application/json"}
    return await world.client.post("/v1/report/gpus", content=data, headers=headers)


async def stored(world: Any) -> GPUNodeHealth:
    health: GPUNodeHealth = await world.store.get(HEALTH, NODE)
    await world.deps.health.at_least(health.metadata.resource_version, timeout_s=5)
    return health


def unavailable(world: Any) -> list[str]:
    return [gpu.unavailable for gpu in world.deps.nodes.get(NODE).status.gpus]


async def test_a_report_is_kept_and_closes_what_is_sick(world):
    assert (await post(world, gpu(0), gpu(1))).json() == {"taken": 2}
    well = await stored(world)
    assert [(one.uuid, one.power_limit_watts, one.causes) for one in well.status.gpus] == [
        ("GPU-0", 700, ()),
        ("GPU-1", 700, ()),
    ]
    await post(world, gpu(0), gpu(1))
    assert (await stored(world)).metadata.resource_version == well.metadata.resource_version, "nothing has changed"
    at = time.time() - 5
    await post(world, gpu(0, xids=[{"code": 79, "at": at}]), gpu(1))
    (gpu_0, causes) = next((await stored(world)).sick())
    assert (gpu_0.uuid, [cause.code for cause in causes]) == ("GPU-0", ["OffTheBus"])
    assert abs(causes[0].since.timestamp() - at) < 0.001
    await world.deps.nodes.wait_for(lambda _: any(unavailable(world)), timeout_s=5)
    assert b'stoker_sick_gpus{cause="OffTheBus",node="node-a"} 1.0' in world.services.metrics.text()
    shown = (await world.call("GET", "/v1/nodes")).json()["items"]
    (node,) = [one for one in shown if one["metadata"]["name"] == "node-a"]
    assert "sick: XID 79 since" in json.dumps(node)
    await post(world, gpu(0), gpu(1))
    assert list((await stored(world)).sick()), "the exporter began anew and has no XIDs"


async def test_an_administrator_closes_a_node_by_the_object_and_the_api_leaves_that_alone(world):
    await post(world, gpu(0))
    spec = GPUNodeHealthSpec(cordons=(Cordon(reason="fans"),))
    await world.store.update(HEALTH, (await stored(world)).model_copy(update={"spec": spec}))
    await world.deps.nodes.wait_for(lambda nodes: nodes.get(NODE).status.message == "cordoned", timeout_s=5)
    await stored(world)
    await post(world, gpu(0, throttled=True))
    health = await stored(world)
    assert health.spec == spec and [gpu.uuid for gpu, _ in health.sick()] == ["GPU-0"]


async def test_an_exporter_speaks_of_its_own_node_and_a_node_must_be_there(world):
    assert (await post(world, gpu(0), node="node-b")).status_code == 403
    headers = {"Authorization": f"Bearer {await world.exporter_token('node-z')}"}
    answer = await world.client.post("/v1/report/gpus", json={"node": "node-z", "gpus": []}, headers=headers)
    assert answer.status_code in (401, 503), "on a cluster a token is a pod's, and its node is there"
    assert (await world.call("POST", "/v1/report/gpus", who="admin", json={})).status_code == 401
    assert not (await world.store.list(HEALTH)).items


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"node":"node-a"}',
        {"gpus": [gpu(n) for n in range(MOST_GPUS + 1)]},
        {"gpus": [gpu(0, uuid="")]},
        {"gpus": [gpu(0, uuid="x" * 200)]},
        {"gpus": [gpu(0, index=-1)]},
        {"gpus": [gpu(0, memoryBytes=2**60)]},
        {"gpus": [gpu(0, powerLimitWatts=0)]},
        {"gpus": [gpu(0, xids=[{"code": 79, "at": 1e300}])]},
        {"gpus": [gpu(0, xids=[{"code": 79, "at": 1}] * 300)]},
    ],
)
async def test_what_makes_no_sense_is_refused_and_writes_nothing(world, body):
    data = body if isinstance(body, bytes) else json.dumps({"node": "node-a", **body})
    assert (await post(world, body=data)).status_code in (400, 422)
    assert not (await world.store.list(HEALTH)).items


async def test_hostile_texts_are_plain_ones_by_the_time_they_are_kept(world):
    await post(world, gpu(0, model="\x1b[31mred\n", computeCapability="9.0'; --", newer={"field": [1]}))
    (kept,) = (await stored(world)).status.gpus
    assert (kept.model, kept.compute_capability) == ("[31mred", None)


@pytest.mark.parametrize("has_object", [False, True])
async def test_what_the_kubelet_says_of_a_workers_device_is_kept_and_closes_it(world, monkeypatch, has_object):
    """Also what it says before the exporter has reported: there is no object then, or one without GPUs."""
    monkeypatch.setattr(backlog, "AGAIN_S", 0.05)
    if has_object:
        await world.store.create(HEALTH, GPUNodeHealth(metadata=ObjectMeta(name="node-a")))
        await stored(world)
    job = await world.job("one", gpusPerWorker=1)
    devices = [{"resourceID": "GPU-1", "health": "Unhealthy"}, {"resourceID": "GPU-0", "health": "Healthy"}]
    allocated = [{"name": "nvidia.com/gpu", "resources": devices}]
    container = {"name": "worker", "image": "none", "imageID": "", "ready": True, "restartCount": 0}
    status = {
        "phase": "Running",
        "startTime": "2026-11-24T10:00:00Z",
        "containerStatuses": [{**container, "allocatedResourcesStatus": allocated}],
    }
    await world.running_pod(job, "node-a", status)
    await world.deps.pods.wait_for(lambda pods: any(any(pod.unhealthy_devices) for pod in pods.values()), timeout_s=5)
    await post(world, gpu(0), gpu(1))
    await world.deps.nodes.wait_for(lambda _: any(unavailable(world)), timeout_s=15)
    ((sick, causes),) = (await stored(world)).sick()
    assert (sick.uuid, [cause.code for cause in causes]) == ("GPU-1", ["DeviceUnhealthy"])
    assert [(one.job_uid, one.attempt) for one in sick.holders] == [(job.uid, 1)]


async def node(world: Any, verb: str = "", *, who: str = "admin", **body: Any) -> Any:
    if not verb:
        return await world.call("GET", "/v1/nodes/node-a", who=who)
    return await world.call("POST", f"/v1/nodes/node-a/{verb}", who=who, json=body)


def closed(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [gpu.get("unavailable", "") for gpu in answer.json()["status"]["gpus"]]


async def test_an_administrator_closes_a_gpu_and_says_that_it_is_well(world):
    await post(world, gpu(0, xids=[{"code": 94, "at": time.time() - 5}]), gpu(1))
    await stored(world)
    shown = await node(world, who="reader")
    assert [one["uuid"] for one in shown.json()["status"]["sick"]] == ["GPU-0"] and "usage" in shown.json()
    assert (await node(world, "cordon", who="alice", gpu="1")).status_code == 403
    answer = await node(world, "cordon", gpu="1", reason="fan fails")
    assert any("cordoned" in why or "2 GPUs of its node" in why for why in closed(answer))
    (entry,) = (await stored(world)).spec.cordons
    assert (entry.gpu, entry.reason, entry.by) == ("GPU-1", "fan fails", world.name("admin"))
    await node(world, "cordon", gpu="GPU-1")
    assert len((await stored(world)).spec.cordons) == 1
    answer = await node(world, "uncordon", gpu="GPU-0")
    assert not answer.json()["status"].get("sick") and any(closed(answer)), "the other is cordoned"
    answer = await node(world, "uncordon", gpu="1")
    assert not any("sick" in why or "cordoned" in why for why in closed(answer))
    await post(world, gpu(0, xids=[{"code": 94, "at": time.time() + 0.001}]), gpu(1))
    assert [one.uuid for one, _ in (await stored(world)).sick()] == ["GPU-0"], "it happened again"


async def test_a_node_is_closed_and_opened_whole_and_no_other_gpu_or_node_is(world):
    answer = await node(world, "cordon", reason="power")
    assert (answer.json()["status"]["ready"], answer.json()["status"]["message"]) == (False, "cordoned")
    assert (await node(world, "uncordon")).json()["status"]["ready"] is True
    assert (await stored(world)).spec == GPUNodeHealthSpec()
    unknown = await node(world, "cordon", gpu="GPU-none")
    assert unknown.status_code == 422 and "is no GPU of node 'node-a'" in unknown.json()["detail"]
    assert (await node(world, "cordon", gpu="x" * 129)).status_code == 422
    assert (await node(world, "cordon", reasons="typo")).status_code == 422
    for verb in ("cordon", "uncordon"):
        assert (await world.call("POST", f"/v1/nodes/none/{verb}", who="admin", json={})).status_code == 404
    assert (await world.call("GET", "/v1/nodes/none")).status_code == 404


async def test_a_node_shows_where_the_burn_ins_of_its_gpus_stand(world, monkeypatch):
    async def shown() -> list[dict[str, Any]]:
        await stored(world)
        listed = (await world.call("GET", "/v1/nodes")).json()["items"]
        answer: list[dict[str, Any]] = (await node(world)).json()["burnIns"]
        assert [one["burnIns"] for one in listed if one["metadata"]["name"] == "node-a"] == [answer]
        return answer

    def burn_in(state: str, **more: str) -> dict[str, Any]:
        return {"gpu": "GPU-1", "index": 1, "state": state, "job": "", "message": "", **more}

    at = datetime.now(UTC) - timedelta(seconds=5)
    await post(world, gpu(0), gpu(1, xids=[{"code": 94, "at": at.timestamp()}]))
    assert await shown() == [], "the operator makes no tests"
    monkeypatch.setattr(world.services.gpu_health, "_burn_in", True)
    (waiting,) = await shown()
    due = datetime.fromisoformat(waiting.pop("dueAt")) - at
    assert waiting == burn_in("Waiting") and abs(due.total_seconds() - SETTLE_S) < 0.001
    job = await world.job("burn-in-gpu-1", gpusPerWorker=1)
    await world.status(job, phase="Running", burnIn={"gpu": "GPU-1", "at": at.isoformat()})
    assert await shown() == [burn_in("Testing", job="alpha/burn-in-gpu-1")]
    await world.store.delete(JOBS, job.key, uid=job.uid)
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key) is None, timeout_s=5)
    known = await stored(world)
    found = known.model_copy(update={"spec": failed(known.spec, "GPU-1", "exit 3: 7 wrong words in memory")})
    await world.store.update(HEALTH, found)
    message = "burn-in failed: exit 3: 7 wrong words in memory"
    assert await shown() == [burn_in("Failed", message=message)]
    await node(world, "uncordon", gpu="1")
    assert await shown() == []


async def exporter_state(world: Any) -> str:
    state: str = (await node(world)).json()["exporter"]
    return state


async def test_an_exporter_reports_or_is_silent_or_was_never_there(world, monkeypatch):
    assert await exporter_state(world) == "Missing"
    await post(world, gpu(0))
    assert await exporter_state(world) == "Reports"
    clock, late_s = world.deps.clock, 0.0
    real = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: real() + late_s)
    late_s = SILENT_S + 1
    assert await exporter_state(world) == "Silent"
    (listed,) = (await world.call("GET", "/v1/nodes")).json()["items"]
    assert listed["exporter"] == "Silent"
    await post(world, gpu(0))
    assert await exporter_state(world) == "Reports"
    await stored(world)
    deps = world.deps
    anew = GpuHealthKeeper(deps.store, deps.nodes, deps.health, clock, on_cluster=False, burn_in=False)
    assert anew.exporter(deps.nodes.get(NODE)) == "Reports", "an api that has just started waits for it"
    late_s *= 2
    assert anew.exporter(deps.nodes.get(NODE)) == "Silent"


def test_an_exporter_posts_more_often_than_would_be_silence():
    assert 2 * AGAIN_S + EVERY_S < SILENT_S
