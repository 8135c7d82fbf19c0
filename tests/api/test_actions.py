"""Get with ETags; cancel, suspend, resume, retry; explain; queues; nodes; metrics; health; the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.rest import QueueList
from stoker.spec.rest_nodes import NodeList
from stoker.store.cache import WatchCache
from stoker.store.port import Conflict
from stoker_api.app import bare_app
from stoker_api.jobs.change import Action, Changer

ONE = "/v1/projects/alpha/jobs/one"


async def act(world, verb, **headers):
    return await world.call("POST", f"{ONE}/{verb}", headers={name.replace("_", "-"): v for name, v in headers.items()})


async def test_etags(world):
    await world.job("one")
    first = await world.call("GET", ONE)
    tag = first.headers["etag"]
    for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        answer = await world.call("GET", ONE, headers={"If-None-Match": known})
        assert answer.status_code == 304 and answer.content == b"" and answer.headers["etag"] == tag
    done = await act(world, "suspend", If_Match=tag)
    assert done.status_code == 202 and done.headers["etag"] != tag
    assert (await world.call("GET", ONE, headers={"If-None-Match": tag})).status_code == 200
    stale = await act(world, "resume", If_Match=tag)
    assert stale.status_code == 412 and stale.headers["etag"] == done.headers["etag"]
    assert (await act(world, "resume", If_Match="*")).json()["spec"]["suspend"] is False


async def test_actions_are_idempotent(world):
    await world.job("one")
    for verb, field, value in (("suspend", "suspend", True), ("resume", "suspend", False), ("cancel", "cancel", True)):
        first, again = await act(world, verb), await act(world, verb)
        assert first.status_code == again.status_code == 202
        assert first.json()["spec"][field] is value and first.json() == again.json()
        assert (await world.call("GET", ONE)).json() == again.json(), "one reads one's own write"


async def test_retry_needs_an_end(world):
    job = await world.job("one")
    answer = await act(world, "retry")
    assert answer.status_code == 409 and answer.json()["code"] == "NotEnded"
    await act(world, "cancel")
    await world.status(job, phase="Cancelled", reason="Cancelled")
    first, again = await act(world, "retry"), await act(world, "retry")
    assert first.status_code == again.status_code == 202
    assert first.json()["spec"]["retryGeneration"] == again.json()["spec"]["retryGeneration"] == 1
    assert first.json()["spec"]["cancel"] is False
    assert (await act(world, "cancel")).json()["spec"]["cancel"] is True, "a retry under way can be cancelled"


async def test_what_has_ended_stays(world):
    job = await world.job("one")
    await world.status(job, phase="Succeeded", reason="Completed")
    for verb in ("cancel", "suspend", "resume"):
        answer = await act(world, verb)
        assert answer.status_code == 202 and answer.json()["metadata"]["generation"] == 1, verb
    assert (await act(world, "retry")).status_code == 409


async def test_an_action_meets_a_writer_in_between(world):
    """The cache is behind: another write has happened that it has not seen."""
    job = await world.job("one")
    update = world.deps.store.update
    calls = []

    async def racing(kind, obj):
        calls.append(obj)
        if len(calls) == 1:
            await world.store.patch_status(JOBS, job.key, {"message": "moved on"}, manager="operator")
        return await update(kind, obj)

    world.deps.store.update = racing
    answer = await act(world, "suspend")
    assert answer.status_code == 202 and answer.json()["spec"]["suspend"] is True
    assert answer.json()["status"]["message"] == "moved on" and len(calls) == 2


async def test_nothing_is_left_undone_because_the_cache_is_behind(world):
    """A job that seems to run already is resumed all the same where the store has it suspended."""
    job = await world.job("one")
    behind = WatchCache(world.deps.store, JOBS, clock=world.deps.clock)
    following = asyncio.create_task(behind.run())
    await behind.synced()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await act(world, "suspend")
    resuming = asyncio.create_task(Changer(world.deps.store, behind).apply(Action.RESUME, job.key, None))
    following = asyncio.create_task(behind.run())  # it sees its own write
    try:
        assert not (await resuming).spec.suspend
        assert (await world.store.get(JOBS, job.key)).spec.suspend is False
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_deletion_meets_a_writer_in_between(world):
    """What the cluster answers to a write that came between is no word of the job's absence."""
    await world.job("one")
    delete, calls = world.deps.store.delete, []

    async def racing(kind, key, **how):
        calls.append(key)
        if len(calls) == 1:
            raise Conflict("it was changed at the same time")
        await delete(kind, key, **how)

    world.deps.store.delete = racing
    assert (await world.call("DELETE", ONE)).status_code == 204 and len(calls) == 2


async def test_explain(world):
    await world.job("one", gpusPerWorker=2, cpu="1", memory="1Gi")
    await world.job("two", gpusPerWorker=2, cpu="1", memory="1Gi")
    answer = await world.call("GET", "/v1/projects/alpha/jobs/two/explain")
    assert answer.status_code == 200 and answer.json()["phase"] == "Queued", answer.text
    blockers = answer.json()["blockers"]
    assert blockers and blockers[0]["short"] > 0


async def test_queues(world):
    put = {"spec": {"limit": {"gpus": 4, "cpu": 2}}}
    made = await world.call("PUT", "/v1/queues/gold", who="admin", json=put)
    assert made.status_code == 201 and made.json()["spec"]["limit"] == {"gpus": 4, "cpu": "2"}
    assert made.json()["usage"] == {
        "gpus": 0,
        "cpuMilli": 0,
        "memoryBytes": 0,
        "running": 0,
        "pending": 0,
        "heldGpus": 0,
    }
    same = await world.call("PUT", "/v1/queues/gold", who="admin", json=put)
    assert same.status_code == 200 and same.headers["etag"] == made.headers["etag"]
    stale = {"If-Match": '"x.1"'}
    assert (await world.call("PUT", "/v1/queues/gold", who="admin", json=put, headers=stale)).status_code == 412
    for spec, pointer in (
        ({"limits": {}}, "/spec/limits"),
        ({"preemption": {"minRuntime": "3651d"}}, "/spec/preemption/minRuntime"),
    ):
        bad = await world.call("PUT", "/v1/queues/gold", who="admin", json={"spec": spec})
        assert bad.status_code == 422 and bad.json()["errors"][0]["pointer"] == pointer
    assert (await world.call("PUT", "/v1/queues/No", who="admin", json=put)).status_code == 422
    await world.job("one", queue="gold")
    listed = await world.call("GET", "/v1/queues")
    assert [queue.metadata.name for queue in QueueList.model_validate(listed.json()).items] == [
        "default",
        "gold",
        "small",
    ]
    assert listed.json()["items"][1]["usage"]["pending"] == 1
    used = await world.call("DELETE", "/v1/queues/gold", who="admin")
    message = "queue 'gold': 1 job that has not ended uses it: it takes no new jobs, and goes with the last of them"
    assert (used.status_code, used.json()) == (202, {"message": message})
    assert (await world.call("GET", "/v1/queues/gold")).json()["metadata"]["deletionTimestamp"]
    late = await world.submit(metadata={"name": "late"}, spec={"queue": "gold", "trainer": {"command": ["x"]}})
    assert (late.status_code, late.json()["detail"]) == (
        403,
        "Queue 'gold' is being deleted and takes no new jobs; choose another queue.",
    )
    await world.call("PUT", "/v1/queues/free", who="admin", json=put)
    low = await world.call("PUT", "/v1/queues/low", who="admin", json={"spec": {"parent": "free"}})
    assert "warning" not in low.headers
    for spec, says in (
        ({"parent": "low"}, "its parents form a cycle: low -> low; "),
        ({"parent": "none"}, "its parent 'none' does not exist; "),
        ({"parent": "free", "limit": {"gpuTypes": {"h1": 1}}}, "no GPU can be of type h1; "),
    ):
        low = await world.call("PUT", "/v1/queues/low", who="admin", json={"spec": spec})
        assert low.status_code == 200 and low.headers["warning"].startswith(f'299 - "{says}')
    await world.call("PUT", "/v1/queues/self", who="admin", json={"spec": {"parent": "self"}})
    assert (await world.call("DELETE", "/v1/queues/self", who="admin")).status_code == 204
    guaranteed = {"spec": {"parent": "free", "guarantee": {"gpus": 1}}}
    for name, spec in (("low", guaranteed), ("free", put)):
        both = await world.call("PUT", f"/v1/queues/{name}", who="admin", json=spec)
        assert both.headers["warning"].startswith('299 - "guarantees come to more than the 0 GPUs of the queue above')
    inner = await world.submit(metadata={"name": "inner"}, spec={"queue": "free", "trainer": {"command": ["x"]}})
    assert (inner.status_code, inner.json()["code"]) == (422, "NeverFits")
    assert "only those of the queues below it: low" in inner.json()["detail"]
    parent = await world.call("DELETE", "/v1/queues/free", who="admin")
    assert parent.status_code == 409 and "has queues below it: low" in parent.json()["detail"]
    assert (await world.call("DELETE", "/v1/queues/low", who="admin")).status_code == 204
    assert (await world.call("DELETE", "/v1/queues/free", who="admin")).status_code == 204
    assert (await world.call("GET", "/v1/queues/free")).status_code == 404
    assert (await world.call("DELETE", "/v1/queues/free", who="admin")).status_code == 404
    kept = await world.call("DELETE", "/v1/queues/default", who="admin")
    assert kept.status_code == 409 and kept.json()["code"] == "QueueProtected"


async def test_nodes_with_usage(world):
    job = await world.job("one", gpusPerWorker=1, cpu="2", memory="4Gi")
    await world.status(job, phase="Running", attempt=1, placement=[{"worker": 0, "node": "node-a"}])
    answer = await world.call("GET", "/v1/nodes")
    (node,) = NodeList.model_validate(answer.json()).items
    assert (node.usage.gpus, node.usage.cpu_milli, node.usage.memory_bytes) == (1, 2000, 4 << 30)
    usage = (await world.call("GET", "/v1/queues/default")).json()["usage"]
    assert usage == {"gpus": 1, "cpuMilli": 2000, "memoryBytes": 4 << 30, "running": 1, "pending": 0, "heldGpus": 0}


async def test_metrics_know_routes_and_queues_not_jobs(world):
    await world.job("secret-name")
    for number in range(2):  # as kubectl lets any user
        meta = ObjectMeta(name=f"any-{number}", namespace="alpha")
        spec = {"trainer": {"command": ["x"]}, "queue": f"made-up-{number}"}
        job = await world.store.create(JOBS, TrainingJob(metadata=meta, spec=spec))
    await world.deps.jobs.at_least(job.metadata.resource_version, timeout_s=5)
    await world.call("GET", "/v1/projects/alpha/jobs/secret-name")
    await world.client.get("/nowhere/secret-name")
    text = (await world.call("GET", "/metrics", who="admin")).text
    assert 'stoker_queue_jobs{phase="Queued",queue="default"} 1.0' in text
    assert 'stoker_queue_jobs{phase="Queued",queue=""} 2.0' in text and "made-up" not in text
    route = 'code="200",method="GET",route="/v1/projects/{project}/jobs/{name}"'
    assert f"stoker_api_request_seconds_count{{{route}}} 1.0" in text
    assert 'route="none"' in text and "secret-name" not in text and "alpha" not in text
    for label in ("job", "pod", "namespace", "instance", "container", "endpoint", "service"):
        assert f'{{{label}="' not in text and f',{label}="' not in text


async def test_health(world):
    assert (await world.client.get("/readyz")).text == "ok\n"
    assert (await world.client.get("/version")).json()["apiVersion"] == "stoker.dev/v1alpha1"
    world.deps.events._synced.clear()
    answer = await world.client.get("/readyz")
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"


def test_the_openapi_document_is_checked_in():
    kept = Path(__file__).parents[2] / "docs" / "openapi.json"
    assert json.loads(kept.read_text()) == json.loads(json.dumps(bare_app().openapi())), (
        "routes changed: python -m tools.generate.docs"
    )


def test_references_in_the_openapi_document_lead_somewhere():
    document = bare_app().openapi()
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    submit = document["paths"]["/v1/projects/{project}/jobs"]["post"]
    assert submit["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Submission")
