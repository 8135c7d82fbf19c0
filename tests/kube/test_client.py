"""Requests: errors, retries, the limit, credentials, the fence."""

from __future__ import annotations

import asyncio
import json
import random
import shutil

import certifi
import pytest

from stoker.kube.client import Call, KubeClient
from stoker.kube.limit import AdaptiveLimit, RequestLane
from stoker.kube.store import KubeStore
from stoker.spec.event import EVENTS, Event, ObjectRef
from stoker.spec.job import JOBS
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.pod import PODS, Pod
from stoker.store.clock import ManualClock, SystemClock
from stoker.store.port import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotLeader,
    NotPermitted,
    Unavailable,
)
from stoker.store.seam import Seam

from .fake_server import job, kubeconfig, refuses, says, serving, streams

GET = Call("get", "TrainingJob", "p/a")
ONCE = Call("create", "TrainingJob", "p/a", lane=RequestLane.WRITE, tries=1)


@pytest.fixture
async def server():
    async with serving() as server:
        yield server


@pytest.fixture
async def client(server, tmp_path):
    config = kubeconfig(tmp_path, server.url, token="t")
    async with KubeClient.from_config(kubeconfig=config, clock=SystemClock()) as client:
        yield client


@pytest.mark.parametrize(
    ("answer", "what", "says_"),
    [
        (refuses(404, "NotFound", "nothing", details={"name": "a", "kind": "x"}), NotFound, "nothing"),
        (refuses(404, "NotFound", "no such page"), Unavailable, "CRDs"),
        (refuses(409, "AlreadyExists", "is there"), AlreadyExists, "is there"),
        (refuses(409, "Conflict", "has been modified"), Conflict, "modified"),
        (refuses(410, "Expired", "too old"), Gone, "too old"),
        (refuses(400, "BadRequest", "what?"), Invalid, "what"),
        (
            refuses(
                422, "Invalid", "…", details={"causes": [{"field": "spec.workers", "message": "must be at least 1"}]}
            ),
            Invalid,
            "spec.workers: must be at least 1",
        ),
        (
            refuses(403, "Forbidden", 'User "s" cannot create resource "pods" in the namespace "p"'),
            NotPermitted,
            'cannot create resource "pods".*Role',
        ),
        (refuses(403, "Forbidden", 'jobs "a" is forbidden: exceeded quota: User "s" can not'), Forbidden, "quota"),
        (refuses(403, "Forbidden", 'jobs "a" is forbidden: not yet ready to handle request'), Unavailable, "not yet"),
        (refuses(401, "Unauthorized", "Unauthorized"), NotPermitted, "credentials"),
        (refuses(500, "InternalError", "boom"), Unavailable, "boom"),
        (says("not a status", status=502), Unavailable, "get TrainingJob p/a"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_answers_become_the_ports_errors(server, client, answer, what, says_):
    server.answer(answer)
    with pytest.raises(what, match=says_) as raised:
        await client.request(Call("get", "TrainingJob", "p/a", tries=1), "GET", "/x")
    assert type(raised.value) is what or (what is Unavailable and not isinstance(raised.value, Forbidden))


async def test_invalid_speaks_in_sentences(server, client):
    causes = [{"field": "spec.a", "message": "is wrong"}, {"field": "spec.b", "message": "too"}]
    server.answer(refuses(422, "Invalid", "both", details={"causes": causes}))
    with pytest.raises(Invalid) as refused:
        await client.request(ONCE, "POST", "/x", body=b"{}")
    assert refused.value.errors == ["spec.a: is wrong", "spec.b: too"]


async def test_a_read_is_tried_again_and_a_write_only_where_it_may(server, client):
    server.answer(refuses(500, "InternalError"), refuses(503, "ServiceUnavailable"), says({"ok": 1}))
    assert json.loads(await client.request(GET, "GET", "/x")) == {"ok": 1}
    assert len(server.asked) == 3
    server.script.clear()
    server.answer(refuses(500, "InternalError"))
    with pytest.raises(Unavailable):
        await client.request(ONCE, "POST", "/x", body=b"{}")
    assert len(server.asked) == 4


async def test_a_429_did_nothing_so_it_is_always_tried_again_when_asked(server, client):
    server.answer(refuses(429, "TooManyRequests", Retry_After="1"), says({"ok": 1}))
    await client.request(ONCE, "POST", "/x", body=b"{}")
    first, second = server.asked
    assert second.at - first.at >= 1.0 and first.body == second.body
    assert client.limit.refusals == 1 and client.limit.window == 8


async def test_a_server_in_trouble_says_when_to_come_back(server, client):
    server.answer(refuses(503, "ServiceUnavailable", Retry_After="1"), says({"ok": 1}))
    await client.request(GET, "GET", "/x")
    assert server.asked[1].at - server.asked[0].at >= 1.0


async def test_no_answer_is_unavailable_in_time(server, client):
    server.answer(streams(then="hang"))
    call = Call("get", "TrainingJob", "p/a", timeout_s=0.1, tries=2)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match=r"no answer within 0\.1 s"):
        await client.request(call, "GET", "/x")
    assert asyncio.get_running_loop().time() - began < 3 and len(server.asked) == 2


async def test_no_server_is_unavailable(tmp_path):
    config = kubeconfig(tmp_path, "http://127.0.0.1:9")
    async with KubeClient.from_config(kubeconfig=config, clock=SystemClock()) as client:
        with pytest.raises(Unavailable, match="get TrainingJob p/a"):
            await client.request(GET, "GET", "/x")


async def test_a_missing_kubeconfig_says_so(tmp_path):
    with pytest.raises(Unavailable, match=r"kubeconfig .*nowhere.*KUBECONFIG"):
        async with KubeClient.from_config(kubeconfig=tmp_path / "nowhere", clock=SystemClock()):
            pass


async def test_a_rotated_token_is_read_anew(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("old")
    config = kubeconfig(tmp_path, server.url, tokenFile=str(token))
    async with KubeClient.from_config(kubeconfig=config, clock=SystemClock()) as client:
        server.answer(says({}), refuses(401, "Unauthorized"), says({}))
        await client.request(GET, "GET", "/x")
        token.write_text("new")
        await client.request(GET, "GET", "/x")
        assert [asked.authorization for asked in server.asked] == ["Bearer old", "Bearer old", "Bearer new"]
        server.script.clear()
        server.answer(refuses(401, "Unauthorized"))
        with pytest.raises(Forbidden):  # the same token again would get the same answer
            await client.request(GET, "GET", "/x")
        assert len(server.asked) == 4


async def test_in_a_pod_the_token_is_read_each_minute(server, tmp_path, monkeypatch):
    from stoker.kube.auth import ApiServer

    host, port = server.url.removeprefix("http://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / "token").write_text("one")
    shutil.copy(certifi.where(), tmp_path / "ca.crt")
    clock = ManualClock()
    endpoint = ApiServer(clock, None, None, service_account=tmp_path)
    await endpoint.open()
    try:
        assert endpoint.url == f"https://{host}:{port}"
        assert await endpoint.headers() == {"Authorization": "Bearer one"}
        (tmp_path / "token").write_text("two\n")
        assert await endpoint.headers() == {"Authorization": "Bearer one"}
        clock.advance(61)
        assert await endpoint.headers() == {"Authorization": "Bearer two"}
    finally:
        await endpoint.close()


async def test_a_write_passes_the_fence_last_of_all(server, client):
    """It holds back what was let through before, and nothing of it arrives."""
    may = [True]

    def fence():
        if not may[0]:
            raise NotLeader("frozen meanwhile")

    server.answer(says({}))
    await client.request(ONCE, "POST", "/x", body=b"{}", fence=fence)
    slot = [await client.limit.enter(RequestLane.WRITE) for _ in range(client.limit.window)]
    writing = asyncio.create_task(client.request(ONCE, "POST", "/x", body=b"{}", fence=fence))
    await asyncio.sleep(0)
    may[0] = False
    for one in slot:
        client.limit.leave(one)
    with pytest.raises(NotLeader, match="frozen"):
        await writing
    may[0] = True
    await client.request(ONCE, "POST", "/x", body=b"{}", fence=fence)
    assert len(server.asked) == 2


async def test_reads_pass_no_fence(server, client):
    def fence():
        raise NotLeader("no")

    store = KubeStore(client, SystemClock(), fence=fence)
    server.answer(says(job("a", 5)))
    assert (await store.get(JOBS, Key("p", "a"))).metadata.name == "a"
    for write in (
        store.delete(JOBS, Key("p", "a")),
        store.patch_status(JOBS, Key("p", "a"), {"message": "m"}, manager="operator", resource_version="5"),
    ):
        with pytest.raises(NotLeader):
            await write
    assert len(server.asked) == 1


async def test_the_seam_fails_a_write_before_or_after(server, tmp_path):
    seam = Seam.parse("fail kube.delete:1; fail after kube.delete:2")
    config = kubeconfig(tmp_path, server.url)
    async with KubeClient.from_config(kubeconfig=config, clock=SystemClock(), seam=seam) as client:
        server.answer(says({}))
        call = Call("delete", "TrainingJob", "p/a", tries=1)
        for asked in (0, 1):
            with pytest.raises(Unavailable, match="injected"):
                await client.request(call, "DELETE", "/x", body=b"{}")
            assert len(server.asked) == asked


async def test_odd_names_never_change_the_path(server, client):
    store = KubeStore(client, SystemClock())
    server.answer(refuses(404, "NotFound", details={"name": "a", "kind": "x"}))
    for name in ("", ".", ".."):
        with pytest.raises(NotFound):
            await store.get(JOBS, Key("p", name))
    assert server.asked == []
    with pytest.raises(NotFound):
        await store.get(JOBS, Key("p", "a/../../secrets?x=1"))
    assert server.asked[0].path == "/apis/stoker.dev/v1alpha1/namespaces/p/trainingjobs/a/../../secrets?x=1"


async def test_a_pod_is_pinned_as_the_daemonset_controller_does(server, client):
    store = KubeStore(client, SystemClock())
    server.answer(says({"metadata": {"name": "x"}, "spec": {"containers": []}}))
    spec = {"nodeName": "n1", "containers": [{"image": "i"}]}
    await store.create(PODS, Pod.model_validate({"metadata": {"name": "x", "namespace": "p"}, "spec": spec}))
    sent = json.loads(server.asked[0].body)["spec"]
    assert "nodeName" not in sent
    [term] = sent["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}


async def test_an_event_has_all_that_kubernetes_wants(server, client):
    store = KubeStore(client, SystemClock())
    event = Event(
        metadata=ObjectMeta(name="e", namespace="p"),
        involved_object=ObjectRef(kind="TrainingJob", namespace="p", name="a", uid="u"),
        reason="Placed",
        first_timestamp=SystemClock().now(),
        reporting_component="stoker-operator",
    )
    server.answer(says(event.dump()))
    await store.create(EVENTS, event)
    sent = json.loads(server.asked[0].body)
    assert sent["involvedObject"] == {
        "apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingJob", "namespace": "p", "name": "a", "uid": "u"
    }  # fmt: skip
    assert sent["source"] == {"component": "stoker-operator"} and sent["count"] == 1 and sent["reportingInstance"]
    assert sent["lastTimestamp"] == sent["firstTimestamp"] and sent["firstTimestamp"].endswith("Z")


class TestLimit:
    def limit(self, clock=None, **how):
        return AdaptiveLimit(clock or ManualClock(), rng=random.Random(0), **how)

    async def test_it_grows_by_one_per_full_round_and_halves_once_per_bad_one(self):
        limit = self.limit(start=4, most=6)
        for _ in range(60):
            for slot in [await limit.enter(RequestLane.WRITE) for _ in range(limit.window)]:
                limit.leave(slot)
        assert limit.window == 6
        for slot in [await limit.enter(RequestLane.WRITE) for _ in range(6)]:
            limit.leave(slot, refused=True, retry_after_s=1)
        assert limit.window == 3 and limit.refusals == 6

    async def test_what_is_not_full_does_not_grow(self):
        limit = self.limit(start=4)
        for _ in range(50):
            limit.leave(await limit.enter(RequestLane.WRITE))
        assert limit.window == 4

    async def test_reads_do_not_stand_behind_thousands_of_writes(self):
        limit, order = self.limit(start=1), []
        held = await limit.enter(RequestLane.WRITE)

        async def one(lane):
            slot = await limit.enter(lane)
            order.append(lane)
            await asyncio.sleep(0)
            limit.leave(slot)

        writes = [asyncio.create_task(one(RequestLane.WRITE)) for _ in range(1000)]
        await asyncio.sleep(0)
        others = [asyncio.create_task(one(lane)) for lane in (RequestLane.READ, RequestLane.BACKGROUND)]
        await asyncio.sleep(0)
        assert (await limit.enter(RequestLane.URGENT)).lane is RequestLane.URGENT  # at once, whatever waits
        limit.leave(held)
        await asyncio.gather(*writes, *others)
        assert order.index(RequestLane.READ) <= 2 and order.index(RequestLane.BACKGROUND) <= 5

    async def test_at_the_floor_all_wait_as_asked(self):
        clock = ManualClock()
        limit = self.limit(clock, start=1)
        limit.leave(await limit.enter(RequestLane.WRITE), refused=True, retry_after_s=4)
        entering = asyncio.create_task(limit.enter(RequestLane.READ))
        await clock.wait_for_sleepers(1)
        assert not entering.done()
        clock.advance(5)
        slot = await entering
        limit.leave(slot)
        assert limit._under_way == 0

    async def test_who_goes_away_leaves_no_hole(self):
        limit = self.limit(start=1)
        held = await limit.enter(RequestLane.WRITE)
        waiting = [asyncio.create_task(limit.enter(RequestLane.WRITE)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        limit.leave(held)
        waiting[1].cancel()  # let in and cancelled in one go
        slot = await waiting[2]
        assert limit._under_way == 1 and limit.waiting == 0
        limit.leave(slot)
