"""A watch cache over a real API server that is restarted, and whose history is compacted away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request

import pytest

from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import Gone, NotFound, Unavailable
from tests.support.testbed.arguments import API, ETCD

NAMESPACE = "default"


def job(name):
    return TrainingJob.model_validate(
        {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"trainer": {"command": ["true"]}}}
    )


@contextlib.asynccontextmanager
async def store_of(plane, **how):
    clock = SystemClock()
    async with KubeClient.from_config(kubeconfig=plane.kubeconfig, clock=clock) as client:
        yield KubeStore(client, clock, **how)


@contextlib.asynccontextmanager
async def following(cache):
    task = asyncio.create_task(cache.run())
    try:
        async with asyncio.timeout(30):
            await cache.synced()
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def compact(plane):
    """Forget all of etcd's history up to now."""
    argv = json.loads((plane.folder / f"{ETCD}.part.json").read_text())["argv"]
    [url] = [arg.split("=", 1)[1] for arg in argv if arg.startswith("--listen-client-urls=")]

    def post(path, body):
        request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    revision = post("/v3/kv/range", {"key": "AA==", "count_only": True})["header"]["revision"]
    post("/v3/kv/compaction", {"revision": revision, "physical": True})


async def restart_api(plane):
    await asyncio.to_thread(plane.parts[API].kill)
    await asyncio.to_thread(plane.parts[API].start)
    await asyncio.to_thread(plane.wait_ready)


async def eventually(call, timeout_s=60.0):
    """The call's answer once the API server gives one again."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_caches_survive_restart_and_compaction(own_control_plane):
    plane = own_control_plane
    plane.install_crds()
    async with store_of(plane) as store:
        cache = WatchCache(store, JOBS, clock=SystemClock(), backoff_s=(0.1, 2.0))
        first = await store.create(JOBS, job("a"))
        await store.create(JOBS, job("b"))
        async with following(cache):
            assert {obj.metadata.name for obj in cache.values()} == {"a", "b"}
            since = cache.resource_version

            # The API server dies and comes back: the same cache goes on where it was.
            await restart_api(plane)
            later = await eventually(lambda: store.create(JOBS, job("c")))
            await cache.at_least(later.metadata.resource_version, timeout_s=30)
            assert {obj.metadata.name for obj in cache.values()} == {"a", "b", "c"}

        # Away while objects come and go, and their history is forgotten.
        changes = []
        cache.subscribe(lambda change: changes.append((change.key.name, change.old is None, change.new is None)))
        changes.clear()
        await store.delete(JOBS, Key(NAMESPACE, "b"))
        await store.delete(JOBS, Key(NAMESPACE, "a"))
        reborn = await store.create(JOBS, job("a"))
        token = (await store.list(JOBS, limit=1)).continue_token
        last = await store.patch_status(JOBS, later.key, {"message": "m"}, manager="operator")
        await asyncio.to_thread(compact, plane)
        await restart_api(plane)
        with pytest.raises(Gone):
            await eventually(lambda: anext(store.watch(JOBS, since=since)))
        with pytest.raises(Gone):
            await eventually(lambda: store.list(JOBS, limit=1, continue_token=token))
        async with following(cache):
            await cache.at_least(last.metadata.resource_version, timeout_s=30)
            assert sorted(changes) == [
                ("a", False, True), ("a", True, False), ("b", False, True), ("c", False, False)
            ]  # fmt: skip
            assert cache.by_uid(first.uid) is None and cache.by_uid(reborn.uid) == reborn
            with pytest.raises(NotFound):
                await store.get(JOBS, Key(NAMESPACE, "b"))


@pytest.mark.slow
async def test_streaming_and_paged_lists_say_the_same(control_plane, namespace):
    control_plane.install_crds()
    async with (
        store_of(control_plane) as streaming,
        store_of(control_plane, streaming_lists=False, page_limit=7) as paged,
    ):
        for number in range(20):
            made = job(f"j{number:02}")
            await streaming.create(
                JOBS, made.model_copy(update={"metadata": made.metadata.model_copy(update={"namespace": namespace})})
            )
        one, other = await streaming.snapshot(JOBS), await paged.snapshot(JOBS)
        assert streaming._streaming  # this server offers it
        mine = [obj for obj in one.items if obj.metadata.namespace == namespace]
        assert sorted(mine, key=lambda obj: obj.key) == [
            obj for obj in other.items if obj.metadata.namespace == namespace
        ]
        assert len(mine) == 20
