"""A real API server with its controllers, operator and api on it as processes, as the soak uses and breaks them.

Nodes are not there: `testbed.kubelets` plays what becomes of pods. Operator and api reach the API server through a
forwarder whose connections can be cut. Called by `__main__`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.spec.names import LABEL_ATTEMPT, LABEL_JOB
from stoker.spec.pod import Pod
from stoker.store.clock import SystemClock
from tests.support.harness import free_port
from tests.support.testbed.accounts import apis_kubeconfig, operators_kubeconfig
from tests.support.testbed.control_plane import API, ETCD, ControlPlane, memory_folder
from tests.support.testbed.kubelets import Kubelets, Play
from tools.verify.soak.day import PROJECTS, Planned
from tools.verify.soak.meter import folder_mib
from tools.verify.soak.place import Harm, frozen

CRDS = Path(__file__).parents[3] / "helm" / "stoker" / "files" / "crds"
SYSTEM = "stoker"
NODES, GPUS = 24, 8
ARGS = {
    # Events and old revisions go within minutes, or nothing is steady on a day of 20 minutes.
    API: ["--event-ttl=2m", "--etcd-compaction-interval=1m"],
    # Its 20 calls a second are too few to collect what 8 jobs a second leave behind.
    "kube-controller-manager": ["--kube-api-qps=300", "--kube-api-burst=600", "--node-monitor-period=1s"],
    "kube-scheduler": ["--kube-api-qps=300", "--kube-api-burst=600"],
}


class Forwarder:
    """Passes bytes to the API server while it is ready, as a load balancer does; `cut` resets every connection.

    (An API server that starts answers 403 until it has read its roles.)
    """

    def __init__(self, port: int) -> None:
        self.ready = True
        self._to, self.port = port, 0
        self._ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        for end in tuple(self._ends):
            end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        try:
            if not self.ready:
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
            ends.add(far_writer)
            self._ends |= ends
            pumps = [asyncio.create_task(_pump(reader, far_writer)), asyncio.create_task(_pump(far_reader, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)  # half a connection is of no use to HTTP
            await _cancelled(pumps)
        except OSError:
            pass
        finally:
            self._ends -= ends
            for end in ends:
                end.transport.abort()

    async def close(self) -> None:
        await self.cut()
        if self._server is not None:
            self._server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


class Program:
    """One process of ours."""

    def __init__(self, name: str, log: Path, *command: str) -> None:
        self.name, self._log, self._command = name, log, (sys.executable, "-m", *command)
        self._wanted = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """0 where it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def start(self) -> None:
        self._wanted = True
        env = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "KUBE"))}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    @property
    def broke_down(self) -> bool:
        """It ended by itself, as an operator does that can't be sure to have stopped in time for the next leader."""
        return self._wanted and not self.pid

    async def end(self, *, kill: bool) -> None:
        self._wanted = False
        if self._process is not None and self._process.poll() is None:
            self._process.kill() if kill else self._process.terminate()
            await asyncio.to_thread(self._process.wait, 60)


class KubernetesCluster:
    most_gpus = GPUS

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self._stack = AsyncExitStack()
        self._jobs: dict[tuple[str, str], Planned] = {}
        self._port, self._operators_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.pages = ["/metrics", f"http://127.0.0.1:{self._operators_port}/metrics"]
        self.token = ""
        self._programs: list[Program] = []

    async def start(self) -> None:
        plane = self._plane = self._stack.enter_context(await asyncio.to_thread(ControlPlane, args=ARGS))
        await asyncio.to_thread(self._install)
        self._forwarders = {name: Forwarder(int(plane.url.rpartition(":")[2])) for name in ("operator", "api")}
        for forwarder in self._forwarders.values():
            await forwarder.start()
            self._stack.push_async_callback(forwarder.close)
        clock = SystemClock()
        client = await self._stack.enter_async_context(KubeClient.from_config(kubeconfig=plane.kubeconfig, clock=clock))
        store = KubeStore(client, clock)
        pods, others = cluster_pods(store, clock)
        self._kubelets = Kubelets(store, pods)
        self._kubelets.script = self._play
        pods.subscribe(self._kubelets.watch)
        tasks = [asyncio.create_task(cache.run()) for cache in (pods, others)]
        self._stack.push_async_callback(_cancelled, tasks)
        self._stack.push_async_callback(self._kubelets.close)
        self._programs = [self._operator(), self._api()]
        for program in self._programs:
            program.start()
            self._stack.push_async_callback(program.end, kill=True)
        await self._ready()
        self._stack.push_async_callback(_cancelled, [asyncio.create_task(self._restart())])

    def trainer(self, job: Planned) -> dict[str, Any]:
        self._jobs[job.project, job.name] = job
        return {"command": ["true"]}

    def processes(self) -> dict[str, int]:
        return {program.name: program.pid for program in self._programs if program.pid}

    def sizes(self) -> dict[str, float]:
        return {
            "api's data folder, MiB": folder_mib(self._folder / "data"),
            "etcd's database, MiB": folder_mib(memory_folder(self._plane.folder) / "member" / "snap"),
        }

    def harms(self) -> list[Harm]:
        found = [
            Harm("API server killed, started again", self._restart_api_server),
            Harm("etcd frozen", lambda: frozen(self._plane.parts[ETCD].pid, self._rng.uniform(1, 6))),
        ]
        for program in self._programs:
            name, freeze = program.name, partial(self._freeze, program)
            found += [
                Harm(f"SIGKILL of the {name}", partial(self._again, program, kill=True), kills=True),
                Harm(f"SIGTERM of the {name}", partial(self._again, program, kill=False), kills=True),
                Harm(f"{name} frozen", freeze),
                Harm(f"connections of the {name} cut", self._forwarders[name].cut),
            ]
        return found

    def ran(self) -> Counter[tuple[str, int, int]]:
        parts = (name.rsplit("-", 2) for name in self._kubelets.ran)
        return Counter((job, int(attempt), int(worker)) for job, attempt, worker in parts)

    async def left(self) -> list[str]:
        get = ("get", "trainingjobs,pods,services", "-o", "name")
        spaces = [await asyncio.to_thread(self._plane.kubectl, *get, "-n", project) for project in PROJECTS]
        found = [f"{project}: {line}" for project, text in zip(PROJECTS, spaces, strict=True) for line in text.split()]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {self.token}"}) as http:
            nodes = (await http.get(f"{self.url}/v1/nodes")).json()["items"]
        return found + [f"GPUs held on {node['metadata']['name']}" for node in nodes if node["usage"]["gpus"]]

    async def close(self) -> None:
        await self._stack.aclose()

    def _install(self) -> None:
        kubectl = self._plane.kubectl
        kubectl("apply", "--server-side", "-f", str(CRDS))
        kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=30s")
        for name in (SYSTEM, *PROJECTS):
            kubectl("create", "namespace", name)
        kubectl("create", "serviceaccount", "person", "-n", SYSTEM)
        kubectl(
            "create", "clusterrolebinding", "person", "--clusterrole=cluster-admin", f"--serviceaccount={SYSTEM}:person"
        )
        self.token = kubectl("create", "token", "person", "-n", SYSTEM, "--duration=6h").strip()
        nodes = {"apiVersion": "v1", "kind": "List", "items": [_node(f"node-{number:02}") for number in range(NODES)]}
        kubectl("create", "-f", "-", stdin=json.dumps(nodes))
        for name in PROJECTS:
            kubectl("wait", "--for=create", "--timeout=30s", "-n", name, "serviceaccount/default")

    def _operator(self) -> Program:
        config = _led(operators_kubeconfig(self._plane, SYSTEM), self._forwarders["operator"].port)
        flags = (
            f"--kubeconfig={config}",
            f"--namespace={SYSTEM}",
            "--image=stoker:soak",
            "--trainer-image=trainer:soak",
        )
        port = f"--port={self._operators_port}"
        return Program(
            "operator", self._folder / "operator.log", "stoker.controller.main", *flags, "--host=127.0.0.1", port
        )

    def _api(self) -> Program:
        config = _led(apis_kubeconfig(self._plane, SYSTEM), self._forwarders["api"].port)
        flags = (
            f"--kubeconfig={config}",
            f"--data={self._folder / 'data'}",
            "--host=127.0.0.1",
            f"--port={self._port}",
        )
        return Program("api", self._folder / "api.log", "stoker_api.main", *flags)

    async def _ready(self) -> None:
        async with asyncio.timeout(90), httpx.AsyncClient(timeout=5) as http:
            for url in (f"{self.url}/readyz", f"http://127.0.0.1:{self._operators_port}/readyz"):
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        if (await http.get(url)).status_code == 200:
                            break
                    if not all(program.pid for program in self._programs):
                        raise RuntimeError(f"operator or api ended: see {self._folder}/*.log")
                    await asyncio.sleep(0.2)

    def _play(self, pod: Pod) -> Play:
        labels = pod.metadata.labels
        job = self._jobs[pod.metadata.namespace, labels[LABEL_JOB]]
        return Play(code=3 if int(labels[LABEL_ATTEMPT]) <= job.fails else 0, lasts_s=job.lasts_s)

    async def _restart(self) -> None:
        """As a kubelet does."""
        while True:
            await asyncio.sleep(1)
            for program in self._programs:
                if program.broke_down:
                    print(f"the {program.name} ended by itself and is started again", flush=True)
                    program.start()

    async def _again(self, program: Program, *, kill: bool) -> None:
        await program.end(kill=kill)
        await asyncio.sleep(self._rng.uniform(0, 2))
        program.start()

    async def _freeze(self, program: Program) -> None:
        await frozen(program.pid, self._rng.uniform(1, 8))

    async def _restart_api_server(self) -> None:
        part = self._plane.parts[API]
        for forwarder in self._forwarders.values():
            forwarder.ready = False
        await asyncio.to_thread(part.kill)
        await asyncio.sleep(self._rng.uniform(0, 3))
        await asyncio.to_thread(part.start)
        await asyncio.to_thread(self._plane.wait_ready, 300)
        for forwarder in self._forwarders.values():
            forwarder.ready = True


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _led(kubeconfig: Path, port: int) -> Path:
    """The same through the forwarder on this port."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = kubeconfig.with_name(f"forwarded-{kubeconfig.name}")
    path.write_text(yaml.safe_dump(config))
    return path


def _node(name: str) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    room = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    ready = {"type": "Ready", "status": "True", "reason": "Soak", "message": "", "lastHeartbeatTime": now}
    status = {"capacity": room, "allocatable": room, "conditions": [ready | {"lastTransitionTime": now}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
