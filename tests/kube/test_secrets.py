"""A project's secret on a real API server: written with the caller's token, referred to by pods, waited for; its value
is in no other object. Kubelets are the test bed's stand-in."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from stoker.kube.client import KubeClient
from stoker.kube.project_secrets import KubeSecrets
from stoker.spec.job import Phase
from stoker.spec.outcome import Category
from stoker.spec.reasons import Code
from stoker.store.clock import SystemClock
from tests.support.testbed.kubelets import Play

from .operator_world import World

VALUE = base64.b32encode(os.urandom(25)).decode()
FORMS = (VALUE, base64.b64encode(VALUE.encode()).decode())
SECRET = {"HF_TOKEN": {"secret": "hf"}}
MISSING = Play(image=("CreateContainerConfigError", 'secret "stoker-secret.hf" not found'))


async def test_a_job_waits_for_its_secret_which_stands_in_no_object_but_its_own(world: World) -> None:
    await world.node("n", gpus=1)
    there = set[str]()
    world.kubelet.script = lambda pod: Play() if there or not pod.metadata.name.startswith("waits") else MISSING
    await world.submit("waits", gpusPerWorker=1, secretEnv=SECRET)
    await world.until(lambda: world.job("waits").status.reason is Code.SECRET_MISSING, "the reason")
    await world.until(lambda: world.job("waits").status.attempts, "it is withdrawn", timeout_s=40)
    job = world.job("waits")
    message = f"secret 'hf' of project '{world.project}' does not exist: `stoker secret set hf -p {world.project}`"
    assert job.status.attempts[0].category is Category.SECRET_MISSING and message in job.status.attempts[0].message
    assert not job.status.blamed

    await _may_write_secrets(world)
    token = world.token("writer")
    async with KubeClient.from_config(
        kubeconfig=world.cluster.kubeconfig, clock=SystemClock(), anonymous=True
    ) as callers:
        made, is_new = await KubeSecrets(callers).put(token, world.project, "hf", "value", VALUE)
        assert is_new and made.keys == ("value",)
        there.add("hf")
        job = await world.phase("waits", Phase.RUNNING, timeout_s=60)
        assert not job.status.retries.get(Category.USER_ERROR)
        (pod,) = [pod for pod in world.pods_of("waits") if not pod.ended]
        manifest = json.loads(await world.kubectl("get", "pod", "-n", world.project, pod.metadata.name, "-o", "json"))
        (variable,) = [one for one in manifest["spec"]["containers"][0]["env"] if one["name"] == "HF_TOKEN"]
        assert variable["valueFrom"] == {"secretKeyRef": {"name": "stoker-secret.hf", "key": "value"}}

        listed = await world.kubectl("api-resources", "--verbs=list", "-o", "name")
        kinds = [kind for kind in listed.split() if kind != "secrets" and not kind.endswith("metrics.k8s.io")]
        everything = await world.kubectl("get", ",".join(kinds), "-A", "-o", "json", timeout_s=60)
        assert '"waits"' in everything and not [form for form in FORMS if form in everything]
        held = json.loads(await world.kubectl("get", "secrets", "-A", "-o", "json"))["items"]
        holders = [one["metadata"]["name"] for one in held if any(form in json.dumps(one) for form in FORMS)]
        assert holders == ["stoker-secret.hf"]
        await KubeSecrets(callers).delete(token, world.project, "hf", None)


async def _may_write_secrets(world: World) -> None:
    """An account of the project's, with the rights that docs/secrets.md says."""
    meta = {"name": "writer", "namespace": world.project}
    rbac: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "create", "patch", "delete"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "writer"}
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {**rbac, "kind": "Role", "rules": [rule]},
        {**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": [{"kind": "ServiceAccount", **meta}]},
    ]
    await world.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
