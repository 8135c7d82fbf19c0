"""The Lease of a leader election as it stands in the API: reading it, and writing it on condition that it is as seen.

Owns requests and wire form. Never decides who leads. Called by `lease.LeaderElection`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from stoker.spec.meta import Resource, StatusModel
from stoker.store.port import AlreadyExists, Conflict, NotFound

from .client import Call, KubeClient
from .limit import RequestLane


class LeaseSpec(StatusModel):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Resource):
    spec: LeaseSpec = LeaseSpec()


class LeaseObject:
    """Each request is one try, soon given up: the next renewal is the retry."""

    def __init__(self, client: KubeClient, namespace: str, name: str, *, timeout_s: float) -> None:
        self._client, self._namespace, self._name, self._timeout_s = client, namespace, name, timeout_s
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def read(self) -> Lease | None:
        """Raises: StoreError."""
        try:
            raw = await self._client.request(self._call("get"), "GET", f"{self._collection}/{self._name}")
        except NotFound:
            return None
        return Lease.model_validate_json(raw)

    async def write(self, seen: Lease | None, spec: Mapping[str, Any]) -> Lease:
        """Create it, or replace the one seen. Raises: Conflict when it is not as seen; StoreError."""
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if seen is not None:
            metadata |= {"uid": seen.uid, "resourceVersion": seen.metadata.resource_version}
            # Not ours: its creator (the chart, without a spec) finds it by them.
            metadata |= {"labels": dict(seen.metadata.labels), "annotations": dict(seen.metadata.annotations)}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        raw = json.dumps(body).encode()
        try:
            if seen is None:
                answer = await self._client.request(self._call("create"), "POST", self._collection, body=raw)
            else:
                path = f"{self._collection}/{self._name}"
                answer = await self._client.request(self._call("update"), "PUT", path, body=raw)
        except AlreadyExists as error:
            raise Conflict(str(error)) from error
        return Lease.model_validate_json(answer)

    def _call(self, verb: str) -> Call:
        return Call(verb, "Lease", self._name, lane=RequestLane.URGENT, timeout_s=self._timeout_s, tries=1)


def micro_time(at: datetime) -> str:
    """metav1.MicroTime: UTC, six digits."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
