"""Who may enter a worker, and which worker: all refusals come before the handshake, as problem documents."""

from __future__ import annotations

from typing import Any

from stoker.spec.meta import Key
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import PODS
from stoker_api.routes import websocket_routes

from .session_world import enter, open_socket, refused, running

PATHS = [route.path for route in websocket_routes()]


def url(path: str) -> str:
    return path.replace("{project}", "alpha").replace("{name}", "one").replace("{session}", "0" * 32)


async def test_a_handshake_without_a_known_token_is_refused(served, caplog):
    """Over real connections; each kind of caller: test_permission_matrix.py."""
    for path in PATHS:
        for headers in ({}, served.auth("garbage"), {"Authorization": "Basic YTpi"}):
            status, body = await refused(open_socket(served, url(path), headers))
            assert (status, body["code"]) == (401, "Unauthorized"), path
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


async def test_a_route_that_declares_nothing_is_closed(served):
    async def forgotten(socket: Any) -> None:
        raise AssertionError("reached")

    forgotten.__annotations__["socket"] = __import__("fastapi").WebSocket
    served.app.add_api_websocket_route("/v1/forgotten", forgotten, dependencies=[])
    assert (await refused(open_socket(served, "/v1/forgotten", served.auth("admin"))))[0] == 403


async def test_hosts_and_origins_are_guarded(served):
    await running(served)
    for header, code in ({"Origin": "http://evil.example"}, "ForeignOrigin"), ({"Host": "evil.example"}, "ForeignHost"):
        path = "/v1/projects/alpha/jobs/one/exec"
        status, body = await refused(open_socket(served, path, {**served.auth(), **header}))
        assert (status, body["code"]) == (403, code)


async def test_what_is_no_websocket_says_so(served):
    status, body = await refused(open_socket(served, "/v1/nowhere", served.auth()))
    assert (status, body["code"]) == (404, "NotFound")
    answer = await served.call("GET", "/v1/projects/alpha/jobs/one/exec")
    assert (answer.status_code, answer.json()["code"]) == (426, "UpgradeRequired")
    assert (await served.call("POST", "/v1/whoami", headers={"Upgrade": "websocket", "Connection": "upgrade"})).is_error
    assert (await served.client.get("/livez")).status_code == 200


async def test_a_handshake_that_is_wrong(served):
    await running(served)
    for subprotocols in (None, ["v2.session.stoker.dev"]):
        status, body = await refused(enter(served, subprotocols=subprotocols))
        assert (status, body["code"]) == (400, "BadRequest"), subprotocols
    for query in ("?workr=1", "?worker=x", "?worker=1"):
        status, body = await refused(enter(served, query=query))
        assert (status, body["code"]) == (422, "InvalidFields"), query


async def test_only_a_running_worker_is_entered(served):
    job = await served.job("one")
    assert "is Queued" in await not_running(served)
    job = await served.status(job, phase="Starting", attempt=1)
    assert "has no worker 0 now" in await not_running(served)
    worker = await running(served, "two")
    await worker.phase("Pending")
    assert "Worker 0 of job 'two' is Pending; the job is Running" in await not_running(served, "two")
    await worker.phase("Failed")
    await served.status(worker.job, phase="Failed")
    assert "onFailure.hold" in await not_running(served, "two")


async def test_a_worker_that_is_stopping_is_not_entered(served):
    """On a node: one that is deleted before it got there soon counts as failed (Kubernetes' pod garbage collector)."""
    job = await served.status(await served.job("one"), phase="Running", attempt=1)
    await served.running_pod(job, "node-a", {"phase": "Running"})
    key = Key(job.metadata.namespace, "one-1-0")
    pod = await served.store.get(PODS, key)
    await served.pod_finalizers(pod, FINALIZER_OUTCOME)
    try:
        await served.store.delete(PODS, key)
        await served.deps.pods.wait_for(
            lambda pods: (there := pods.get(key)) is not None and there.metadata.deletion_timestamp, timeout_s=5
        )
        assert "is stopping" in await not_running(served)
    finally:
        await served.pod_finalizers(pod)


async def not_running(world: Any, name: str = "one") -> str:
    status, body = await refused(enter(world, name=name))
    assert (status, body["code"]) == (409, "NotRunning")
    return str(body["detail"])
