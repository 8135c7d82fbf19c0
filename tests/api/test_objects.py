"""Deleting jobs, training runtimes, and what one machine can't do."""

from __future__ import annotations

import pytest

from stoker.spec.job import JOBS, TrainingJobSpec
from stoker_api.jobs.checks import needs_cluster

ONE = "/v1/projects/alpha/jobs/one"


async def test_a_deleted_job_is_gone_at_once(world):
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    tag = (await world.call("GET", ONE)).headers["etag"]
    await world.status(job, message="moved on")
    stale = await world.call("DELETE", ONE, headers={"If-Match": tag})
    assert stale.status_code == 412 and stale.json()["code"] == "PreconditionFailed"
    tag = (await world.call("GET", ONE)).headers["etag"]
    done = await world.call("DELETE", ONE, headers={"If-Match": tag})
    assert (done.status_code, done.content) == (204, b"")
    assert not len(world.services.renderer), "the JSON of jobs that are gone is not kept"
    assert (await world.call("GET", ONE)).status_code == 404
    assert (await world.call("GET", "/v1/projects/alpha/jobs")).json()["items"] == []
    assert (await world.call("DELETE", ONE)).status_code == 404
    assert await world.names() == []
    again = await world.job("one")
    assert again.uid != job.uid and again.status.attempt == 0


async def test_a_key_is_free_again_with_its_job(world, body):
    first = await world.submit(**body("one"), key="k")
    assert (await world.call("DELETE", ONE)).status_code == 204
    second = await world.submit(**body("one"), key="k")
    assert second.status_code == 201 and "idempotency-replayed" not in second.headers
    assert second.json()["metadata"]["uid"] != first.json()["metadata"]["uid"]


async def test_followers_of_a_deleted_job_hear_its_end(served, follow):
    await served.job("one")
    stream = follow(served, f"{ONE}/events")
    assert (await anext(stream)).event == "job"
    assert (await served.call("DELETE", ONE)).status_code == 204
    assert [frame.event async for frame in stream][-1] == "end"


RUNTIME = "/v1/runtimes/rdma"


async def test_runtimes(world, body):
    missing = await world.call("GET", RUNTIME)
    assert (missing.status_code, missing.json()["code"]) == (404, "NotFound")
    put = {"spec": {"extendedResources": {"rdma/hca": 1}, "projects": ["beta"]}}
    made = await world.call("PUT", RUNTIME, who="admin", json=put)
    if world.deps.runtimes is None:
        assert (made.status_code, made.json()["code"]) == (422, "ClusterOnly")
        assert (await world.call("GET", "/v1/runtimes")).json() == {"items": []}
        assert (await world.call("DELETE", RUNTIME, who="admin")).status_code == 404
        return
    assert made.status_code == 201 and made.json()["spec"]["extendedResources"] == {"rdma/hca": 1}
    assert (await world.call("GET", RUNTIME)).json() == made.json()
    assert (await world.call("GET", "/v1/runtimes")).json() == {"items": [made.json()]}
    unknown = await world.submit(**body("one", runtime="rmda"))
    assert (unknown.status_code, unknown.json()["code"]) == (422, "UnknownRuntime")
    assert "there is: none yet" in unknown.json()["detail"], "rdma is not for this project"
    closed = await world.submit(**body("one", runtime="rdma"))
    assert (closed.status_code, closed.json()["code"]) == (403, "RuntimeForbidden")
    assert closed.json()["errors"][0]["pointer"] == "/spec/runtime"
    tag = {"If-Match": made.headers["etag"]}
    put["spec"] = {"security": {"addCapabilities": ["IPC_LOCK"]}}
    changed = await world.call("PUT", RUNTIME, who="admin", json=put, headers=tag)
    assert changed.status_code == 200 and "extendedResources" not in {
        name for name, value in changed.json()["spec"].items() if value
    }
    assert (await world.call("PUT", RUNTIME, who="admin", json=put, headers=tag)).status_code == 412
    job = await world.job("one", runtime="rdma")
    in_use = await world.call("DELETE", RUNTIME, who="admin")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "RuntimeInUse")
    await world.status(job, phase="Cancelled")
    assert (await world.call("DELETE", RUNTIME, who="admin")).status_code == 204
    assert (await world.call("GET", RUNTIME)).status_code == 404
    bad = await world.call("PUT", "/v1/runtimes/Bad_Name", who="admin", json=put)
    assert bad.json()["errors"][0]["pointer"] == "/name"
    bad = await world.call("PUT", RUNTIME, who="admin", json={"spec": {"tolerations": [{"efect": "NoSchedule"}]}})
    assert bad.status_code == 422 and bad.json()["errors"][0]["pointer"] == "/spec/tolerations/0/efect"


async def test_who_names_no_runtime_gets_the_projects(world, body):
    if world.deps.runtimes is None:
        return  # one machine has none
    put = {"spec": {"nodeSelector": {"disk": "none"}, "defaultFor": ["alpha"], "projects": ["beta"]}}
    made = await world.call("PUT", "/v1/runtimes/strict", who="admin", json=put)
    assert made.status_code == 201
    closed = await world.submit(**body("one"))
    assert (closed.status_code, closed.json()["code"]) == (403, "RuntimeForbidden")
    assert "Jobs that name no runtime get 'strict'" in closed.json()["detail"]
    assert (await world.submit(**body("two"), project="beta", who="bob")).status_code == 201, "theirs is built in"
    put["spec"].pop("projects")
    assert (await world.call("PUT", "/v1/runtimes/strict", who="admin", json=put)).status_code == 200
    assert (await world.submit(**body("one", cpu="1", memory="1Gi"))).status_code == 201

    async def summary() -> str:
        return (await world.call("GET", "/v1/projects/alpha/jobs/one/explain")).json()["summary"]

    assert "label disk=none" in await summary(), "the scheduler knows it too"
    assert (await world.call("DELETE", "/v1/runtimes/strict", who="admin")).status_code == 204
    assert "can start now" in await summary()


CLUSTER_SPEC = {
    "trainer": {"command": ["x"], "image": "registry.example/x:1"},
    "data": [{"name": "sets", "claim": "sets"}],
    "checkpoint": {"claim": "scratch"},
}
POINTERS = ["/spec/data/0/claim", "/spec/checkpoint/claim", "/spec/trainer/image"]


async def test_what_only_a_cluster_can_do(world):
    answer = await world.submit(spec=CLUSTER_SPEC)
    if world.deps.runtimes is not None:
        assert answer.status_code == 201
        return
    assert (answer.status_code, answer.json()["code"]) == (422, "ClusterOnly")
    assert [fault["pointer"] for fault in answer.json()["errors"]] == POINTERS
    assert all("leave it out" in fault["detail"] for fault in answer.json()["errors"][1:])
    assert "name a folder instead: path: /its/path" in answer.json()["errors"][0]["detail"]
    assert (await world.store.list(JOBS)).items == ()


@pytest.mark.parametrize(
    "given", [{"trainer": {"command": ["x"], "workingDir": "/y"}}, {"trainer": {"command": ["x"]}}]
)
def test_the_rest_needs_none(given):
    assert needs_cluster(TrainingJobSpec.model_validate(given)) == []
    named = needs_cluster(TrainingJobSpec.model_validate({**given, "runtime": "a"}))
    assert [fault.pointer for fault in named] == ["/spec/runtime"]


async def test_a_path_is_a_folder_of_this_machine_or_a_name_of_the_runtime(world, tmp_path):
    def data(path, **more):
        return {
            "spec": {
                "trainer": {"command": ["x"]},
                "data": [{"name": "ok", "path": good}, {"name": "sets", "path": path, **more}],
            }
        }

    (tmp_path / "a").mkdir()
    good = str(tmp_path) if world.deps.runtimes is None else "imagenet"
    if world.deps.runtimes is not None:
        offers = [{"name": "imagenet", "source": {"hostPath": {"path": "/srv/imagenet"}}}]
        put = {"spec": {"data": offers}}
        assert (await world.call("PUT", "/v1/runtimes/default", who="admin", json=put)).status_code in (200, 201)
        for bad in ("coco", str(tmp_path)):
            answer = await world.submit(**data(bad))
            assert answer.status_code == 422
            assert [one["pointer"] for one in answer.json()["errors"]] == ["/spec/data/1/path"]
            assert f"offers no data {bad!r}" in answer.text and "it offers: imagenet" in answer.text
        assert (await world.submit(**data("imagenet"))).status_code == 201
        return
    for bad, more, says in (
        ("big", {}, "is a name, which no runtime offers on one machine"),
        (str(tmp_path / "none"), {}, "there is no "),
        (str(tmp_path), {"subPath": "none"}, "there is no "),
    ):
        answer = await world.submit(**data(bad, **more))
        assert (answer.status_code, says in answer.text) == (422, True), answer.text
        assert [one["pointer"] for one in answer.json()["errors"]] == ["/spec/data/1/path"]
    assert (await world.submit(**data(str(tmp_path), subPath="a"))).status_code == 201
