"""Who someone is and what they may, asked of a real API server; and logs, of a scripted one."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from stoker.kube.client import Call, KubeClient
from stoker.kube.pod_logs import PodLogs
from stoker.kube.review import Reviewed, TokenReviewer
from stoker.spec.meta import Key
from stoker.store.clock import SystemClock
from stoker.store.port import Forbidden, NotFound, Unavailable
from tests.support.testbed.errors import Unavailable as BedUnavailable

from .fake_server import kubeconfig, refuses, serving, streams


async def projected_token(client, namespace, audience):
    """A token of the namespace's own service account, as a pod gets it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker"}}
    await client.request(Call("create", "ServiceAccount"), "POST", accounts, body=json.dumps(body).encode())
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [audience]}}
    raw = await client.request(
        Call("create", "TokenRequest"), "POST", f"{accounts}/worker/token", body=json.dumps(request).encode()
    )
    return json.loads(raw)["status"]["token"]


async def test_a_token_counts_for_its_audience_only(client, namespace):
    reviewer = TokenReviewer(client)
    token = await projected_token(client, namespace, "stoker")
    found = await reviewer.review(token, ["stoker"])
    assert found is not None and found.username == f"system:serviceaccount:{namespace}:worker"
    assert f"system:serviceaccounts:{namespace}" in found.groups and found.uid
    assert await reviewer.review(token) is None
    assert await reviewer.review(token, ["another"]) is None
    assert await reviewer.review("nonsense", ["stoker"]) is None


async def test_permissions_are_the_clusters_own(client, control_plane, namespace):
    control_plane.install_crds()
    reviewer, alice = TokenReviewer(client), Reviewed(username="alice", groups=("team-a", "system:authenticated"))
    ask = {"verb": "create", "group": "stoker.dev", "resource": "trainingjobs"}
    assert not await reviewer.allowed(alice, **ask, namespace=namespace)
    control_plane.kubectl(
        "create", "role", "jobs", "-n", namespace, "--verb=create", "--resource=trainingjobs.stoker.dev"
    )
    control_plane.kubectl("create", "rolebinding", "jobs", "-n", namespace, "--role=jobs", "--group=team-a")
    allowed = False
    for _ in range(100):  # the authorizer's own watch takes a moment
        if allowed := await reviewer.allowed(alice, **ask, namespace=namespace):
            break
    assert allowed
    assert not await reviewer.allowed(alice, **ask)
    assert not await reviewer.allowed(alice, **(ask | {"verb": "delete"}), namespace=namespace)
    admin = Reviewed(username="root", groups=("system:masters",), extra={"scopes": ("all",)})
    assert await reviewer.allowed(admin, **ask, namespace=namespace)
    assert await reviewer.allowed_path(admin, verb="get", path="/metrics")
    assert not await reviewer.allowed_path(alice, verb="get", path="/metrics")


async def test_who_may_not_ask_is_refused(control_plane):
    try:
        config = control_plane.kubeconfig_for("alice")
    except BedUnavailable as error:
        pytest.skip(str(error))
    async with KubeClient.from_config(kubeconfig=config, clock=SystemClock()) as client:
        with pytest.raises(Forbidden, match=r'cannot create resource "tokenreviews".*ClusterRole'):
            await TokenReviewer(client).review("x")


async def test_a_log_comes_as_it_is_written(tmp_path):
    async with serving() as server:
        config = kubeconfig(tmp_path, server.url)
        async with KubeClient.from_config(kubeconfig=config, clock=SystemClock()) as client:
            logs = PodLogs(client)
            server.answer(streams(b"one\n", b"tw", b"o\n"))
            since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
            pieces = [piece async for piece in logs.read(Key("p", "x"), since=since, tail_lines=9, follow=True)]
            assert b"".join(pieces) == b"one\ntwo\n"
            assert server.asked[0].path == "/api/v1/namespaces/p/pods/x/log"
            assert server.asked[0].query == {
                "container": "worker", "sinceTime": "2026-01-02T03:04:05Z", "tailLines": "9", "follow": "true"
            }  # fmt: skip
            server.script.clear()
            server.answer(refuses(400, "BadRequest", 'container "worker" in pod "x" is waiting to start'))
            with pytest.raises(Unavailable, match="waiting to start"):
                await anext(logs.read(Key("p", "x")))
            server.script.clear()
            server.answer(refuses(404, "NotFound", "pods x not found", details={"name": "x", "kind": "pods"}))
            with pytest.raises(NotFound):
                await anext(logs.read(Key("p", "x")))
