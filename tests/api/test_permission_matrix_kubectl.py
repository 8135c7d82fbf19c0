"""The same by kubectl, with the roles that the chart ships: who may do what to jobs, their status, queues and pods.

Roles are taken from `helm template`; accounts and namespaces are the test's own. `tools/verify/permissions.py` runs
this with $STOKER_MATRIX set to a folder, which then gets the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.testbed import build
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly

from .cluster import Bed
from .permissions import as_text

CHART = Path(__file__).parents[2] / "helm" / "stoker"
JOB = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingJob", "spec": {"trainer": {"command": ["true"]}}}
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "x", "image": "x"}]}}
DRY = ("--dry-run=server", "-o", "name")
PLAIN = ("--validate=false", "-f", "-")  # validated by the server
MERGE = ("--type=merge", "-p")

# What is done → kubectl's words, with NS, NAME and RUN to be filled in, and what it reads. All leave everything as it
# is. (`patch` and `logs` read the object first; where a role may write what it may not read, `auth can-i` asks.)
DEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    "get a job": (("get", "-n", "NS", "trainingjob", "NAME", "-o", "name"), ""),
    "list jobs": (("get", "-n", "NS", "trainingjobs", "-o", "name"), ""),
    "create a job": (("create", "-n", "NS", *DRY, *PLAIN), json.dumps({**JOB, "metadata": {"name": "fresh"}})),
    "change a job": (("patch", "-n", "NS", "trainingjob", "NAME", *DRY, *MERGE, '{"spec":{"suspend":true}}'), ""),
    "delete a job": (("delete", "-n", "NS", "trainingjob", "NAME", *DRY), ""),
    "write a job's status": (("auth", "can-i", "-n", "NS", "patch", "trainingjobs/NAME", "--subresource=status"), ""),
    "list queues": (("get", "queues.stoker.dev", "-o", "name"), ""),
    "change a queue": (("patch", "queues.stoker.dev", "RUN", *DRY, *MERGE, '{"spec":{"limit":{"gpus":9}}}'), ""),
    "change a runtime": (("patch", "trainingruntime", "RUN", *DRY, *MERGE, '{"spec":{"image":"x"}}'), ""),
    "create a pod": (("create", "-n", "NS", *DRY, *PLAIN), json.dumps({**POD, "metadata": {"name": "fresh"}})),
    "exec in a pod": (("create", "--raw", "/api/v1/namespaces/NS/pods/NAME/exec", "-f", "-"), "{}"),
    "read a pod's log": (("auth", "can-i", "-n", "NS", "get", "pods/NAME", "--subresource=log"), ""),
    "read secrets": (("get", "-n", "NS", "secrets", "-o", "name"), ""),
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
    """Two projects with a job each, an account per caller, and kubectl as each of them."""

    cluster: Cluster
    folder: Path
    run: str
    first: str
    second: str

    def kubectl(self, caller: str, deed: str, namespace: str, name: str) -> tuple[int, str]:
        """Exit code, and the last line of what was said."""
        words, stdin = DEEDS[deed]
        filled = [word.replace("NS", namespace).replace("NAME", name).replace("RUN", self.run) for word in words]
        return self.call(caller, *filled, stdin=stdin)

    def call(self, caller: str, *words: str, stdin: str = "") -> tuple[int, str]:
        config = self.folder / f"{caller.replace(' ', '-')}.kubeconfig"
        command = [str(build.program("kubectl")), f"--kubeconfig={config}", f"--cache-dir={self.folder}/cache"]
        command += ["--request-timeout=20s", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        return done.returncode, lines[-1] if lines else ""

    def log_in(self, caller: str, token: str) -> None:
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        context = next(one for one in config["contexts"] if one["name"] == config["current-context"])
        context["context"]["user"] = "caller"
        config["users"] = [{"name": "caller", "user": {"token": token}}]
        (self.folder / f"{caller.replace(' ', '-')}.kubeconfig").write_text(yaml.safe_dump(config))


def chart_roles(run: str) -> list[dict[str, object]]:
    """The chart's ClusterRoles, named `<run>-…`."""
    command = [str(build.program("helm")), "template", run, str(CHART), "--namespace=stoker"]
    command.append(f"--set=fullnameOverride={run}")
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return [one for one in yaml.safe_load_all(text) if one and one["kind"] == "ClusterRole"]


@pytest.fixture
def field(the_bed: Bed, tmp_path: Path) -> Iterator[Field]:
    cluster, run = the_bed.cluster, f"matrix-{uuid.uuid4().hex[:6]}"
    try:
        roles = chart_roles(run)
    except Unavailable as error:
        skip_loudly(str(error))
    made = Field(cluster, tmp_path, run, f"{run}-a", f"{run}-b")
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
            made.log_in(caller, cluster.kubectl("create", "token", account, "-n", made.first).strip())
        report = cluster.kubectl("create", "token", accounts["worker"], "-n", made.first, "--audience=stoker").strip()
        for caller, token in zip(STRANGERS, ("stk_garbage", report), strict=True):
            made.log_in(caller, token)
        yield made
    finally:
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


def outcome(code: int, said: str) -> str:
    lower = said.lower()
    if "forbidden" in lower or said == "no":
        return "403"
    if "unauthorized" in lower or "must be logged in" in lower or "provide credentials" in lower:
        return "401"
    assert code == 0 or "not found" in lower, said
    return "yes"


def test_by_kubectl(field: Field) -> None:
    callers = (*STRANGERS, *ALLOWED)
    asked = [(deed, caller) for deed in DEEDS for caller in callers]

    def one(deed: str, caller: str) -> tuple[str, str, str]:
        code, said = field.kubectl(caller, deed, field.first, "first")
        found = outcome(code, said)
        if found == "yes":
            return found, "", ""
        _, missing = field.kubectl(caller, deed, field.first, "other")
        return found, said.replace('"first"', '"NAME"'), missing.replace('"other"', '"NAME"')

    field.kubectl("admin", "get a job", field.first, "first")  # kubectl asks what kinds there are, and keeps the answer
    with ThreadPoolExecutor(4) as pool:
        results = dict(zip(asked, pool.map(lambda pair: one(*pair), asked), strict=True))
    wrong = []
    for (deed, caller), (found, there, missing) in results.items():
        allowed = caller in ALLOWED and deed in ALLOWED[caller]
        if found != ("yes" if allowed else "403" if caller in ALLOWED else "401"):
            wrong.append(f"{deed} by {caller}: {found}, {there}")
        if there != missing and (caller in STRANGERS or "get a job" not in ALLOWED[caller]):
            wrong.append(f"{deed} by {caller}: {there!r} shows that it is there, else {missing!r}")
    assert not wrong, "\n".join(wrong)
    folder = os.environ.get("STOKER_MATRIX")
    if folder:
        lines = [[deed, *(results[deed, caller][0] for caller in callers)] for deed in DEEDS]
        text = as_text(f"By kubectl: {len(results)} cells", ["deed", *callers], lines)
        Path(folder, "kubectl.md").write_text(text)


def test_nobody_forges_a_status(field: Field) -> None:
    forged = ("patch", "-n", field.first, "trainingjob", "first", "--subresource=status", "--type=merge", "-p")
    for caller in ("other tenant", "reader", "user", "admin", "worker"):
        code, said = field.call(caller, *forged, '{"status":{"phase":"Succeeded"}}')
        assert (code, outcome(code, said)) == (1, "403"), caller
    code, said = field.call("user", *forged[:5], "--type=merge", "-p", '{"status":{"phase":"Succeeded"}}')
    assert code == 0 and "no change" in said, "beside the spec it is left aside"


def test_a_project_that_is_not_there_reads_like_anothers(field: Field) -> None:
    nowhere = f"{field.run}-c"
    for deed in ("get a job", "list jobs", "create a job", "change a job", "delete a job"):
        theirs = field.kubectl("other tenant", deed, field.first, "first")
        none = field.kubectl("other tenant", deed, nowhere, "first")
        assert theirs[0] == none[0] == 1
        assert theirs[1].replace(field.first, "NS") == none[1].replace(nowhere, "NS").replace(field.first, "NS"), deed
