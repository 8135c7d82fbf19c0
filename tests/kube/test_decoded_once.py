"""What is written comes back twice, as the answer and by the watch; it is decoded once."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TypeVar

from stoker.kube.client import KubeClient
from stoker.kube.codec import Codec, Recent
from stoker.kube.store import KubeStore
from stoker.kube.views import CLUSTER_PODS
from stoker.kube.wire import wire
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import ObjectMeta, Resource
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.store.clock import SystemClock
from stoker.store.port import Watching
from tests.support.testbed.cluster import Cluster

from .fake_server import event, job

T = TypeVar("T", bound=Resource)


def _bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def test_whichever_comes_first_is_what_the_second_gives():
    codec = Codec(wire(JOBS))
    answer = codec.one(_bytes(job("a", 5)) + b"\n")
    assert codec.line(_bytes(event("MODIFIED", job("a", 5)))).object is answer
    by_watch = codec.line(_bytes(event("MODIFIED", job("a", 6)))).object
    assert codec.one(_bytes(job("a", 6)) + b"\n") is by_watch


def test_only_the_same_bytes_are_the_same_object():
    codec = Codec(wire(JOBS))
    assert codec.one(_bytes(job("a", 5))).spec.priority == 0
    assert codec.line(_bytes(event("MODIFIED", job("a", 5, priority=3)))).object.spec.priority == 3


def test_what_comes_once_is_not_kept_for_long():
    made, recent = [], Recent()
    for number in [0, *range(1, 1000), 0]:
        recent.decoded(b"%d" % number, lambda: made.append(1) or object())
    assert len(made) == 1001
    for _ in range(2):
        recent.decoded(b"x" * 1_000_000, lambda: made.append(1) or object())
    assert len(made) == 1003


async def test_a_real_server_says_the_same_bytes_twice(operator_plane: Cluster) -> None:
    """Jobs and pods, the pods by the watch of all of them."""
    clock, namespace = SystemClock(), f"t{uuid.uuid4().hex[:8]}"
    operator_plane.kubectl("create", "namespace", namespace)
    operator_plane.kubectl("create", "serviceaccount", "default", "-n", namespace, check=False)  # if we are first
    async with KubeClient.from_config(kubeconfig=operator_plane.kubeconfig, clock=clock) as client:
        store = KubeStore(client, clock)
        since = [(await store.snapshot(kind)).resource_version for kind in (JOBS, CLUSTER_PODS)]
        of_jobs, of_pods = store.watch(JOBS, since=since[0]), store.watch(CLUSTER_PODS, since=since[1])
        body = job("a", 0, env={"X": "<é&>\u2028"}) | {"metadata": {"name": "a", "namespace": namespace}}
        made = await store.create(JOBS, TrainingJob.model_validate(body))
        patched = await store.patch_status(JOBS, made.key, {"message": "<é&>"}, manager="operator")
        meta = ObjectMeta(name="p", namespace=namespace, finalizers=(FINALIZER_OUTCOME,))
        pod = await store.create(PODS, Pod(metadata=meta, spec=PodSpec(containers=(Container(image="i"),))))
        async with asyncio.timeout(10):
            assert await _next_of(of_jobs, namespace) is made
            assert await _next_of(of_jobs, namespace) is patched
            assert await _next_of(of_pods, namespace) is pod


async def _next_of(watch: Watching[T], namespace: str) -> T:
    while (obj := (await anext(watch)).object) is None or obj.metadata.namespace != namespace:
        pass
    return obj
