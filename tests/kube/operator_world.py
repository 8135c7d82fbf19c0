"""An operator beside a real API server, scheduler and controller manager; nodes are a test's own, their kubelets the
test bed's stand-in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.controller.jobs import PODS_BY_JOB, job_of
from stoker.controller.render_kube import ClusterSettings
from stoker.controller.renderers import ClusterRenderer
from stoker.kube.client import Call, KubeClient
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.life.step import Settings
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.store.clock import SystemClock
from stoker.store.port import NotFound
from tests.support.operator_world import OperatorWorld
from tests.support.testbed.accounts import operators_kubeconfig
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.kubelets import Kubelets

SETTINGS = Settings(
    start_timeout_s=30,
    blame_s=5,
    notice_after_s=0.2,
    unschedulable_s=1.0,
    image_timeout_s=1.0,
    node_lost_s=2.0,
    lost_margin_s=1.0,
)
IMAGES = ClusterSettings(control_image="stoker:test", trainer_image="trainer:test", node_lost_s=2.0)


class OnCluster(OperatorWorld):
    """The operator of one process, of every namespace."""

    def __init__(self, own: KubeStore, project: str = "") -> None:
        pods, self.others = cluster_pods(own, SystemClock(), {PODS_BY_JOB: job_of})
        super().__init__(own, project, SETTINGS, pods)
        self.caches.append(self.others)
        self.options = {"others": self.others, "renderer": ClusterRenderer(self.jobs, self.runtimes, IMAGES)}


class World(OnCluster):
    """One namespace, its nodes, an operator that can be taken away and put back."""

    def __init__(
        self, client: KubeClient, store: KubeStore, cluster: Cluster, project: str, operators: KubeStore, config: Path
    ) -> None:
        """`operators`, `config`: the operator's own store and kubeconfig, with the rights that the chart gives it."""
        super().__init__(operators, project)
        self.client, self.store, self.cluster, self.operators_config = client, store, cluster, config
        self.kubelet = Kubelets(store, self.pods)
        self.pods.subscribe(self.kubelet.watch)
        self._named: list[str] = []
        self._tokens: dict[str, str] = {}

    async def node(self, name: str, gpus: int = 2, pods: int = 50, **offered: int) -> str:
        """A node of this world, ready. Its name is the namespace's and `name`."""
        full = f"{self.project}-{name}"
        self._named.append(full)
        manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": full}}
        await self._send("POST", "/api/v1/nodes", manifest)
        room = {"cpu": "8", "memory": "32Gi", "pods": str(pods), "nvidia.com/gpu": str(gpus)}
        room |= {resource: str(count) for resource, count in offered.items()}
        await self._patch(f"/api/v1/nodes/{full}/status", {"status": {"capacity": room, "allocatable": room}})
        await self.ready(full)
        await self.until(lambda: (n := self.nodes.get(Key("", full))) is not None and n.status.ready, f"{full} ready")
        return full

    async def ready(self, node: str, value: str = "True") -> None:
        """What the node's kubelet says, or with `Unknown` what is said of it."""
        now = _text(datetime.now(UTC))
        condition = {"type": "Ready", "status": value, "reason": "Test", "message": "as the test says"}
        condition |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
        await self._patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}})

    async def remove_node(self, node: str) -> None:
        with suppress(NotFound):
            await self.client.request(Call("delete", "Node", node), "DELETE", f"/api/v1/nodes/{node}")

    async def evict(self, pod: Pod) -> None:
        """As kubectl drain does."""
        manifest = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.metadata.name}}
        await self._send("POST", f"/api/v1/namespaces/{self.project}/pods/{pod.metadata.name}/eviction", manifest)

    async def submit(self, name: str, **spec: Any) -> TrainingJob:
        """As kubectl does: only what is given, every default the server's and ours."""
        manifest = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "metadata": {"name": name},
            "spec": {"trainer": {"command": ["true"]}} | spec,
        }
        path = f"/apis/{JOBS.api_version}/namespaces/{self.project}/{JOBS.plural}"
        job = TrainingJob.model_validate_json(await self._send("POST", path, manifest))
        await self.jobs.at_least(job.metadata.resource_version, timeout_s=20)
        return job

    async def forge(self, name: str, node: str = "", gpus: int = 0, **metadata: Any) -> None:
        """A pod that no operator made, on a node or for no scheduler; a *restricted* namespace takes it."""
        container = {
            "name": "c",
            "image": "x",
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        security = {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"containers": [container], "securityContext": security, "schedulerName": "none"}
        meta = {"name": name, "namespace": self.project, **metadata}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": spec | ({"nodeName": node} if node else {}),
        }
        await self.kubectl("create", "-f", "-", stdin=json.dumps(body))

    async def kubectl(self, *args: str, stdin: str = "", timeout_s: float = 60.0) -> str:
        """Beside the operator, which runs on this test's own loop."""
        return await asyncio.to_thread(self.cluster.kubectl, *args, stdin=stdin, timeout_s=timeout_s)

    def token(self, account: str) -> str:
        """Of a service account of the namespace."""
        if account not in self._tokens:
            self._tokens[account] = self.cluster.kubectl("create", "token", account, "-n", self.project).strip()
        return self._tokens[account]

    def pods_of(self, name: str) -> list[Pod]:
        return sorted(self.pods.by_index(PODS_BY_JOB, Key(self.project, name)), key=lambda pod: pod.metadata.name)

    async def _send(self, method: str, path: str, manifest: dict[str, Any]) -> bytes:
        return await self.client.request(
            Call(method.lower(), manifest["kind"]), method, path, body=json.dumps(manifest).encode()
        )

    async def _patch(self, path: str, patch: dict[str, Any]) -> None:
        await self.client.request(
            Call("patch", "Node"),
            "PATCH",
            path,
            body=json.dumps(patch).encode(),
            content_type="application/merge-patch+json",
        )


@asynccontextmanager
async def operator_world(cluster: Cluster, project: str, *, operate: bool = True) -> AsyncIterator[World]:
    """A running world, with or without an operator of its own. At its end nothing of it is left to disturb the next."""
    clock = SystemClock()
    config = await asyncio.to_thread(operators_kubeconfig, cluster, project)
    async with (
        KubeClient.from_config(kubeconfig=cluster.kubeconfig, clock=clock) as client,
        KubeClient.from_config(kubeconfig=config, clock=clock) as own,
    ):
        world = World(client, KubeStore(client, clock), cluster, project, KubeStore(own, clock), config)
        async with world.following():
            if operate:
                world.start()
            try:
                yield world
            finally:
                try:
                    await _clear(world)
                finally:
                    await world.stop()
                    await world.kubelet.close()
                    for node in world._named:
                        await world.remove_node(node)


async def _clear(world: World) -> None:
    """The end of every test: delete the jobs; no pod must be left behind."""
    world.kubelet.silent.clear()
    for job in [job for job in world.jobs.values() if job.metadata.namespace == world.project]:
        with suppress(NotFound):
            await world.store.delete(JOBS, job.key, uid=job.uid)
    left = lambda: [p for p in world.pods.values() if p.metadata.namespace == world.project]  # noqa: E731
    await world.until(lambda: not left(), lambda: f"no pod left: {left()}", 60.0)


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
