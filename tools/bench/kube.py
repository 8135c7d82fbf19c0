"""Prints what the Kubernetes adapter costs on this machine. Nothing is asserted; docstrings quote a run of it.

python -m tools.bench.kube [pods, default 10000]: decoding against standard json and the client library's typed models,
then against a control plane of its own: create, list, watch and status writes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import platform
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from stoker.kube.client import KubeClient
from stoker.kube.codec import Codec
from stoker.kube.store import KubeStore
from stoker.kube.views import CLUSTER_PODS
from stoker.kube.wire import wire
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Kind
from stoker.spec.pod import PODS, Pod
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from tests.support.testbed.control_plane import ControlPlane
from tools.bench.record import record

SAMPLE = 1000


def pod(number: int) -> dict[str, Any]:
    """A running pod of two containers as the API server shows it, managedFields and all: 6 KB."""
    name, at = f"job-{number:05}-1-0", "2026-01-01T00:00:00Z"
    env = [{"name": f"STOKER_VARIABLE_{n}", "value": f"value {n} of {name}"} for n in range(20)]
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    fields = {f"k:{n}": {".": {}, "f:name": {}, "f:value": {}} for n in range(20)}
    state = {"running": {"startedAt": at}}
    return {
        "metadata": {
            "name": name,
            "namespace": "bench",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number + 1),
            "creationTimestamp": at,
            "labels": {f"stoker.dev/{n}": name for n in ("job", "job-uid", "attempt", "worker", "queue")},
            "finalizers": ["stoker.dev/outcome"],
            "ownerReferences": [
                {
                    "apiVersion": "stoker.dev/v1alpha1",
                    "kind": "TrainingJob",
                    "name": name,
                    "uid": "u",
                    "controller": True,
                }
            ],
            "managedFields": [
                {"manager": m, "operation": "Update", "apiVersion": "v1", "time": at, "fieldsV1": {"f:spec": fields}}
                for m in ("stoker", "kubelet")
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 5000:04}",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "worker",
                    "image": "registry.example/trainer:1",
                    "command": ["python", "train.py"],
                    "env": env,
                    "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "8", "memory": "64Gi"}},
                    "volumeMounts": [{"name": n, "mountPath": f"/{n}"} for n in ("stoker", "checkpoints", "tmp")],
                }
            ],
            "volumes": [{"name": n, "emptyDir": {}} for n in ("stoker", "checkpoints", "tmp")],
        },
        "status": {
            "phase": "Running",
            "startTime": at,
            "conditions": [{"type": c, "status": "True", "lastTransitionTime": at} for c in conditions],
            "containerStatuses": [
                {
                    "name": "worker",
                    "state": state,
                    "ready": True,
                    "restartCount": 0,
                    "image": "i",
                    "imageID": "sha256:0",
                }
            ],
        },
    }


def cpu_ms(work: Callable[[], Any], times: int = 3) -> float:
    """The best of a few runs. Units: ms of CPU."""
    best = float("inf")
    for _ in range(times):
        gc.collect()
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best * 1e3


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bench_decoding() -> None:
    items = [pod(number) for number in range(SAMPLE)]
    page = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": items}).encode()
    lines = [
        b'{"type":"MODIFIED","object":' + json.dumps(item, separators=(",", ":")).encode() + b"}" for item in items
    ]
    codec = Codec(wire(PODS))
    print(f"{SAMPLE} pods, {len(page) / 1e6:.1f} MB:")
    for name, work in (
        ("our page", lambda: codec.page(page)),
        ("our watch lines", lambda: [codec.line(line) for line in lines]),
        ("the same from the watch of all pods", lambda: Codec(wire(CLUSTER_PODS)).page(page)),
        ("standard json, to dictionaries", lambda: json.loads(page)),
        ("kubernetes typed models", lambda: _typed(page)),
    ):
        took_ms = cpu_ms(work, 1 if "typed" in name else 5)
        record(what=f"decode, {name}", us_each=took_ms / SAMPLE * 1e3)
        print(f"  {name:<34} {took_ms:8.1f} ms   {took_ms / SAMPLE * 1e3:7.1f} µs each")


def _typed(page: bytes) -> Any:
    from kubernetes.client import V1PodList

    return V1PodList.from_dict(json.loads(page))


async def at_once(calls: Iterable[Callable[[], Awaitable[Any]]], callers: int) -> tuple[float, float, int]:
    """(wall seconds, CPU seconds of this process, calls)."""
    left, count = iter(calls), 0

    async def caller() -> None:
        nonlocal count
        for call in left:
            await call()
            count += 1

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - wall, time.process_time() - cpu, count


def rate(name: str, wall: float, cpu: float, count: int) -> None:
    record(what=name, per_s=count / wall, cpu_us_each=cpu / count * 1e6)
    print(f"{name:<40} {count / wall:8.0f}/s   {cpu / count * 1e6:6.0f} µs of our CPU each")


async def bench_server(plane: ControlPlane, pods: int) -> None:
    clock = SystemClock()
    plane.kubectl("create", "namespace", "bench")
    plane.kubectl("create", "serviceaccount", "default", "-n", "bench", check=False)
    plane.kubectl("apply", "--server-side", "-f", "helm/stoker/files/crds")
    plane.kubectl("wait", "--for=condition=Established", "-f", "helm/stoker/files/crds", "--timeout=30s")
    async with KubeClient.from_config(kubeconfig=plane.kubeconfig, clock=clock) as client:
        store = KubeStore(client, clock)
        cache = WatchCache(store, PODS, clock=clock)
        following = asyncio.create_task(cache.run())
        await cache.synced()

        def create(number: int) -> Callable[[], Awaitable[Any]]:
            whole = pod(number)
            whole["spec"]["containers"][0].pop("volumeMounts")
            whole["metadata"].pop("ownerReferences")
            whole["spec"]["nodeName"] = "nowhere"
            return lambda: store.create(PODS, Pod.model_validate(whole))

        result = await at_once((create(number) for number in range(pods)), 256)
        rate("create a pod", *result)
        print(f"{'':<40} window at the end {client.limit.window}, refusals {client.limit.refusals}")
        began = time.perf_counter()
        await cache.wait_for(lambda cache: len(cache) >= pods, timeout_s=60)
        print(f"{'the cache had them all':<40} {(time.perf_counter() - began) * 1e3:8.0f} ms after the last create")
        following.cancel()

        await bench_lists(client, PODS, pods)

        def job(number: int) -> TrainingJob:
            return TrainingJob.model_validate(
                {
                    "metadata": {"name": f"j{number:05}", "namespace": "bench"},
                    "spec": {"trainer": {"command": ["true"]}, "gpusPerWorker": 1},
                }
            )

        jobs = [job(number) for number in range(2000)]
        rate("create a job", *await at_once([lambda j=j: store.create(JOBS, j) for j in jobs], 64))  # type: ignore[misc]
        news = WatchCache(store, JOBS, clock=clock)
        following = asyncio.create_task(news.run())
        await news.synced()

        def patch(one: TrainingJob, text: str) -> Callable[[], Awaitable[Any]]:
            return lambda: store.patch_status(JOBS, one.key, {"message": text}, manager="operator")

        rate("patch a job's status, cache following", *await at_once([patch(one, "m") for one in jobs], 64))
        rate("the same from one caller", *await at_once([patch(one, "n") for one in jobs[:300]], 1))
        rate("get a job", *await at_once([lambda j=j: store.get(JOBS, j.key) for j in jobs], 64))  # type: ignore[misc]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def bench_lists(client: KubeClient, kind: Kind[Any], count: int) -> None:
    for name, how in (("streaming", {}), ("in pages of 500", {"streaming_lists": False})):
        store = KubeStore(client, SystemClock(), **how)  # type: ignore[arg-type]
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        page = await store.snapshot(kind)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert len(page.items) == count, len(page.items)
        record(what=f"list of pods, {name}", pods=count, wall_ms=wall * 1e3, cpu_ms=cpu * 1e3)
        print(f"list of {count} pods, {name:<20} {wall * 1e3:8.0f} ms wall   {cpu * 1e3:6.0f} ms of our CPU")
    began, events = time.perf_counter(), 0
    watch = KubeStore(client, SystemClock()).watch(kind, since="1")
    cpu = time.process_time()
    try:
        async with asyncio.timeout(60):
            while events < count:
                await anext(watch)
                events += 1
    finally:
        watch.close()
    rate("watch, replayed from the beginning", time.perf_counter() - began, time.process_time() - cpu, events)


def main() -> None:
    pods = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"Python {platform.python_version()}, {platform.machine()}")
    bench_decoding()
    gc.freeze()
    with ControlPlane(controllers=False, scheduler=False) as plane:
        asyncio.run(bench_server(plane, pods))
    print(f"most memory in use: {rss_mib():.0f} MiB")


if __name__ == "__main__":
    main()
