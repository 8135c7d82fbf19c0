"""What exporters may report and what people are shown of it, in both modes."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from stoker.controller.render import owned_by
from stoker.spec.job import JOBS
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.rest import JobUsageReport, UsageReport
from stoker_api.app import create_app
from stoker_api.usage.amounts import Amounts
from stoker_api.usage.history import Sum
from stoker_api.usage.intake import facts_of
from stoker_api.usage.render import row

from .receipts import body, receipt

NODE = {"placement": [{"worker": 0, "node": "node-a"}], "phase": "Running", "attempt": 1}


async def post(world: Any, path: str, said: Any, node: str = "node-a", **headers: str) -> Any:
    token = {"Authorization": f"Bearer {await world.exporter_token(node)}"}
    return await world.client.post(f"/v1/report/{path}", headers=token | headers, json=said)


async def running(world: Any, name: str = "one", **spec: Any) -> Any:
    """Made long ago, as usage sees it: its receipts may be of days."""
    job = await world.status(await world.job(name, gpusPerWorker=1, **spec), **NODE)
    await world.deps.usage.register([facts_of(job)])
    await world.deps.usage.write(lambda file: file._run.execute("UPDATE jobs SET created = 0").connection.commit())
    return job


def now_s() -> float:
    return datetime.now(UTC).timestamp()


def of(job: Any, seq: int = 1, **more: Any) -> Any:
    """A receipt of the job that ends about now."""
    allocated_s = more.get("allocated_s", 60.0 * seq)
    begin_at = more.pop("begin_at", now_s() - allocated_s)
    return receipt(seq, job_uid=job.uid, job_name=job.metadata.name, begin_at=begin_at, **more)


async def reported(world: Any, wanted: Any) -> Any:
    """The stored usage, as soon as it is `wanted`."""
    async with asyncio.timeout(10):
        while True:
            usage = (await world.store.get(JOBS, wanted[0])).status.usage
            if usage is not None and wanted[1](usage):
                return usage
            await asyncio.sleep(0.02)


async def test_a_receipt_is_kept_shown_and_stored(world):
    job = await running(world)
    begin_at = now_s() - 120
    first = of(job, 1, begin_at=begin_at)
    answer = await post(world, "usage", body(first))
    assert (answer.status_code, answer.json()) == (200, {"taken": 1, "refused": []})
    assert (await post(world, "usage", body(first, of(job, 2, begin_at=begin_at)))).json()["taken"] == 2
    shown = (await world.call("GET", "/v1/projects/alpha/jobs/one")).json()["status"]["usage"]
    assert (shown["state"], shown["gpuSeconds"], shown["smActiveSeconds"]) == ("running", 120.0, 60.0)
    stored = await reported(world, (job.key, lambda usage: usage.gpu_seconds > 0))
    assert stored.gpu_seconds in (60.0, 120.0), "the first is written at once, the next a minute later"
    tag = {"If-None-Match": (await world.call("GET", "/v1/projects/alpha/jobs/one")).headers["etag"]}
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key).status.usage is not None, timeout_s=5)
    final = of(job, 3, begin_at=begin_at - 60, final=True)
    assert (await post(world, "usage", body(final))).json()["taken"] == 1
    assert (await world.call("GET", "/v1/projects/alpha/jobs/one", headers=tag)).status_code == 200, "live news"
    end = {
        "number": 1, "startedAt": "2026-01-01T00:00:00Z", "endedAt": "2026-01-01T00:03:00Z",
        "workers": [{"worker": 0, "node": "node-a"}],
    }  # fmt: skip
    await world.status(job, phase="Succeeded", finishedAt="2026-01-01T00:03:00Z", attempts=[end])
    stored = await reported(world, (job.key, lambda usage: usage.state == "final"))
    assert stored.gpu_seconds == 180.0
    async with asyncio.timeout(5):
        while len(world.services.usage_board):
            await asyncio.sleep(0.01)
    metrics = (await world.call("GET", "/metrics", who="admin")).text
    for line in ('{outcome="taken"} 3.0', '{outcome="stale"} 1.0'):
        assert f"stoker_api_receipts_total{line}" in metrics


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node": "node-b"}, "it is of node 'node-b'; the token is 'node-a''s"),
        ({"job_uid": "nobody"}, "there is no such job, and nothing is known of one"),
        ({"project": "beta"}, "jobUid is another job's than project and jobName say"),
        ({"worker": 7}, "the job has 2 worker(s)"),
        ({"attempt": 99}, "the job's newest attempt is 1"),
        ({"worker": 1}, "worker 1 of attempt 1 runs on another node"),
        ({"busy_s": 1e6}, "busyS is more than allocatedS"),
        ({"at": 1e11}, "at lies more than an hour ahead; check the node's clock"),
    ],
    ids=lambda value: str(value)[:25],
)
async def test_a_node_speaks_of_itself_and_of_jobs_there_are(world, change, why):
    placed = [{"worker": 0, "node": "node-a"}, {"worker": 1, "node": "node-b"}]
    job = await world.status(await world.job("one", workers=2, gpusPerWorker=1), **{**NODE, "placement": placed})
    good, wrong = of(job), of(job).model_copy(update=change)
    said = body(wrong, good)
    said["receipts"].append({"seq": -1})
    answer = (await post(world, "usage", said)).json()
    assert answer["taken"] == 1, "a wrong one costs no other"
    assert answer["refused"][0] == {"index": 0, "why": why}
    assert answer["refused"][1]["index"] == 2 and "ledger" in answer["refused"][1]["why"]
    assert 'stoker_api_receipts_total{outcome="refused"} 2.0' in (await world.call("GET", "/metrics", who="admin")).text


ODD = ('"allocatedS":1e999', '"allocatedS":NaN', '"seq":9223372036854775808', '"uuid":"\\ud800"', '"idleS":{"x":-1}')


async def test_no_number_or_text_breaks_the_file(world):
    job = await running(world)
    good = json.dumps(body(of(job))["receipts"][0])
    headers = {"Authorization": f"Bearer {await world.exporter_token()}", "Content-Type": "application/json"}
    for odd in ODD:
        (said,) = body(of(job))["receipts"]
        said.pop(odd.partition(":")[0].strip('"'))
        text = f'{{"node":"node-a","receipts":[{json.dumps(said)[:-1]},{odd}}},{good}]}}'
        answer = await world.client.post("/v1/report/usage", headers=headers, content=text)
        assert answer.status_code == 200, (odd, answer.text)
        assert answer.json()["taken"] == 1 and [one["index"] for one in answer.json()["refused"]] == [0], odd


async def test_an_exporter_reports_of_its_own_node_alone(world):
    job = await running(world)
    headers = {"Authorization": f"Bearer {await world.exporter_token('node-b')}"}
    for path, said in (("usage", body(of(job))), ("gpu-events", {"node": "node-a", "events": []})):
        answer = await world.client.post(f"/v1/report/{path}", headers=headers, json=said)
        assert answer.status_code == 403
    assert await world.deps.usage.receipts(job.uid) == []


async def test_bounds_of_a_report(world):
    too_many, too_long = [{}] * 2049, [{"ledger": "x" * (5 << 20)}]
    for said in ({"node": "node-a", "receipts": too_many}, {"receipts": []}, []):
        assert (await post(world, "usage", said)).status_code == 422
    assert (await post(world, "usage", {"node": "node-a", "receipts": too_long})).status_code == 413


async def test_a_job_deleted_meanwhile_gets_its_last_receipt(world):
    job = await running(world)
    await world.deps.usage.register([])  # behind what was queued
    async with asyncio.timeout(5):
        while not await world.deps.usage.known([job.uid]):
            await asyncio.sleep(0.01)
    await world.store.delete(JOBS, job.key)
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key) is None, timeout_s=5)
    answer = await post(world, "usage", body(of(job, 2, final=True)))
    assert answer.json() == {"taken": 1, "refused": []}
    assert len(world.services.usage_board) == 0
    shown = JobUsageReport.model_validate((await world.call("GET", "/v1/projects/alpha/jobs/one/usage")).json())
    assert shown.deleted and shown.usage.state == "final" and shown.usage.gpu_seconds == 120.0
    assert (shown.user, shown.queue) == (world.name("alice"), "default")
    assert (await world.call("GET", "/v1/projects/alpha/jobs/one/usage", who="bob")).status_code == 404


async def test_owners_of_pods_on_the_node(world):
    job = await running(world)
    forged = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "nobody"})})
    pods = {}
    for name, node, said in (("one-1-0", "node-a", job), ("one-1-1", "node-b", job), ("one-1-2", "node-a", forged)):
        if "hands" in world.__dict__:
            pods[name] = Pod.model_validate(await world.hands.pod(name, "alpha", said, nodeName=node))
        else:
            spec = PodSpec(node_name=node, containers=(Container(),))
            meta = ObjectMeta(name=name, namespace="alpha", owner_references=(owned_by(said),))
            pods[name] = await world.store.create(PODS, Pod(metadata=meta, spec=spec))
    await world.exporter_token()
    for pod in pods.values():
        await world.deps.pods.at_least(pod.metadata.resource_version, timeout_s=5)
    asked = {"pods": [{"namespace": "alpha", "name": name} for name in (*pods, "nobody", "exporter-node-a")]}
    if world.deps.other_pods is not None:
        await world.deps.other_pods.wait_for(lambda there: there.get(Key("alpha", "exporter-node-a")), timeout_s=5)
    owners = {owner["name"]: owner for owner in (await post(world, "owners", asked)).json()["owners"]}
    if "hands" in world.__dict__:  # where there are other people's pods
        assert owners.pop("exporter-node-a")["jobUid"] == ""
    assert set(owners) == {"one-1-0", "one-1-2"}
    assert owners["one-1-0"] == {
        "namespace": "alpha", "name": "one-1-0", "podUid": pods["one-1-0"].uid, "jobUid": job.uid, "project": "alpha",
        "jobName": "one", "attempt": 1, "worker": 0, "ended": False,
    }  # fmt: skip
    assert owners["one-1-2"]["jobUid"] == "" and owners["one-1-2"]["podUid"] == pods["one-1-2"].uid


async def test_gpu_events_are_events_of_the_jobs_once(world):
    job, far = await running(world), await running(world, "far")
    await world.status(far, placement=[{"worker": 0, "node": "node-b"}])
    owner = {"jobUid": job.uid, "project": "alpha", "jobName": "one"}
    others = [{**owner, "jobUid": "nobody"}, {"jobUid": far.uid, "project": "alpha", "jobName": "far"}]
    event = {
        "id": "e1", "at": now_s(), "uuid": "GPU-0", "index": 3, "kind": "xid", "code": 79,
        "text": "fallen off\nthe bus", "owners": [owner, *others],
    }  # fmt: skip
    lost = {**event, "id": "e2", "kind": "lost", "text": ""}
    for _ in range(2):
        answer = await post(world, "gpu-events", {"node": "node-a", "events": [event, lost]})
        assert (answer.status_code, answer.json()) == (200, {"taken": 2})

    async def reported(name: str) -> list[Any]:
        return [
            found
            for found in (await world.call("GET", f"/v1/projects/alpha/jobs/{name}/events")).json()["items"]
            if found["reason"].startswith("Gpu")
        ]

    async with asyncio.timeout(5):
        while len(await reported("one")) < 2:
            await asyncio.sleep(0.02)
    found = {one["reason"]: one for one in await reported("one")}
    assert set(found) == {"GpuXid", "GpuLost"} and await reported("far") == []
    assert found["GpuXid"]["message"] == "GPU 3 of node node-a (GPU-0) reports XID 79: fallen off the bus"
    assert found["GpuXid"]["type"] == "Warning"
    assert (await post(world, "gpu-events", {"node": "node-a", "events": [{**event, "kind": "x"}]})).status_code == 422


def test_a_short_job_keeps_its_joules():
    amounts = Amounts(allocated_s=7.5, energy_j=1049.986, energy_of_s=7.5)
    shown = row(Sum({}, simulated=False, jobs=1, amounts=amounts, cost=None, unpriced_s=0.0))
    assert shown.energy_kwh is not None and shown.energy_kwh * 3.6e6 == pytest.approx(1049.986, abs=0.01)
    assert shown.unobserved_energy_kwh is None


async def test_what_a_job_used_unobserved_is_its_energy_and_stands_beside_it(world):
    one = await running(world, "one")
    receipt = of(one, allocated_s=3600.0, unobserved_s=600.0, energy_j=1.8e6, unobserved_energy_j=3.6e5)
    assert (await post(world, "usage", body(receipt))).json()["taken"] == 1
    usage = (await world.call("GET", "/v1/projects/alpha/jobs/one/usage")).json()["usage"]
    assert (usage["energyJoules"], usage["unobservedEnergyJoules"]) == (1.8e6, 3.6e5)
    (row,) = (await world.call("GET", "/v1/usage?by=job&since=3d")).json()["rows"]
    assert (row["energyKwh"], row["unobservedEnergyKwh"]) == (0.5, 0.1)


async def two_jobs(world: Any) -> tuple[Any, Any]:
    """Six hours of `one` (two GPUs, one model without SM figures) and one of `two` in another queue."""
    one, two = await running(world, "one"), await running(world, "two", queue="small")
    begin_at = (int(now_s()) // 86400 - 1) * 86400.0 + 72_000  # yesterday, 20 o'clock
    hours = {"allocated_s": 3 * 3600.0, "begin_at": begin_at}
    other = {"uuid": "GPU-1", "model": "Other", "sm_active_s": None}
    reports = body(of(one, **hours), of(one, **hours, **other), of(two, allocated_s=3600.0, begin_at=begin_at))
    assert (await post(world, "usage", reports)).json()["taken"] == 3
    return one, two


async def test_usage_by_caller(world):
    one, _ = await two_jobs(world)
    answer = await world.call("GET", "/v1/usage?by=queue,project&since=3d")
    found = UsageReport.model_validate(answer.json())
    rows = {row.queue: row for row in found.rows}
    assert [(row.queue, row.project, row.gpu_hours, row.jobs) for row in found.rows] == [
        ("default", "alpha", 6.0, 1), ("small", "alpha", 1.0, 1)
    ]  # fmt: skip
    first = rows["default"]
    assert (first.sm_active_hours, first.efficiency, first.busy_hours) == (1.5, 0.5, 4.5), "of the GPUs that report it"
    assert first.energy_kwh == pytest.approx(6 * 0.3) and first.idle_hours == {"no_activity": 1.5}
    assert (first.cost, first.unpriced_hours, found.currency) == (6.0, 3.0, "EUR"), "3 h of Tiny at 2.00"
    (total,) = found.totals
    assert (total.gpu_hours, total.jobs, total.cost, total.simulated) == (7.0, 2, 8.0, False)
    by_job = (await world.call("GET", "/v1/usage?by=job&since=3d&queue=default")).json()
    assert [(row["job"], row["jobUid"]) for row in by_job["rows"]] == [("one", one.uid)]
    by_user = (await world.call("GET", "/v1/usage?by=user&since=3d")).json()["rows"]
    assert [row["user"] for row in by_user] == [world.name("alice")]
    by_model = (await world.call("GET", "/v1/usage?by=model&since=3d")).json()["rows"]
    assert [(row["model"], row["gpuHours"], row.get("smActiveHours")) for row in by_model] == [
        ("NVIDIA Tiny", 4.0, 2.0), ("Other", 3.0, None)
    ]  # fmt: skip


async def test_usage_by_time_and_its_bounds(world):
    await two_jobs(world)
    by_hour = (await world.call("GET", "/v1/usage?by=hour&since=3d")).json()["rows"]
    assert [(row["hour"][11:], row["gpuHours"]) for row in by_hour] == [
        ("20:00Z", 3.0),
        ("21:00Z", 2.0),
        ("22:00Z", 2.0),
    ]
    day = by_hour[0]["hour"][:10]
    limited = (await world.call("GET", "/v1/usage?by=hour&since=3d&limit=1")).json()
    assert limited["truncated"] and len(limited["rows"]) == 1 and limited["totals"][0]["gpuHours"] == 7.0
    one_hour = f"/v1/usage?by=day&since={day}T21:00Z&until={day}T22:00Z"
    assert [row["gpuHours"] for row in (await world.call("GET", one_hour)).json()["rows"]] == [2.0]
    assert (await world.call("GET", f"/v1/usage?since={day}&until={day}T12:00Z")).json()["rows"] == []
    wrongs = {
        "by=colour": "/by",
        "since=soon": "/since",
        "since=1h&until=2h": "/since",
        "since=0001-01-01T00:00:00%2B23:59": "/since",
        "since=99999999h": "/since",
        "until=9999-12-31T23:59:59-23:59": "/until",
        "until=9999-12-31": "/until",
        "limit=0": "/limit",
        "x=1": "/x",
    }
    for wrong, pointer in wrongs.items():
        answer = await world.call("GET", f"/v1/usage?{wrong}")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), wrong


async def test_usage_shows_only_what_the_token_may_list(world):
    await two_jobs(world)
    for who, projects in (("alice", ["alpha"]), ("reader", ["alpha"]), ("bob", []), ("admin", ["alpha"])):
        rows = (await world.call("GET", "/v1/usage?since=3d", who=who)).json()["rows"]
        assert [row["project"] for row in rows] == projects, who
    assert (await world.call("GET", "/v1/usage?project=alpha", who="bob")).status_code == 404
    assert (await world.call("GET", "/v1/usage?project=beta", who="bob")).json()["rows"] == []
    assert (await world.client.get("/v1/usage")).status_code == 401


async def test_simulated_gpus_are_never_summed_with_devices(world):
    one, _ = await two_jobs(world)
    simulated = of(one, 1, uuid="SIM-0", model="Tiny slot", simulated=True, allocated_s=3600.0)
    assert (await post(world, "usage", body(simulated))).json()["taken"] == 1
    found = (await world.call("GET", "/v1/usage?since=3d")).json()
    assert [(row["simulated"], row["gpuHours"], row.get("cost")) for row in found["rows"]] == [
        (False, 7.0, 8.0), (True, 1.0, None)
    ]  # fmt: skip
    assert len(found["totals"]) == 2


async def test_the_usage_of_a_job(world):
    one, _ = await two_jobs(world)
    path = "/v1/projects/alpha/jobs/one/usage"
    answer = await world.call("GET", path)
    found = JobUsageReport.model_validate(answer.json())
    assert (found.usage.gpu_seconds, found.cost, found.unpriced_hours, found.deleted) == (21_600.0, 6.0, 3.0, False)
    assert [(gpu.uuid, gpu.worker, gpu.usage.gpu_seconds) for gpu in found.gpus] == [
        ("GPU-0", 0, 10_800.0), ("GPU-1", 0, 10_800.0)
    ]  # fmt: skip
    assert [(one.attempt, one.usage.gpu_seconds) for one in found.attempts] == [(1, 21_600.0)] and found.note == ""
    tag = {"If-None-Match": answer.headers["etag"]}
    assert (await world.call("GET", path, headers=tag)).status_code == 304
    assert (await world.call("GET", f"{path}?attempt=2")).json()["gpus"] == []
    more = of(one, 2, allocated_s=10_900.0, begin_at=found.gpus[0].begin_at.timestamp())
    await post(world, "usage", body(more))
    assert (await world.call("GET", path, headers=tag)).status_code == 200
    await world.job("cpu")
    note = (await world.call("GET", "/v1/projects/alpha/jobs/cpu/usage")).json()["note"]
    assert note == "The job asked for no GPU; usage counts GPUs only."
    assert (await world.call("GET", "/v1/projects/alpha/jobs/nobody/usage")).status_code == 404


async def test_prices_are_a_metric_of_the_models_there_are(world):
    await two_jobs(world)
    metrics = (await world.call("GET", "/metrics", who="admin")).text
    prices = [line for line in metrics.splitlines() if line.startswith("stoker_gpu_hour_price{")]
    assert 'stoker_gpu_hour_price{model="NVIDIA Tiny"} 2.0' in prices
    assert not any("Other" in line for line in prices)


async def test_a_new_api_over_the_same_file_knows_the_jobs_usage(new_world):
    async with new_world() as world:
        transport = httpx.ASGITransport(world.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=world.base) as world.client:
            async with world.services.running():
                job = await running(world)
                await post(world, "usage", body(of(job, 2)))
            world.app = create_app(world.deps)
            world.client._transport = httpx.ASGITransport(world.app, raise_app_exceptions=False)
            async with world.services.running():
                async with asyncio.timeout(5):
                    while job.uid not in world.services.usage_board:
                        await asyncio.sleep(0.01)
                shown = (await world.call("GET", "/v1/projects/alpha/jobs/one")).json()["status"]["usage"]
                assert shown["gpuSeconds"] == 120.0
                since = world.services.usage_board.idle_since(job.uid, datetime.now(UTC) + timedelta(seconds=1))
                assert since is None
