"""A real API server with its controllers, operator and api on it as processes, as the soak uses and breaks them.

Nodes are not there: `testbed.kubelets` plays what becomes of pods. Operator and api reach the API server through a
forwarder whose connections can be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.spec.names import LABEL_ATTEMPT, LABEL_JOB
from stoker.spec.pod import PODS, Pod
from stoker.store.clock import SystemClock
from stoker.store.port import StoreError
from tests.support.testbed.accounts import apis_kubeconfig, operators_kubeconfig
from tests.support.testbed.control_plane import API, ETCD, ControlPlane, free_ports, memory_folder
from tests.support.testbed.kubelets import Kubelets, Play
from tools.verify.soak.meter import folder_mib
from tools.verify.soak.plan import PROJECTS, Planned

SYSTEM = "stoker"
NODES, GPUS = 24, 8
ARGS = {
    # Events and old revisions go within minutes, or nothing is steady in 20 minutes.
    API: ["--event-ttl=2m", "--etcd-compaction-interval=1m"],
    # Their 20 and 50 calls a second are too few for 8 jobs a second.
    "kube-controller-manager": ["--kube-api-qps=300", "--kube-api-burst=600", "--node-monitor-period=1s"],
    "kube-scheduler": ["--kube-api-qps=300", "--kube-api-burst=600"],
}
OURS = ("operator", "api")


class Forwarder:
    """Passes bytes to the API server while it is ready, as a load balancer does; `cut` resets every connection."""

    def __init__(self, port: int) -> None:
        self.ready = True
        self._to = port
        self._ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Returns: its port."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        with contextlib.suppress(OSError):
            if self.ready:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
                ends.add(far_writer)
                self._ends |= ends
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        self._ends -= ends
        for end in ends:
            end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Half a connection is of no use to HTTP: the end of one half ends the other."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.transport.abort()


class KubernetesCluster:
    most_gpus = GPUS

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._data, self._rng = folder / "data", rng
        self._jobs: dict[tuple[str, str], Planned] = {}
        self._forwarders: dict[str, Forwarder] = {}
        self._ports = dict(zip(OURS, free_ports(2), strict=True))
        self.url = f"http://127.0.0.1:{self._ports['api']}"
        self.pages = ("/metrics", f"http://127.0.0.1:{self._ports['operator']}/metrics")
        self.disturbed: set[str] = set()
        self._down: set[str] = set()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        plane = self._plane = self._stack.enter_context(await asyncio.to_thread(ControlPlane, args=ARGS))
        await asyncio.to_thread(self._install)
        self.token = plane.token("admin")
        clock = SystemClock()
        client = await self._stack.enter_async_context(KubeClient.from_config(kubeconfig=plane.kubeconfig, clock=clock))
        self._store = KubeStore(client, clock)
        self._pods, others = cluster_pods(self._store, clock)
        self._kubelets = Kubelets(self._store, self._pods)
        self._kubelets.script = self._play
        self._pods.subscribe(self._kubelets.watch)
        more = f"--namespace={SYSTEM}", "--image=soak", "--trainer-image=soak"
        await self._run("operator", operators_kubeconfig(plane, SYSTEM), "stoker.controller.main", *more)
        await self._run("api", apis_kubeconfig(plane, SYSTEM), "stoker_api.main", f"--data={self._data}")
        self._tasks = [asyncio.create_task(work) for work in (self._pods.run(), others.run(), self._start_again())]

    def trainer(self, job: Planned) -> dict[str, Any]:
        self._jobs[job.project, job.name] = job
        return {"command": ["true"]}

    def processes(self) -> dict[str, int]:
        return {name: pid for name in OURS if (pid := self._plane.parts[name].pid)}

    def sizes(self) -> dict[str, float]:
        etcd = memory_folder(self._plane.folder) / "member" / "snap"
        return {"api's data folder, MiB": folder_mib(self._data), "etcd's database, MiB": folder_mib(etcd)}

    async def disturb(self, *, kills: bool) -> str:
        """Break something and wait until it is whole again. Returns: what."""
        name = self._rng.choice(OURS)
        part = self._plane.parts[name]
        if kills:
            how = self._rng.choice((part.kill, part.stop))
            self._down.add(name)
            await asyncio.to_thread(how)
            await asyncio.sleep(self._rng.uniform(0, 2))
            part.start()
            self._down.discard(name)
            return f"{name}: {how.__name__}"
        frozen = {f"{name} frozen": part, "etcd frozen": self._plane.parts[ETCD]}
        what = self._rng.choice((*frozen, f"connections of the {name} cut", "API server killed", "pods deleted"))
        if what == "API server killed":
            await self._restart_api_server()
        elif what == "pods deleted":
            await self._delete_pods()
        elif what in frozen:
            frozen[what].freeze()
            try:
                await asyncio.sleep(self._rng.uniform(1, 8))
            finally:
                frozen[what].thaw()
        else:
            self._forwarders[name].cut()
        return what

    def ran(self) -> Counter[tuple[str, int, int]]:
        """How often which worker of which attempt of which job was run."""
        parts = (name.rsplit("-", 2) for name in self._kubelets.ran)
        return Counter((job, int(attempt), int(worker)) for job, attempt, worker in parts)

    async def left(self) -> list[str]:
        """What of ended jobs is still there."""
        ours = "--field-selector=metadata.namespace!=default"
        return (await asyncio.to_thread(self._plane.kubectl, "get", "pods,services", "-A", "-o", "name", ours)).split()

    async def close(self) -> None:
        self._cut_off()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._kubelets.close(), return_exceptions=True)
        await self._stack.aclose()

    def _install(self) -> None:
        kubectl = self._plane.kubectl
        self._plane.install_crds()
        for name in (SYSTEM, *PROJECTS):
            kubectl("create", "namespace", name)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        room = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        ready = {"type": "Ready", "status": "True", "reason": "Soak", "message": "", "lastHeartbeatTime": now}
        status = {"capacity": room, "allocatable": room, "conditions": [ready | {"lastTransitionTime": now}]}
        node = {"apiVersion": "v1", "kind": "Node", "status": status}
        nodes = [node | {"metadata": {"name": f"node-{number:02}"}} for number in range(NODES)]
        kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        for name in PROJECTS:
            kubectl("wait", "--for=create", "--timeout=30s", "-n", name, "serviceaccount/default")

    async def _run(self, name: str, kubeconfig: Path, module: str, *flags: str) -> None:
        url = self._plane.url
        forwarder = self._forwarders[name] = Forwarder(int(url.rpartition(":")[2]))
        through = f"https://127.0.0.1:{await forwarder.start()}"
        kubeconfig.write_text(kubeconfig.read_text().replace(url, through))  # noqa: ASYNC240  two short files
        common = (f"--kubeconfig={kubeconfig}", "--host=127.0.0.1", f"--port={self._ports[name]}")
        self._plane.add_part(name, sys.executable, "-m", module, *common, *flags)

    def _play(self, pod: Pod) -> Play:
        labels = pod.metadata.labels
        job = self._jobs[pod.metadata.namespace, labels[LABEL_JOB]]
        return Play(code=3 if int(labels[LABEL_ATTEMPT]) <= job.fails else 0, lasts_s=job.lasts_s)

    async def _start_again(self) -> None:
        """What ends by itself, as an operator that can't be sure to have stopped in time for the next leader."""
        while True:
            await asyncio.sleep(1)
            for name in set(OURS) - self._down - self.processes().keys():
                print(f"the {name} ended by itself and is started again", flush=True)
                self._plane.parts[name].start()

    def _cut_off(self) -> None:
        for forwarder in self._forwarders.values():
            forwarder.ready = False
            forwarder.cut()

    async def _restart_api_server(self) -> None:
        """Nothing reaches it before it is ready: it answers 403 until it has read its roles."""
        part = self._plane.parts[API]
        self._cut_off()
        await asyncio.to_thread(part.kill)
        await asyncio.sleep(self._rng.uniform(0, 3))
        await asyncio.to_thread(part.start)
        await asyncio.to_thread(self._plane.wait_ready, 300)
        for forwarder in self._forwarders.values():
            forwarder.ready = True

    async def _delete_pods(self) -> None:
        """As people with kubectl do."""
        live = [pod for pod in self._pods.values() if LABEL_JOB in pod.metadata.labels and not pod.ended]
        for pod in self._rng.sample(live, min(3, len(live))):
            self.disturbed.add(pod.metadata.labels[LABEL_JOB])
            with contextlib.suppress(StoreError):
                await self._store.delete(PODS, pod.key, uid=pod.uid)
