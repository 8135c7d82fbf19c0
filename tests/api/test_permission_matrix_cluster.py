"""The same in the cluster, with the roles that the chart ships: who may do what to jobs, their status, queues and pods.

Roles are taken from `helm template`; accounts and namespaces are the test's own. Requests are those that kubectl sends.
`tools/verify/permissions.py` runs this with $STOKER_MATRIX set to a folder, which then gets the table.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import ssl
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.support.testbed import build
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly

from .permissions import as_text

CHART = Path(__file__).parents[2] / "helm" / "stoker"
JOB = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingJob", "spec": {"trainer": {"command": ["true"]}}}
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "x", "image": "x"}]}}
OURS, CORE = "/apis/stoker.dev/v1alpha1", "/api/v1"
JOBS, PODS = f"{OURS}/namespaces/NS/trainingjobs", f"{CORE}/namespaces/NS/pods"
DRY = "?dryRun=All"

# What is done → the request, with NS, NAME and RUN to be filled in, and its body. All leave everything as it is.
DEEDS: dict[str, tuple[str, str, dict[str, object]]] = {
    "get a job": ("GET", f"{JOBS}/NAME", {}),
    "list jobs": ("GET", JOBS, {}),
    "create a job": ("POST", JOBS + DRY, {**JOB, "metadata": {"name": "fresh"}}),
    "change a job": ("PATCH", f"{JOBS}/NAME{DRY}", {"spec": {"suspend": True}}),
    "delete a job": ("DELETE", f"{JOBS}/NAME{DRY}", {}),
    "write a job's status": ("PATCH", f"{JOBS}/NAME/status{DRY}", {"status": {"phase": "Succeeded"}}),
    "list queues": ("GET", f"{OURS}/queues", {}),
    "change a queue": ("PATCH", f"{OURS}/queues/RUN{DRY}", {"spec": {"limit": {"gpus": 9}}}),
    "change a runtime": ("PATCH", f"{OURS}/trainingruntimes/RUN{DRY}", {"spec": {"image": "x"}}),
    "create a pod": ("POST", PODS + DRY, {**POD, "metadata": {"name": "fresh"}}),
    "exec in a pod": ("POST", f"{PODS}/NAME/exec?command=true", {}),
    "read a pod's log": ("GET", f"{PODS}/NAME/log", {}),
    "read secrets": ("GET", f"{CORE}/namespaces/NS/secrets", {}),
}
READS = {"get a job", "list jobs"}
USES = READS | {"create a job", "change a job", "delete a job"}
LOOKS = {"list queues"}

# Account → what it may. Users' roles are bound in project a, the other tenant's in b, the rest everywhere.
ALLOWED: dict[str, set[str]] = {
    "other tenant": LOOKS,
    "reader": READS | LOOKS,
    "user": USES | LOOKS,
    "admin": USES | LOOKS | {"change a queue", "change a runtime"},
    "api": USES - {"change a job"} | LOOKS | {"write a job's status", "read a pod's log"},
    "operator": READS | {"delete a job", "write a job's status", "create a pod"} | LOOKS,
    "worker": set(),
}
ROLE = {"other tenant": "user", "reader": "viewer"}
STRANGERS = ("garbage", "worker's report token")


@dataclass
class Field:
    """Two projects with a job each, a token per caller, and the API server as each of them meets it."""

    cluster: Cluster
    client: httpx.Client
    tokens: dict[str, str]
    run: str
    first: str
    second: str

    def ask(self, caller: str, deed: str, namespace: str, name: str) -> tuple[int, str]:
        """Status, and what was said where it was refused."""
        method, path, body = DEEDS[deed]
        path = path.replace("NS", namespace).replace("NAME", name).replace("RUN", self.run)
        return self.call(caller, method, path, body)

    def call(self, caller: str, method: str, path: str, body: dict[str, object]) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self.tokens[caller]}"}
        if body:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = json.dumps(body) if body else None
        answer = self.client.request(method, self.cluster.url + path, headers=headers, content=content)
        return answer.status_code, "" if answer.is_success else answer.json()["message"]


def chart_roles(run: str) -> list[dict[str, object]]:
    """The chart's ClusterRoles, named `<run>-…`."""
    command = [str(build.program("helm")), "template", run, str(CHART), "--namespace=stoker"]
    command.append(f"--set=fullnameOverride={run}")
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return [one for one in yaml.safe_load_all(text) if one and one["kind"] == "ClusterRole"]


@pytest.fixture(scope="module")
def field(control_plane: Cluster) -> Iterator[Field]:
    cluster, run = control_plane, f"matrix-{uuid.uuid4().hex[:6]}"
    cluster.install_crds()
    try:
        roles = chart_roles(run)
    except Unavailable as error:
        skip_loudly(str(error))
    config = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    if "certificate-authority-data" in config:
        trusted = ssl.create_default_context(cadata=base64.b64decode(config["certificate-authority-data"]).decode())
    else:
        trusted = ssl.create_default_context(cafile=config["certificate-authority"])
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the bed's CA is as plain as real clusters' often are
    made = Field(cluster, httpx.Client(verify=trusted, timeout=20), {}, run, f"{run}-a", f"{run}-b")
    accounts = {caller: f"{caller.replace(' ', '-')}" for caller in ALLOWED}
    things: list[object] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (made.first, made.second)
    ]
    things += [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": made.first}}
        for name in accounts.values()
    ]
    things += [{**JOB, "metadata": {"name": "first", "namespace": made.first}}, *roles]
    for kind in ("Queue", "TrainingRuntime"):
        things.append({"apiVersion": "stoker.dev/v1alpha1", "kind": kind, "metadata": {"name": run}, "spec": {}})
    for caller in ALLOWED:
        where = {"reader": made.first, "user": made.first, "other tenant": made.second}.get(caller)
        if caller != "worker":
            things.append(binding(run, f"{run}-{ROLE.get(caller, caller)}", accounts[caller], made.first, where))
            if caller not in ("api", "operator"):
                things.append(binding(run, f"{run}-lists", accounts[caller], made.first, None))
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(things))
    try:
        for caller, account in accounts.items():
            made.tokens[caller] = cluster.kubectl("create", "token", account, "-n", made.first).strip()
        report = cluster.kubectl("create", "token", accounts["worker"], "-n", made.first, "--audience=stoker").strip()
        made.tokens |= zip(STRANGERS, ("stk_garbage", report), strict=True)
        yield made
    finally:
        made.client.close()
        ours = [one for one in things if isinstance(one, dict) and "namespace" not in one["metadata"]]
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(ours))


def binding(run: str, role: str, account: str, home: str, namespace: str | None) -> dict[str, object]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding" if namespace is None else "RoleBinding",
        "metadata": {"name": f"{role}-{account}", **({} if namespace is None else {"namespace": namespace})},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
    }


def outcome(status: int, said: str) -> str:
    assert status in (200, 201, 401, 403) or (status == 404 and "not found" in said), said
    return str(status) if status in (401, 403) else "yes"


def test_in_the_cluster(field: Field) -> None:
    callers = (*STRANGERS, *ALLOWED)
    found, wrong = dict[tuple[str, str], str](), []
    for deed, caller in itertools.product(DEEDS, callers):
        status, said = field.ask(caller, deed, field.first, "first")
        answer = found[deed, caller] = outcome(status, said)
        allowed = caller in ALLOWED and deed in ALLOWED[caller]
        if answer != ("yes" if allowed else "403" if caller in ALLOWED else "401"):
            wrong.append(f"{deed} by {caller}: {status} {said}")
        if answer != "yes" and (caller in STRANGERS or "get a job" not in ALLOWED[caller]):
            missing = field.ask(caller, deed, field.first, "other")
            if (status, said.replace('"first"', '"NAME"')) != (missing[0], missing[1].replace('"other"', '"NAME"')):
                wrong.append(f"{deed} by {caller}: {said!r} shows that it is there, else {missing!r}")
    assert not wrong, "\n".join(wrong)
    folder = os.environ.get("STOKER_MATRIX")
    if folder:
        lines = [[deed, *(found[deed, caller] for caller in callers)] for deed in DEEDS]
        text = as_text(f"In the cluster: {len(found)} cells", ["deed", *callers], lines)
        Path(folder, "cluster.md").write_text(text)


def test_no_user_forges_a_status(field: Field) -> None:
    forged: dict[str, object] = {"status": {"phase": "Succeeded"}}
    job = f"{JOBS}/first".replace("NS", field.first)
    for caller in ("other tenant", "reader", "user", "admin", "worker"):
        assert field.call(caller, "PATCH", f"{job}/status", forged)[0] == 403, caller
    assert field.call("user", "PATCH", job, forged)[0] == 200
    stored = field.cluster.kubectl("get", "--raw", job)
    assert "status" not in json.loads(stored), "beside the spec it is left aside"


def test_a_project_that_is_not_there_reads_like_anothers(field: Field) -> None:
    nowhere = f"{field.run}-c"
    for deed in ("get a job", "list jobs", "create a job", "change a job", "delete a job"):
        theirs = field.ask("other tenant", deed, field.first, "first")
        none = field.ask("other tenant", deed, nowhere, "first")
        assert theirs[0] == none[0] == 403
        assert theirs[1].replace(field.first, "NS") == none[1].replace(nowhere, "NS").replace(field.first, "NS"), deed
