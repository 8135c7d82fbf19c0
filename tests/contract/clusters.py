"""The Kubernetes side of the contract suite: the CRDs installed, and a store that makes namespaces as they come.

The suite names projects freely, as the embedded store allows; a cluster wants each namespace made first, with the
service account that pods are checked against.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from stoker.kube.client import Call, KubeClient
from stoker.kube.store import KubeStore
from stoker.spec.meta import Key, Kind
from stoker.store.clock import SystemClock
from stoker.store.port import AlreadyExists, NotFound
from tests.support.testbed.cluster import Cluster

CRDS = Path(__file__).parents[2] / "helm" / "stoker" / "files" / "crds"
_ready: set[str] = set()


def install_crds(cluster: Cluster) -> None:
    """Once per cluster and run. The CRDs are served when this returns."""
    if cluster.url in _ready:
        return
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=30s")
    _ready.add(cluster.url)


class ProjectStore(KubeStore):
    """Makes the namespace of whatever is created."""

    client: KubeClient
    _made: set[str]

    async def create(self, kind: Kind[Any], obj: Any) -> Any:
        namespace = obj.metadata.namespace
        if kind.namespaced and namespace and namespace not in self._made:
            await self.make_namespace(namespace)
        return await super().create(kind, obj)

    async def make_namespace(self, name: str) -> None:
        for path, kind, manifest in (
            ("/api/v1/namespaces", "Namespace", {"metadata": {"name": name}}),
            (f"/api/v1/namespaces/{name}/serviceaccounts", "ServiceAccount", {"metadata": {"name": "default"}}),
        ):
            body = json.dumps({"apiVersion": "v1", "kind": kind, **manifest}).encode()
            with contextlib.suppress(AlreadyExists):
                await self.client.request(Call("create", kind, name), "POST", path, body=body)
        self._made.add(name)

    async def bind(self, key: Key, node: str) -> None:
        """What the cluster's scheduler does: from here on a deletion has a grace."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key.name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{key.namespace}/pods/{key.name}/binding"
        await self.client.request(Call("bind", "Pod", str(key)), "POST", path, body=json.dumps(body).encode())


@contextlib.asynccontextmanager
async def project_store(cluster: Cluster, **how: Any) -> AsyncIterator[ProjectStore]:
    clock = SystemClock()
    async with KubeClient.from_config(kubeconfig=cluster.kubeconfig, clock=clock) as client:
        store = ProjectStore(client, clock, **how)
        store.client, store._made = client, set()
        yield store


async def collector_ready(store: ProjectStore) -> None:
    """The garbage collector looks for new kinds twice a minute: wait once until it knows ours."""
    if "collects" in _ready:
        return
    job = {
        "apiVersion": "stoker.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "owner"},
        "spec": {"trainer": {"command": ["true"]}},
    }
    await store.make_namespace("contract-warmup")
    jobs = "/apis/stoker.dev/v1alpha1/namespaces/contract-warmup/trainingjobs"
    with contextlib.suppress(NotFound):
        await store.client.request(Call("delete", "TrainingJob"), "DELETE", f"{jobs}/owner")
    raw = await store.client.request(Call("create", "TrainingJob"), "POST", jobs, body=json.dumps(job).encode())
    owner = {"apiVersion": job["apiVersion"], "kind": "TrainingJob", "name": "owner"}
    owner["uid"] = json.loads(raw)["metadata"]["uid"]
    maps = "/api/v1/namespaces/contract-warmup/configmaps"
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [owner]}}
    with contextlib.suppress(NotFound):
        await store.client.request(Call("delete", "ConfigMap"), "DELETE", f"{maps}/owned")
    await store.client.request(Call("create", "ConfigMap"), "POST", maps, body=json.dumps(owned).encode())
    await store.client.request(Call("delete", "TrainingJob"), "DELETE", f"{jobs}/owner")
    async with asyncio.timeout(90):
        with contextlib.suppress(NotFound):
            while True:
                await store.client.request(Call("get", "ConfigMap"), "GET", f"{maps}/owned")
                await asyncio.sleep(0.1)
    _ready.add("collects")
