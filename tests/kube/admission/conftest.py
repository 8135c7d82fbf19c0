"""A cluster whose kubectl meets the chart's admission policies: the people, queues and runtimes of `cases.py`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.testbed import build
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.control_plane import ControlPlane
from tests.support.testbed.errors import BedError, Unavailable
from tests.support.testbed.fixtures import skip_loudly

from ...api.cluster import Bed  # noqa: TID252
from .cases import GRANTED, QUEUES, RUNTIMES

CHART = Path(__file__).resolve().parents[3] / "helm" / "stoker"
STAMPING = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"


def _rbac(kind: str, name: str, **rest: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "alpha"}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta, **rest}


def _rule(resource: str, verbs: list[str], names: list[str]) -> dict[str, Any]:
    rule = {"apiGroups": ["stoker.dev"], "resources": [resource], "verbs": verbs}
    return {**rule, "resourceNames": names} if names else rule


def _account(name: str, *rules: dict[str, Any]) -> list[dict[str, Any]]:
    """A user of project alpha."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "alpha"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "alpha"}},
        _rbac("Role", name, rules=list(rules)),
        _rbac("RoleBinding", name, subjects=[subject], roleRef=role),
    ]


JOBS = _rule("trainingjobs", ["get", "list", "create", "update", "patch", "delete"], [])
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "patch", "delete"]}
_SYSTEM = {"kind": "ServiceAccount", "namespace": "kube-system"}
EDITORS = [
    {"kind": "ServiceAccount", "namespace": "alpha", "name": "stoker-operator"},
    *({**_SYSTEM, "name": name} for name in ("generic-garbage-collector", "replicaset-controller")),
]
_PODS_ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods"}
SETUP: list[dict[str, Any]] = [
    *_account("carol", JOBS, *(_rule(what, ["use"], names) for what, names in GRANTED.items())),
    *_account("lost", JOBS),
    *_account("edith", PODS),
    *_account("over", PODS, _rule("pods", ["override"], [])),
    _rbac("Role", "pods", rules=[PODS]),
    _rbac("RoleBinding", "pods", subjects=EDITORS, roleRef=_PODS_ROLE),
]


@dataclass
class Admitting:
    """The cluster, whose people's tokens `bed` has; whether jobs are stamped."""

    bed: Bed
    folder: Path
    stamps: bool

    def kubectl(self, who: str, *args: str, stdin: Any = None) -> str:
        """Raises: BedError with kubectl's words."""
        config = self.folder / f"{who}.kubeconfig"
        user = Cluster(config if config.exists() else self.bed.kubeconfig(self.folder, who), "")
        text = "" if stdin is None else json.dumps(stdin)
        return user.kubectl(f"--cache-dir={self.folder}/cache", *args, stdin=text)

    def refusal(self, who: str, *args: str, stdin: Any = None) -> str:
        """kubectl's words; "": it was not refused."""
        try:
            self.kubectl(who, *args, stdin=stdin)
        except BedError as error:
            return str(error)
        return ""

    def make(self, who: str, body: dict[str, Any], *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl(who, "create", "-f", "-", "-o", "json", *args, stdin=body))
        return found

    @contextlib.contextmanager
    def job(self, who: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A job for a while."""
        made = self.make(who, body)
        try:
            yield made
        finally:
            self.bed.cluster.kubectl("delete", "tj", made["metadata"]["name"], "-n", "alpha", "--ignore-not-found")

    def until(self, holds: Any, what: str, timeout_s: float = 20.0) -> None:
        """The API server's policies and roles are caches: they come into force a moment after they were written."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)


def rendered(cluster: Cluster, *templates: str) -> str:
    """The chart's templates for this cluster, as release `stoker` in namespace alpha. Raises: Unavailable."""
    served = cluster.kubectl("api-resources", "--api-group=admissionregistration.k8s.io", "-o", "wide")
    versions = [f"--api-versions={STAMPING}"] if stamping(served) else []
    only = [f"--show-only=templates/{name}" for name in templates]
    command = [str(build.program("helm")), "template", "stoker", str(CHART), "--namespace=alpha", *versions, *only]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def stamping(served: str) -> bool:
    return any(
        "admissionregistration.k8s.io/v1 " in line for line in served.splitlines() if "mutatingadmissionp" in line
    )


@pytest.fixture(scope="session")
def admission_plane() -> Iterator[Cluster]:
    """A cluster whose admission policies refuse what other tests create."""
    try:
        plane = ControlPlane(scheduler=False)
        build.program("helm")
    except Unavailable as error:
        skip_loudly(str(error))
    with plane:
        yield plane


@pytest.fixture(scope="session")
def admitting(admission_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Admitting:
    plane = admission_plane
    bed = Bed.make(plane)
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(SETUP))
    for name in ("carol", "lost", "edith", "over"):
        bed.tokens[name] = plane.kubectl("create", "token", name, "-n", "alpha", "--duration=2h").strip()
    names = ["names", "pods", "queues", "rights", "runtimes", "secrets"]
    served = plane.kubectl("api-resources", "--api-group=admissionregistration.k8s.io", "-o", "wide")
    stamps = stamping(served)
    templates = [f"admission/{name}.yaml" for name in (*names, *(["submitter"] if stamps else []))]
    plane.kubectl("apply", "-f", "-", stdin=rendered(plane, *templates))
    found = Admitting(bed, tmp_path_factory.mktemp("admitting"), stamps)
    restore(found)
    return found


def restore(admitting: Admitting) -> None:
    """Queues and runtimes are there, and every policy is in force."""
    made = [
        {"apiVersion": "stoker.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, those in (("Queue", QUEUES), ("TrainingRuntime", RUNTIMES))
        for name, spec in those.items()
    ]
    admitting.bed.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(made))

    def refuses(policy: str, who: str, metadata: dict[str, Any], spec: dict[str, Any]) -> bool:
        body = {
            "apiVersion": "stoker.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "probe", "namespace": "alpha", **metadata},
            "spec": {"trainer": {"command": ["true"]}, **spec},
        }
        said = admitting.refusal(who, "create", "-f", "-", "--dry-run=server", stdin=body)
        return f"'stoker-{policy}'" in said if policy else not said

    probes: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("rights", "lost", {}, {}),
        ("names", "alice", {"labels": {"stoker.dev/x": "y"}}, {}),
        ("queues", "alice", {}, {"queue": "theirs"}),
        ("queues", "alice", {}, {"queue": "capped", "priority": 11}),
        ("runtimes", "alice", {}, {"runtime": "closed"}),
        ("secrets", "carol", {}, {"secretEnv": {"A": {"secret": "theirs"}}}),
        ("", "carol", {}, {"queue": "capped", "runtime": "fast"}),
    ]
    for policy, who, metadata, spec in probes:
        admitting.until(lambda: refuses(policy, who, metadata, spec), f"policy {policy} in force for {spec}")  # noqa: B023
    if admitting.stamps:
        body = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingJob"}
        body |= {"metadata": {"name": "probe", "namespace": "alpha"}, "spec": {"trainer": {"command": ["true"]}}}
        admitting.until(
            lambda: "annotations" in admitting.make("carol", body, "--dry-run=server")["metadata"], "jobs stamped"
        )
