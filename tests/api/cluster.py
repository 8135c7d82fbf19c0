"""The api's world on a real Kubernetes: projects `alpha` and `beta` are namespaces, people are service accounts.

The api runs as an account of its own with just the permissions that the chart gives it; the tests play operator and
kubelet as the cluster's administrator. Called by conftest.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from stoker.controller.render import owned_by
from stoker.kube.client import MERGE_PATCH, Call, KubeClient
from stoker.kube.project_secrets import KubeSecrets
from stoker.kube.review import TokenReviewer
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.spec.gpu_health import HEALTH
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.queue import QUEUES, released
from stoker.spec.runtime import RUNTIMES
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import NotFound
from stoker_api.cluster_identity import ClusterIdentity
from stoker_api.code.store import CodeStore
from stoker_api.curves.store import CurveStore
from stoker_api.deps import Deps, caches
from stoker_api.ports import LogSource
from stoker_api.streams.sse import StreamSettings
from stoker_api.usage.prices import Prices
from stoker_api.usage.store import UsageStore
from tests.support import chart_rights
from tests.support.testbed.cluster import Cluster

EXPORTER = "exporter"
PEOPLE = {"alice": "alpha", "bob": "beta", "reader": "alpha", "admin": "alpha", "nobody": "alpha"}
API = "stoker-api"
NODE = "node-a"
GRANTED = "api-test-granted"


def _role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"api-test-{name}"},
        "rules": list(rules),
    }


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _binding(role: str, who: str, namespace: str | None = None, *, ours: bool = True) -> dict[str, Any]:
    """`namespace` None: everywhere."""
    account = PEOPLE.get(who, "alpha")
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding" if namespace is None else "RoleBinding",
        "metadata": {"name": f"api-test-{who}-{role}", **({} if namespace is None else {"namespace": namespace})},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": f"api-test-{role}" if ours else role,
        },
        "subjects": [{"kind": "ServiceAccount", "name": who, "namespace": account}],
    }


STOKER = "stoker.dev"
SETUP: list[dict[str, Any]] = [
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("alpha", "beta")),
    *(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        for name, namespace in {**PEOPLE, API: "alpha", EXPORTER: "alpha"}.items()
    ),
    _role("reader", _rule(STOKER, ["trainingjobs"], ["get", "list"])),
    _role(
        "user",
        _rule(STOKER, ["trainingjobs"], ["get", "list", "create", "update", "delete"]),
        _rule(STOKER, ["trainingjobs/exec", "trainingjobs/portforward"], ["create"]),
        _rule(STOKER, ["trainingjobs/files"], ["get"]),
        _rule(STOKER, ["queues", "trainingruntimes"], ["use"]),
        _rule(STOKER, ["projectsecrets"], ["list", "update", "delete", "use"]),
        _rule("", ["secrets"], ["list", "create", "patch", "delete"]),
    ),
    _role("looks", _rule(STOKER, ["queues", "trainingruntimes", "gpunodes"], ["list"])),
    _role("api", *chart_rights.rules("api")),
    *(_binding("looks", who) for who in ("alice", "bob", "reader")),
    _binding("user", "alice", "alpha"),
    _binding("user", "bob", "beta"),
    _binding("reader", "reader", "alpha"),
    _binding("cluster-admin", "admin", ours=False),
    _binding("api", API),
]


@dataclass
class Bed:
    """What all tests of a run share: namespaces, accounts and their tokens."""

    cluster: Cluster
    tokens: dict[str, str] = field(default_factory=dict)
    has_node: bool = False

    @classmethod
    def make(cls, cluster: Cluster) -> Bed:
        bed = cls(cluster)
        cluster.install_crds()
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(SETUP))
        for namespace in ("alpha", "beta"):
            cluster.kubectl("wait", "--for=create", "--timeout=30s", "-n", namespace, "serviceaccount/default")
        for who, namespace in {**PEOPLE, API: "alpha"}.items():
            bed.tokens[who] = cluster.kubectl("create", "token", who, "-n", namespace, "--duration=2h").strip()
        return bed

    def kubeconfig(self, folder: Path, who: str) -> Path:
        """The cluster's kubeconfig with another user in it."""
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        wanted = next(one for one in config["contexts"] if one["name"] == config["current-context"])
        wanted["context"]["user"] = who
        config["users"] = [{"name": who, "user": {"token": self.tokens[who]}}]
        path = folder / f"{who}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def drop_node(self) -> None:
        if self.has_node:
            self.cluster.kubectl("delete", "node", NODE, "--ignore-not-found")
            self.has_node = False


@dataclass
class Hands:
    """The administrator's: everything that the api's own account can't and needn't do."""

    client: KubeClient
    store: KubeStore
    exporters: dict[str, str] = field(default_factory=dict)
    """Node → the token of the exporter there."""

    async def send(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        raw = await self.client.request(
            Call(method.lower(), path), method, path, body=None if body is None else json.dumps(body).encode(),
            content_type=kind,
        )  # fmt: skip
        return json.loads(raw)

    async def pod(self, name: str, namespace: str, job: TrainingJob | None = None, **more: Any) -> Any:
        """A pod that nothing schedules."""
        containers = [{"name": "worker", "image": "none", "command": ["true"]}]
        spec = {"schedulerName": "nobody", "containers": containers, **more}
        owners = [owned_by(job).model_dump(by_alias=True)] if job is not None else []
        meta = {"name": name, "namespace": namespace, "ownerReferences": owners}
        return await self.send("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})

    async def pod_token(
        self, name: str, namespace: str, uid: str, audience: str = "stoker", account: str = "default"
    ) -> str:
        """What the kubelet would project into the pod."""
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
        body = {"spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound}}
        made = await self.send("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
        return str(made["status"]["token"])

    async def exporter_token(self, node: str) -> str:
        """That of the DaemonSet's pod on the node."""
        if node not in self.exporters:
            pod = await self.pod(f"exporter-{node}", "alpha", nodeName=node, serviceAccountName=EXPORTER)
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            self.exporters[node] = await self.pod_token(name, "alpha", uid, account=EXPORTER)
        return self.exporters[node]

    async def node(self, bed: Bed) -> None:
        """A node with two GPUs, and a heartbeat of it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        room = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2"}
        status = {"capacity": room, "allocatable": room, "conditions": [{**ready, "lastTransitionTime": now}]}
        if not bed.has_node:
            labels = {"nvidia.com/gpu.product": "Tiny", "nvidia.com/gpu.memory": "8192"}
            await self.send("POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": labels}, "status": status})
            bed.has_node = True
        else:
            await self.send("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, MERGE_PATCH)

    async def grant(self, who: str, namespace: str, *rules: tuple[str, list[str], list[str]]) -> None:
        """A role in the namespace until the next `wipe`: (resource, verbs, names)."""
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        listed = [{**_rule(STOKER, [what], verbs), "resourceNames": names} for what, verbs, names in rules]
        await self.send("POST", f"{path}/roles", {"metadata": {"name": GRANTED}, "rules": listed})
        binding = _binding(GRANTED, who, namespace, ours=False)
        binding["metadata"]["name"] = GRANTED
        binding["roleRef"]["kind"] = "Role"
        await self.send("POST", f"{path}/rolebindings", binding)

    async def wipe(self) -> None:
        """Nothing of ours is left but namespaces, accounts and the node."""
        kinds = (QUEUES, RUNTIMES, HEALTH)
        objects = [(kind, obj.key) for kind in kinds for obj in (await self.store.list(kind)).items]
        await self.remove_jobs()
        await asyncio.gather(*(self.store.delete(kind, key) for kind, key in objects))
        for queue in (await self.store.list(QUEUES)).items:  # no operator is there to let it go
            await self.store.update(QUEUES, released(queue))
        now = {"gracePeriodSeconds": 0}
        paths = [
            f"/api/v1/namespaces/{name}/{what}" for name in ("alpha", "beta") for what in ("pods", "events", "secrets")
        ]
        granted = [
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/alpha/{what}?fieldSelector=metadata.name%3D{GRANTED}"
            for what in ("roles", "rolebindings")
        ]
        await asyncio.gather(*(self.send("DELETE", path, now) for path in (*paths, *granted)))

    async def remove_jobs(self) -> None:
        """Those of other suites too, whatever holds them."""
        await asyncio.gather(*(self._remove(job) for job in (await self.store.list(JOBS)).items))

    async def _remove(self, job: TrainingJob) -> None:
        path = f"/apis/{STOKER}/v1alpha1/namespaces/{job.metadata.namespace}/trainingjobs/{job.metadata.name}"
        with contextlib.suppress(NotFound):
            if job.metadata.finalizers:
                await self.send("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)
            await self.store.delete(JOBS, job.key)


@contextlib.asynccontextmanager
async def cluster_parts(
    bed: Bed, folder: Path, logs: LogSource, streams: StreamSettings, prices: Prices | None = None
) -> AsyncIterator[tuple[Deps, Hands]]:
    """The api's dependencies, its caches not yet running, and the administrator's hands."""
    clock = SystemClock()
    config = bed.kubeconfig(folder, API)
    async with (
        KubeClient.from_config(kubeconfig=bed.cluster.kubeconfig, clock=clock) as admin,
        KubeClient.from_config(kubeconfig=config, clock=clock) as client,
        KubeClient.from_config(kubeconfig=config, clock=clock, anonymous=True) as callers,
        contextlib.AsyncExitStack() as stack,
    ):
        hands, store = Hands(admin, KubeStore(admin, clock)), KubeStore(client, clock)
        await hands.remove_jobs()
        await hands.node(bed)
        pods, others = cluster_pods(store, clock)
        deps = Deps(
            store,
            **caches(store, clock, pods=pods),
            logs=logs,
            identity=ClusterIdentity(TokenReviewer(client), clock, exporters=[f"alpha:{EXPORTER}"]),
            clock=clock,
            code=CodeStore(folder / "code", clock),
            runtimes=WatchCache(store, RUNTIMES, clock=clock),
            secrets=KubeSecrets(callers),
            other_pods=others,
            streams=streams,
            usage=stack.enter_context(UsageStore(folder / "usage.db", clock)),
            curves=stack.enter_context(CurveStore(folder / "curves.db", clock)),
            prices=prices or Prices(),
        )
        try:
            yield deps, hands
        finally:
            await hands.wipe()


async def node_is_free(deps: Deps) -> None:
    """Wait until the cluster's own controllers have taken their taints off the new node."""
    await deps.nodes.wait_for(
        lambda nodes: any(node.status.ready and not node.status.taints for node in nodes.values()), timeout_s=20
    )
