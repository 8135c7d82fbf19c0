"""The cluster's own identity: tokens, rights and pods as a real API server knows them; how long answers are kept."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from stoker.spec.job import JOBS
from stoker.spec.names import ANNOTATION_SUBMITTER
from stoker.spec.pod import PODS
from stoker.store.clock import ManualClock
from stoker.store.port import Forbidden, Unavailable
from stoker_api.cluster_identity import (
    ALLOWED_S,
    DENIED_S,
    NODE_NAME,
    POD_UID,
    REVIEWED_S,
    UNKNOWN_S,
    ClusterIdentity,
)
from stoker_api.identity import CREATE_JOB, GET_JOB, GET_METRICS, IdentityUnavailable, seen_by, use_queue

only_cluster = pytest.mark.parametrize("new_world", ["kubernetes"], indirect=True)


@only_cluster
async def test_tokens_open_only_what_they_are_for(world):
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    pod = await world.pod(job)
    worker, other = await world.worker_token(pod), await world.worker_token(pod, "another")
    own = await world.worker_token(pod, "https://kubernetes.default.svc")  # a plain one of the pod's account
    said = {"podUid": pod.uid, "jobUid": job.uid, "project": "alpha", "jobName": "one", "attempt": 1, "worker": 0,
            "progress": {"at": 5.0}}  # fmt: skip

    async def report(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return (await world.client.post("/v1/report/progress", headers=headers, json=said)).status_code

    async def whoami(token: str) -> int:
        return (await world.client.get("/v1/whoami", headers={"Authorization": f"Bearer {token}"})).status_code

    assert [await report(token) for token in (worker, other, own, world.keys["alice"])] == [204, 401, 401, 401]
    assert [await whoami(token) for token in (worker, other, own)] == [401, 401, 200]
    assert await report("x" * 20_000) == await report("a b") == 401
    assert await whoami("no.such.token") == 401
    await world.store.delete(PODS, pod.key, grace_s=0)
    await world.deps.pods.wait_for(lambda pods: pods.get(pod.key) is None, timeout_s=5)
    # Here and in the API server (10 s) the token is still remembered: the pod is looked up each time.
    assert await report(worker) == 404


@only_cluster
async def test_the_submitter_is_the_reviewed_user(world, body):
    job = await world.job("one")
    assert job.metadata.annotations[ANNOTATION_SUBMITTER] == "system:serviceaccount:alpha:alice"
    assert (await world.store.get(JOBS, job.key)).metadata.annotations == job.metadata.annotations
    forged = {**body("two"), "metadata": {"name": "two", "annotations": {ANNOTATION_SUBMITTER: "root"}}}
    assert (await world.submit(**forged)).json()["code"] == "InvalidFields"


@only_cluster
async def test_rights_are_the_clusters(world, body):
    assert (await world.call("GET", "/v1/whoami", who="nobody")).json() == {
        "name": "system:serviceaccount:alpha:nobody", "role": "reader", "projects": [], "may": [], "grafana": ""
    }  # fmt: skip
    await world.job("one")
    assert (await world.call("GET", "/v1/projects/alpha/jobs/one", who="nobody")).status_code == 404
    assert (await world.call("GET", "/v1/projects/-/jobs", who="nobody")).json()["items"] == []
    for path in ("/v1/queues", "/v1/nodes", "/v1/runtimes", "/metrics"):
        assert (await world.call("GET", path, who="nobody")).status_code == 403, path
    # May create jobs, but spend only one queue.
    await world.hands.grant("nobody", "alpha", ("trainingjobs", ["get", "create"], []), ("queues", ["use"], ["small"]))
    world.deps.identity._rights._kept.clear()
    refused = await world.submit(**body("two"), who="nobody")
    assert (refused.status_code, refused.json()["code"]) == (403, "QueueForbidden")
    assert refused.json()["errors"] == [
        {"pointer": "/spec/queue", "detail": "needs the right to use queues default", "in": "body"}
    ]
    assert (await world.submit(**body("two", queue="small"), who="nobody")).status_code == 201
    assert (await world.call("POST", "/v1/projects/alpha/jobs/two/cancel", who="nobody")).status_code == 403
    assert (await world.submit(**body("three"), who="nobody", project="beta")).status_code == 404


@only_cluster
async def test_a_project_that_is_no_namespace(world, body):
    answer = await world.submit(**body("one"), project="gamma", who="admin")
    assert answer.status_code == 404 and "project 'gamma'" in answer.json()["detail"]


@dataclass(frozen=True)
class Who:
    username: str = "alice"
    uid: str = "1"
    groups: tuple[str, ...] = ("team",)
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class Reviews:
    """A cluster that counts what it is asked."""

    known: dict[str, Who] = field(default_factory=lambda: {"t": Who()})
    rights: set[tuple[str, str, str, str]] = field(default_factory=set)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    broken: Exception | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.go_on.set()

    async def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        await self.go_on.wait()
        if self.broken is not None:
            raise self.broken

    async def review(self, token: str, audiences: Any = ()) -> Who | None:
        await self._ask("review", token, tuple(audiences))
        return self.known.get(token)

    async def allowed(
        self, user: Any, *, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool:
        assert group == "stoker.dev"
        await self._ask("allowed", user.username, verb, resource, namespace, name)
        return (verb, resource, namespace, name) in self.rights

    async def allowed_path(self, user: Any, *, verb: str, path: str) -> bool:
        await self._ask("path", user.username, verb, path)
        return True


async def test_answers_are_kept_for_a_while():
    reviews, clock = Reviews(rights={("create", "trainingjobs", "p", "")}), ManualClock()
    identity = ClusterIdentity(reviews, clock)

    async def asked(awaitable: Any) -> tuple[Any, int]:
        before = len(reviews.asked)
        return await awaitable, len(reviews.asked) - before

    alice, cost = await asked(identity.authenticate("t"))
    assert (alice.name, cost) == ("alice", 1)
    assert await asked(identity.authenticate("t")) == (alice, 0)
    assert await asked(identity.authenticate("x")) == (None, 1)
    assert await asked(identity.may(alice, CREATE_JOB, "p")) == (True, 1)
    assert await asked(identity.may(alice, CREATE_JOB, "q")) == (False, 1)
    assert await asked(identity.may(alice, GET_METRICS)) == (True, 1)
    assert await asked(identity.may(alice, use_queue("a"), "p")) == (False, 1)
    reviews.known["x"], reviews.known["t"] = Who("bob"), Who("eve")
    reviews.rights = {("create", "trainingjobs", "q", "")}
    clock.advance(max(UNKNOWN_S, DENIED_S) + 0.1)
    bob, cost = await asked(identity.authenticate("x"))
    assert (bob.name, cost) == ("bob", 1), "a refusal holds only shortly"
    assert await asked(identity.may(alice, CREATE_JOB, "q")) == (True, 1)
    assert await asked(identity.may(alice, CREATE_JOB, "p")) == (True, 0)
    assert await asked(identity.may(bob, CREATE_JOB, "p")) == (False, 1), "each user's own"
    clock.advance(max(REVIEWED_S, ALLOWED_S))
    assert (await identity.authenticate("t")).name == "eve"
    assert await asked(identity.may(alice, CREATE_JOB, "p")) == (False, 1)


async def test_one_question_for_all_who_wait():
    reviews = Reviews()
    reviews.go_on.clear()
    identity = ClusterIdentity(reviews, ManualClock())
    first = asyncio.create_task(identity.authenticate("t"))
    rest = [asyncio.create_task(identity.authenticate("t")) for _ in range(9)]
    await asyncio.sleep(0)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    reviews.go_on.set()
    assert {found.name for found in await asyncio.gather(*rest)} == {"alice"}
    assert len(reviews.asked) == 1


@pytest.mark.parametrize("error", [Unavailable("down"), Forbidden("not allowed to review")])
async def test_what_can_not_be_asked_is_neither_yes_nor_no(error):
    reviews = Reviews(known={"t": Who(extra={POD_UID: ("u",)})}, rights={("get", "trainingjobs", "p", "")})
    identity = ClusterIdentity(reviews, ManualClock())
    alice = await identity.authenticate("t")
    assert alice is not None
    reviews.broken = error
    for question in (identity.authenticate("x"), identity.may(alice, GET_JOB, "p"), identity.worker("t")):
        with pytest.raises(IdentityUnavailable):
            await question
    assert await identity.authenticate("t") == alice, "what is known holds on"
    reviews.broken = None
    assert await identity.may(alice, GET_JOB, "p"), "a failure is not kept"
    assert await identity.worker("t") == "u"
    assert reviews.asked[-1] == ("review", "t", ("stoker",))


@pytest.mark.parametrize("uids", [(), ("a", "b")])
async def test_a_token_bound_to_no_pod_is_no_workers(uids):
    reviews = Reviews(known={"t": Who(extra={POD_UID: uids})})
    assert await ClusterIdentity(reviews, ManualClock()).worker("t") is None


ACCOUNT = "system:serviceaccount:stoker-exporter:exporter"


@pytest.mark.parametrize(
    ("who", "node"),
    [
        (Who(ACCOUNT, extra={NODE_NAME: ("node-a",)}), "node-a"),
        (Who("system:serviceaccount:alpha:exporter", extra={NODE_NAME: ("node-a",)}), None),
        (Who(ACCOUNT), None),
        (Who(ACCOUNT, extra={NODE_NAME: ("node-a", "node-b")}), None),
    ],
    ids=["an exporter's", "another account's", "bound to no node", "bound to two"],
)
async def test_an_exporter_is_an_account_and_a_node(who, node):
    reviews = Reviews(known={"t": who})
    assert await ClusterIdentity(reviews, ManualClock(), exporters=["stoker-exporter:exporter"]).exporter("t") == node
    assert reviews.asked == [("review", "t", ("stoker",))]
    assert await ClusterIdentity(reviews, ManualClock()).exporter("t") is None, "none is configured"


async def test_lists_ask_once_for_all_then_for_each():
    reviews = Reviews(rights={("list", "trainingjobs", "b", "")})
    identity = ClusterIdentity(reviews, ManualClock(), audiences=("stoker-api",))
    alice = await identity.authenticate("t")
    assert alice is not None and reviews.asked == [("review", "t", ("stoker-api",))]
    sees = await seen_by(identity, alice, ["a", "b", "a"])
    assert [project for project in "abc" if sees(project)] == ["b"]
    assert [what[4] for what in reviews.asked[1:]] == ["", "a", "b"]


async def test_a_quota_or_policy_is_reported_with_its_message(world, body, monkeypatch):
    async def refused(*_: Any) -> Any:
        raise Forbidden("exceeded quota: jobs, used: 5, limited: 5")

    monkeypatch.setattr(world.deps.store, "create", refused)
    answer = await world.submit(**body("one"))
    assert (answer.status_code, answer.json()["code"]) == (403, "Forbidden")
    assert "exceeded quota: jobs" in answer.json()["detail"] and not answer.json()["retryable"]


@only_cluster
async def test_a_job_that_can_not_be_read_is_answered_with_its_fault(world):
    spec = {"trainer": {"recipe": "image-classification", "config": {"nonsense": 1}}}
    bad = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": "bad"}, "spec": spec}
    path = f"/apis/{JOBS.api_version}/namespaces/alpha/{JOBS.plural}"
    await world.hands.send("POST", path, bad)
    try:
        answer = await world.call("GET", "/v1/projects/alpha/jobs/bad")
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidFields")
        assert "nonsense" in answer.json()["detail"] and not answer.json()["retryable"]
    finally:
        await world.hands.send("DELETE", f"{path}/bad")


@only_cluster
async def test_a_refusal_of_the_apis_own_account_is_no_403(world, body):
    """As while an API server starts and has not read its roles; here its binding is missing."""
    await world.job("allowed")  # alice's permissions are known from here on
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    binding = await world.hands.send("GET", f"{path}/api-test-stoker-api-api")
    kept = {key: binding[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": "api-test-stoker-api-api"}}
    await world.hands.send("DELETE", f"{path}/api-test-stoker-api-api")
    try:
        answers = [await world.submit(**body("one-0"))]
        while answers[-1].status_code == 201 and len(answers) < 500:  # the authorizer's own watch takes a moment
            answers.append(await world.submit(**body(f"one-{len(answers)}")))
        assert (answers[-1].status_code, answers[-1].json()["code"]) == (503, "Unavailable"), answers[-1].text
        assert answers[-1].headers["retry-after"] == "2" and "server's own account" in answers[-1].json()["detail"]
    finally:
        await world.hands.send("POST", path, kept)
        while (await world.submit(**body("again"))).status_code != 201:
            await asyncio.sleep(0.05)


async def test_the_api_answers_503_while_the_cluster_can_not_be_asked(world, monkeypatch):
    async def broken(*_: Any) -> Any:
        raise IdentityUnavailable("down")

    monkeypatch.setattr(world.deps.identity, "authenticate", broken)
    monkeypatch.setattr(world.deps.identity, "worker", broken)
    for method, path in (("GET", "/v1/whoami"), ("POST", "/v1/report/progress")):
        answer = await world.call(method, path)
        assert (answer.status_code, answer.json()["code"]) == (503, "Unavailable")
        assert answer.headers["retry-after"] == "2" and answer.json()["retryable"]
