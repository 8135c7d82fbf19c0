"""A real API server with our definitions installed, and what it answers to an object, as data."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from stoker.spec.meta import Kind
from tests.support.testbed.cluster import Cluster


@dataclass(frozen=True)
class Answer:
    """`object` as the server would store it, or the sentences it refuses with (field: sentence)."""

    status: int
    object: dict[str, Any]
    refusals: tuple[str, ...] = ()

    @property
    def taken(self) -> bool:
        return self.status < 300


class KubeApi:
    """The API server for our kinds, by REST, strict about unknown fields as kubectl is."""

    def __init__(self, http: httpx.Client, namespace: str = "default") -> None:
        self._http = http
        self.namespace = namespace

    def within(self, namespace: str) -> KubeApi:
        return KubeApi(self._http, namespace)

    def create(self, kind: Kind[Any], obj: dict[str, Any], *, dry: bool = True) -> Answer:
        return self._ask("POST", self._path(kind), kind, obj, dry=dry)

    def replace(self, kind: Kind[Any], obj: dict[str, Any], *, dry: bool = True, part: str = "") -> Answer:
        path = f"{self._path(kind)}/{obj['metadata']['name']}{part}"
        return self._ask("PUT", path, kind, obj, dry=dry)

    def get(self, kind: Kind[Any], name: str) -> dict[str, Any]:
        answer = self._http.get(f"{self._path(kind)}/{name}")
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def _path(self, kind: Kind[Any]) -> str:
        scope = f"namespaces/{self.namespace}/" if kind.namespaced else ""
        return f"/apis/{kind.api_version}/{scope}{kind.plural}"

    def _ask(self, method: str, path: str, kind: Kind[Any], obj: dict[str, Any], *, dry: bool) -> Answer:
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry else {})
        body = {"apiVersion": kind.api_version, "kind": kind.kind} | obj
        response = self._http.request(method, path, params=query, json=body)
        answer = response.json()
        if response.status_code < 300:
            return Answer(response.status_code, answer)
        causes = answer.get("details", {}).get("causes") or [{"message": answer["message"]}]
        return Answer(response.status_code, {}, tuple(f"{c.get('field', '')}: {c['message']}" for c in causes))


@pytest.fixture(scope="module")
def cluster_with_crds(control_plane: Cluster) -> Cluster:
    """The run's throw-away cluster, our definitions installed and established."""
    control_plane.install_crds()
    return control_plane


@pytest.fixture(scope="module")
def api(cluster_with_crds: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    view = ("config", "view", "--raw", "--flatten", "--minify", "--output=json")
    config = json.loads(cluster_with_crds.kubectl(*view))
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trust = ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode())
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if "client-certificate-data" in user:
        pair = tmp_path_factory.mktemp("api") / "client.pem"
        pair.write_bytes(
            b"\n".join(base64.b64decode(user[part]) for part in ("client-certificate-data", "client-key-data"))
        )
        trust.load_cert_chain(pair)
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    with httpx.Client(base_url=server["server"], verify=trust, headers=headers, timeout=30, trust_env=False) as http:
        yield KubeApi(http)
