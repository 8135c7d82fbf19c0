"""The operator on a large cluster: 5,000 fake nodes of 8 GPUs, 10,000 jobs, a real API server.

    python -m tools.bench.cluster [--nodes 5000] [--jobs 10000]

Owns a control plane without controllers and scheduler: pods are made and pinned, no one runs them. Prints jobs admitted
per second (placement in status and pod created), and what each cost: CPU of API server, etcd and operator (which does
not depend on who else uses the cores), API writes by the API server's own counters. Then the operator is killed and
started again on the full cluster: seconds until it leads with all caches synced, and its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from stoker.kube.client import MERGE_PATCH, Call, KubeClient
from stoker.kube.limit import RequestLane
from stoker.kube.store import KubeStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.store.clock import SystemClock
from tests.support.harness import cpu_s, free_port, rss_mib, until
from tests.support.testbed import build
from tests.support.testbed.control_plane import API, ETCD, ControlPlane
from tools.bench.mimic import encoded
from tools.bench.record import record

PROJECT = "bench"
USER = "bench"
"""Who all are here: by a token, as an operator's service account is; a certificate is verified at each request."""
AT_ONCE = 64
GPUS = 8
Labels = Callable[[int], Mapping[str, str]]


class Bench:
    """One control plane, filled; and the operator on it."""

    def __init__(self, plane: ControlPlane, client: KubeClient, folder: Path) -> None:
        self._plane, self._client, self._folder = plane, client, folder
        self._port = free_port()
        self._operator: subprocess.Popen[bytes] | None = None

    async def fill_nodes(self, count: int, cores: int = 128, gpus: int = GPUS, labels: Labels = lambda _: {}) -> float:
        """Seconds for `count` nodes of so much: created, then their status."""
        began = time.monotonic()
        await at_once(self._node(number, cores, gpus, labels(number)) for number in range(count))
        return time.monotonic() - began

    async def fill_jobs(self, count: int, prefix: str) -> float:
        """Seconds for `count` jobs of one GPU each."""
        store = KubeStore(self._client, SystemClock())
        began = time.monotonic()
        await at_once(store.create(JOBS, new_job(f"{prefix}-{number}")) for number in range(count))
        return time.monotonic() - began

    async def count(self, path: str) -> int:
        """How many objects a collection holds, without having them sent."""
        answer = json.loads(await self._client.request(Call("count", path), "GET", path, query={"limit": "1"}))
        return len(answer["items"]) + int(answer["metadata"].get("remainingItemCount", 0))

    async def writes(self) -> Counter[str]:
        """The API server's own count of writes so far, by verb and resource."""
        text = (
            await self._client.request(
                Call("metrics", ""),
                "GET",
                "/metrics",
            )
        ).decode()
        found: Counter[str] = Counter()
        for labels, value in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", text, re.MULTILINE):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if label["verb"] in ("POST", "PUT", "PATCH", "DELETE", "APPLY"):
                name = label["resource"] + ("/" + label["subresource"] if label["subresource"] else "")
                found[f"{label['verb']} {name}"] += int(float(value))
        return found

    def start_operator(self, levels: Iterable[str] = ()) -> float:
        """Starts it; seconds until it leads and its caches hold everything. `levels`: of the topology."""
        began = time.monotonic()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with (self._folder / "operator.log").open("ab") as log:
            self._operator = subprocess.Popen(
                [
                    *(sys.executable, "-m", "stoker.controller.main"),
                    *operator_flags(self._plane.kubeconfig_for(USER), self._port),
                    *(f"--topology-level={level}" for level in levels),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        until(self._leads, "the operator leads", timeout_s=180, every_s=0.1)
        return time.monotonic() - began

    def kill_operator(self) -> None:
        if self._operator is not None:
            self._operator.kill()
            self._operator.wait()

    def rss_mib(self) -> float:
        assert self._operator is not None
        return rss_mib(self._operator.pid)

    def sync_s(self) -> float:
        """Seconds until all caches of the operator started last were in, by its own log."""
        return float(re.findall(r"in sync after ([0-9.]+) s", (self._folder / "operator.log").read_text())[-1])

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU so far, by program; the operator's from its start."""
        pids = {name: self._plane.parts[name].pid for name in (API, ETCD)}
        if self._operator is not None and self._operator.returncode is None:
            pids["operator"] = self._operator.pid
        return {name: cpu_s(pid) for name, pid in pids.items()}

    def check_operator(self) -> None:
        """Raises: RuntimeError with the end of its log where it has exited: what waits for it would wait for ever."""
        assert self._operator is not None
        if self._operator.poll() is not None:
            raise RuntimeError("the operator has exited: " + (self._folder / "operator.log").read_text()[-3000:])

    def _leads(self) -> bool:
        self.check_operator()
        return is_leading(self._plane, self._port)

    async def _node(self, number: int, cores: int, gpus: int, more: Mapping[str, str]) -> None:
        name = f"node-{number:05}"
        labels = {"kubernetes.io/hostname": name, **more}
        resources = {"cpu": str(cores), "memory": "2Ti", "pods": "110"}
        if gpus:
            labels |= {
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.memory": "81559",
                "nvidia.com/gpu.count": str(gpus),
                "nvidia.com/gpu.compute.major": "9",
                "nvidia.com/gpu.compute.minor": "0",
            }
            resources["nvidia.com/gpu"] = str(gpus)
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        status = {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        }
        write = Call("fill", "Node", lane=RequestLane.WRITE)
        await self._client.request(write, "POST", "/api/v1/nodes", body=encoded(body))
        # Admission gives new nodes a not-ready taint that the controllers, which are not here, take away.
        untainted = encoded({"spec": {"taints": None}})
        await self._client.request(write, "PATCH", f"/api/v1/nodes/{name}", body=untainted, content_type=MERGE_PATCH)
        path = f"/api/v1/nodes/{name}/status"
        await self._client.request(write, "PATCH", path, body=encoded({"status": status}), content_type=MERGE_PATCH)


def control_plane() -> ControlPlane:
    return ControlPlane(controllers=False, scheduler=False, users={USER: ("system:masters",)})


def prepare(plane: ControlPlane) -> None:
    """The definitions, and a namespace in which pods may be made though no controller gives it a service account."""
    plane.install_crds()
    plane.kubectl("create", "namespace", PROJECT)
    plane.kubectl("create", "serviceaccount", "default", "-n", PROJECT, check=False)
    plane.kubectl("create", "clusterrole", "metrics", "--verb=get", "--non-resource-url=/metrics")
    plane.kubectl(
        "create", "clusterrolebinding", "metrics", "--clusterrole=metrics", f"--serviceaccount={PROJECT}:default"
    )


def operator_flags(kubeconfig: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--namespace={PROJECT}",
        "--image=stoker.local/stoker:bench",
        "--trainer-image=stoker.local/trainer:bench",
        f"--port={port}",
        "--host=127.0.0.1",
        "--start-timeout=1h",  # no one runs the pods
    ]


def is_leading(plane: ControlPlane, port: int) -> bool:
    """Whether the operator's own metrics log that it leads (it does so once its caches are synced)."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=_scrapers_token(plane), timeout=5).text
    except httpx.HTTPError:
        return False
    return re.search(r"^stoker_operator_leader 1(\.0)?$", text, re.MULTILINE) is not None


@functools.cache
def _scrapers_token(plane: ControlPlane) -> dict[str, str]:
    token = plane.kubectl("create", "token", "default", "-n", PROJECT, "--duration=24h").strip()
    return {"Authorization": f"Bearer {token}"}


def new_job(name: str) -> TrainingJob:
    return TrainingJob.model_validate(
        {
            "metadata": {"name": name, "namespace": PROJECT},
            "spec": {
                "gpusPerWorker": 1,
                "cpu": "8",
                "memory": "64Gi",
                "trainer": {"command": ["python", "train.py"]},
            },
        }
    )


async def at_once(calls: Iterable[Awaitable[Any]]) -> None:
    """Await all of them, AT_ONCE at a time."""
    waiting = iter(calls)

    async def lane() -> None:
        for call in waiting:
            await call

    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))


async def bench(nodes: int, jobs: int, folder: Path, log: Callable[[str], None]) -> None:
    with control_plane() as plane:
        prepare(plane)
        async with KubeClient.from_config(kubeconfig=plane.kubeconfig_for(USER), clock=SystemClock()) as client:
            run = Bench(plane, client, folder)
            try:
                await measured(run, nodes, jobs, log)
            finally:
                run.kill_operator()


async def measured(run: Bench, nodes: int, jobs: int, log: Callable[[str], None]) -> None:
    pods = f"/api/v1/namespaces/{PROJECT}/pods"
    took = await run.fill_nodes(nodes)
    log(f"| {nodes} nodes made by the bench | {3 * nodes / took:.0f} writes/s |")
    took = await run.fill_jobs(jobs, "job")
    log(f"| {jobs} jobs made by the bench | {jobs / took:.0f} creates/s |")

    before = await run.writes()
    lead_s = run.start_operator()
    began, cpu_before = time.monotonic(), run.cpu_s()
    while await run.count(pods) < jobs:
        if time.monotonic() - began > 900:
            raise TimeoutError(f"{await run.count(pods)} of {jobs} pods after 900 s")
        run.check_operator()
        await asyncio.sleep(0.5)
    took = time.monotonic() - began
    admitted = jobs / took
    log(f"| started on {nodes} nodes and {jobs} waiting jobs: leads after | {lead_s:.1f} s |")
    log(f"| admitted (status written, pod made) | **{admitted:.0f} jobs/s** ({took:.1f} s) |")
    await asyncio.sleep(5)  # events are written behind the work
    made = await run.writes() - before
    log(f"| API writes per job | {sum(made.values()) / jobs:.2f}: {listed(made, jobs)} |")
    cpu = {name: 1000 * (used - cpu_before[name]) / jobs for name, used in run.cpu_s().items()}
    log(f"| CPU per job | {', '.join(f'{name} **{ms:.1f} ms**' for name, ms in cpu.items())} |")
    log(f"| operator's memory | {run.rss_mib():.0f} MiB |")
    found = {"nodes": nodes, "jobs": jobs, "leads_s": lead_s, "admitted_per_s": admitted, "operator_mib": run.rss_mib()}
    found |= {"writes_per_job": sum(made.values()) / jobs} | {f"{name}_ms_per_job": ms for name, ms in cpu.items()}

    run.kill_operator()
    lead_s = run.start_operator()
    log(f"| killed and started again on the full cluster ({jobs} pods): in sync after | **{run.sync_s():.1f} s** |")
    log(f"| and leads, the killed one's lease of 15 s being over, after | {lead_s:.1f} s |")
    await asyncio.sleep(10)
    record(**found, leads_again_s=lead_s, sync_again_s=run.sync_s(), operator_again_mib=run.rss_mib())
    log(f"| memory then | **{run.rss_mib():.0f} MiB** (10 s later, CPU {run.cpu_s()['operator']:.0f} s) |")


def listed(made: Counter[str], jobs: int) -> str:
    return ", ".join(f"{name} {count / jobs:.2f}" for name, count in made.most_common(6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=10_000)
    asked = parser.parse_args()
    build.build("control-plane")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Kubernetes 1.36\n")
    print("| what | figure |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        log = lambda line: print(line, flush=True)  # noqa: E731
        asyncio.run(bench(asked.nodes, asked.jobs, Path(folder), log))


if __name__ == "__main__":
    main()
