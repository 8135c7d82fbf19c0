"""The Kubernetes side of the contract suite: a store that makes namespaces as they come.

The suite names projects freely, as the embedded store allows; a cluster wants each namespace made first, with the
service account that pods are checked against.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from stoker.kube.client import Call, KubeClient
from stoker.kube.store import KubeStore
from stoker.spec.meta import Key, Kind
from stoker.store.clock import SystemClock
from stoker.store.port import AlreadyExists
from tests.support.testbed.cluster import Cluster


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
