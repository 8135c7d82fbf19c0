"""The operator's and the api's own accounts on a test's cluster: with the rights the chart gives them, no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.support import chart_rights
from tests.support.testbed.cluster import Cluster

NAME = "operator-of-the-chart"
API = "api-of-the-chart"
SCRAPER = "prometheus"
_RBAC = "rbac.authorization.k8s.io"


def operators_kubeconfig(cluster: Cluster, project: str) -> Path:
    """A kubeconfig of an account in `project`, which holds its lease too."""
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": project}]
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": project}},
        _role("ClusterRole", {"name": NAME}, chart_rights.rules("operator") + chart_rights.rules("burn-ins")),
        _binding("ClusterRole", {"name": f"{NAME}-{project}"}, subject),
        _role(
            "Role",
            {"name": NAME, "namespace": project},
            chart_rights.rules("leader") + chart_rights.rules("burn-in-jobs"),
        ),
        _binding("Role", {"name": NAME, "namespace": project}, subject),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SCRAPER, "namespace": project}},
        _role("ClusterRole", {"name": SCRAPER}, [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]),
        _binding(
            "ClusterRole",
            {"name": f"{SCRAPER}-{project}"},
            [{"kind": "ServiceAccount", "name": SCRAPER, "namespace": project}],
            SCRAPER,
        ),
    ]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return _kubeconfig(cluster, project, NAME)


def apis_kubeconfig(cluster: Cluster, namespace: str) -> Path:
    """A kubeconfig of the api's account in `namespace`."""
    subject = [{"kind": "ServiceAccount", "name": API, "namespace": namespace}]
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": API, "namespace": namespace}},
        _role("ClusterRole", {"name": API}, chart_rights.rules("api")),
        _binding("ClusterRole", {"name": f"{API}-{namespace}"}, subject, API),
    ]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return _kubeconfig(cluster, namespace, API)


def _kubeconfig(cluster: Cluster, namespace: str, account: str) -> Path:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", account, "-n", namespace, "--duration=2h").strip()
    for one in config["users"]:
        one["user"] = {"token": token}
    path = cluster.kubeconfig.with_name(f"{account}-{namespace}.kubeconfig")
    path.write_text(yaml.safe_dump(config))
    return path


def _role(kind: str, metadata: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}


def _binding(kind: str, metadata: dict[str, str], subjects: list[dict[str, str]], role: str = NAME) -> dict[str, Any]:
    of = {"apiGroup": _RBAC, "kind": kind, "name": role}
    return {
        "apiVersion": f"{_RBAC}/v1", "kind": f"{kind}Binding", "metadata": metadata, "roleRef": of,
        "subjects": subjects,
    }  # fmt: skip
