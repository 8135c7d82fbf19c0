"""The operator's own account on a test's cluster: with the rights that the chart gives it, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.support.testbed.cluster import Cluster
from tools.chart import rights

NAME = "operator-of-the-chart"
SCRAPER = "prometheus"
_RBAC = "rbac.authorization.k8s.io"


def operators_kubeconfig(cluster: Cluster, project: str) -> Path:
    """A kubeconfig of an account in `project`, which holds its lease too."""
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": project}]
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": project}},
        _role("ClusterRole", {"name": NAME}, rights.rules("operator")),
        _binding("ClusterRole", {"name": f"{NAME}-{project}"}, subject),
        _role("Role", {"name": NAME, "namespace": project}, rights.rules("leader")),
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
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", NAME, "-n", project, "--duration=2h").strip()
    for one in config["users"]:
        one["user"] = {"token": token}
    path = cluster.kubeconfig.with_name(f"{NAME}-{project}.kubeconfig")
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
