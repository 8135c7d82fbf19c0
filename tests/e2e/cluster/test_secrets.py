"""A project's secret on real nodes: written with the user's own token, given to a job by the kubelet, nowhere else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator

import pytest

from stoker.spec.job import Phase
from stoker.spec.reasons import Code
from tests.support.cluster_stack import SYSTEM, Project
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

VALUE = "hf_" + base64.b32encode(os.urandom(25)).decode()
SCRIPT = """\
import hashlib, os
value = os.environ["HF_TOKEN"]
print(hashlib.sha256(value.encode()).hexdigest(), value, flush=True)
"""


@pytest.fixture
def mallory(project: Project) -> Iterator[Project]:
    """Submits to the project, but may use no secret of it."""
    account = {"kind": "ServiceAccount", "namespace": project.name}
    rules = [{"apiGroups": ["stoker.dev"], "resources": ["trainingjobs"], "verbs": ["get", "list", "create"]}]
    writes = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "create", "patch", "delete"]}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    objects: list[dict[str, object]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mallory", "namespace": project.name}}
    ]
    for who, granted in (("mallory", rules), ("alice", writes)):
        meta = {"name": f"{who}-own", "namespace": project.name}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"{who}-own"}
        objects += [
            {**rbac, "kind": "Role", "metadata": meta, "rules": granted},
            {**rbac, "kind": "RoleBinding", "metadata": meta, "roleRef": role, "subjects": [{**account, "name": who}]},
        ]
    kubectl = project.stack.bed.kubectl
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    token = kubectl("create", "token", "mallory", "-n", project.name, "--duration=1h").strip()
    found = Project(project.stack, project.name, token)
    yield found
    found.client.close()


def test_a_secret_reaches_the_job_that_may_use_it_and_nothing_else(project: Project, mallory: Project) -> None:
    kubectl = project.stack.bed.kubectl
    command = ("--image", project.stack.images["foreign-python"], "--no-code", "--memory", "128Mi", "--cpu", "100m")
    script = ("--secret", "HF_TOKEN=hf", "--", "python3", "-c", SCRIPT)
    project.stoker("submit", *command, "--name", "early", *script)

    def waits() -> bool:
        said = project.stoker("why", "early").stdout
        return f"secret 'hf' of project '{project.name}' does not exist" in said

    until(waits, "the job says which secret it waits for", timeout_s=90)
    attempts = until(lambda: project.job("early").status.attempts, "an attempt that was withdrawn", timeout_s=60)
    assert attempts[-1].category == Code.SECRET_MISSING
    project.stoker("secret", "set", "hf", stdin=f"{VALUE}\n")
    project.until_phase("early", Phase.SUCCEEDED, timeout_s=200)
    job = project.job("early")
    shown = f"{hashlib.sha256(VALUE.encode()).hexdigest()} ***\n"
    assert project.log("early", job.status.attempt) == shown
    assert kubectl("logs", f"early-{job.status.attempt}-0", "-n", project.name, "-c", "worker") == shown

    refused = mallory.stoker("submit", *command, "--name", "stolen", *script, check=False)
    assert refused.returncode == 1 and "needs the right to use projectsecrets hf" in refused.stderr, refused.stderr
    body = {
        "apiVersion": "stoker.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "stolen", "namespace": project.name},
        "spec": {"trainer": {"command": ["true"]}, "secretEnv": {"HF_TOKEN": {"secret": "hf"}}},
    }
    as_mallory = f"--as=system:serviceaccount:{project.name}:mallory"
    said = kubectl("create", "-f", "-", as_mallory, stdin=json.dumps(body), check=False)
    assert "created" not in said and "stolen" not in kubectl("get", "tj", "-n", project.name, "-o", "name")

    forms = (VALUE, base64.b64encode(VALUE.encode()).decode())
    kinds = "pods,tj,events,configmaps,services,pvc,controllerrevisions"
    places = [kubectl("get", kinds, "-A", "-o", "json"), *(_logs(project, name) for name in ("api", "operator"))]
    assert not [place for place in places for form in forms if form in place]
    secrets = json.loads(kubectl("get", "secrets", "-A", "-o", "json"))["items"]
    holders = [one["metadata"]["name"] for one in secrets if any(form in json.dumps(one) for form in forms)]
    assert holders == ["stoker-secret.hf"]
    project.stoker("secret", "delete", "hf")
    assert "stoker-secret.hf" not in kubectl("get", "secrets", "-n", project.name, "-o", "name")


def _logs(project: Project, component: str) -> str:
    selector = f"app.kubernetes.io/component={component}"
    return project.stack.bed.kubectl("logs", "-n", SYSTEM, "-l", selector, "--tail=-1")
