"""What people see who use kubectl: columns, explain, describe, wait, apply and the message of a refusal."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.spec.crd.definition import DEFINITIONS, custom_resource
from stoker.spec.job import JOBS, TrainingJob
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.errors import BedError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
JOB = """\
apiVersion: stoker.dev/v1alpha1
kind: TrainingJob
metadata:
  name: mnist
spec:
  workers: 2
  gpusPerWorker: 4
  cpu: 2
  trainer:
    recipe: image-classification
    config: {epochs: 3}
"""
STATUS: dict[str, Any] = {
    "phase": "Running",
    "reason": "WorkersRunning",
    "message": "2 workers run",
    "attempt": 1,
    "observedGeneration": 1,
    "progress": {"at": 1.5, "step": 30, "totalSteps": 90},
}


def succeeded(status: str) -> dict[str, Any]:
    condition = {"type": "Succeeded", "status": status, "reason": "Completed"}
    return {"conditions": [condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}


class Kubectl:
    """kubectl in a namespace of the test's own."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace

    def __call__(self, *args: str, stdin: str = "") -> str:
        return self._cluster.kubectl(f"--namespace={self._namespace}", *args, stdin=stdin)

    def status(self, status: dict[str, Any]) -> str:
        patch = json.dumps({"status": status})
        return self("patch", "tj", "mnist", "--subresource=status", "--type=merge", f"--patch={patch}")

    def refuses(self, *args: str, stdin: str = "") -> str:
        with pytest.raises(BedError) as refused:
            self(*args, stdin=stdin)
        return str(refused.value)


@pytest.fixture
def kubectl(cluster_with_crds: Cluster, namespace: str) -> Kubectl:
    return Kubectl(cluster_with_crds, namespace)


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: str(definition.kind))
def test_the_api_server_has_nothing_against_a_definition(definition: Any, cluster_with_crds: Cluster) -> None:
    found = json.loads(cluster_with_crds.kubectl("get", "crd", definition.name, "--output=json"))
    conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}, "no NonStructuralSchema, no Terminating"
    wanted = custom_resource(definition)["spec"]["versions"][0]
    assert found["spec"]["versions"][0]["schema"] == wanted["schema"], "stored as it was sent, nothing dropped"


def test_apply_is_repeatable_and_says_what_a_change_breaks(kubectl: Kubectl) -> None:
    assert "created" in kubectl("apply", "--filename=-", stdin=JOB)
    assert "unchanged" in kubectl("apply", "--filename=-", stdin=JOB)
    assert "configured" in kubectl("apply", "--filename=-", stdin=JOB + "  suspend: true\n")
    said = kubectl.refuses("apply", "--filename=-", stdin=JOB.replace("workers: 2", "workers: 3"))
    assert "* spec.workers" in said or "spec.workers: Invalid value" in said
    assert "spec.workers can't be changed once the job exists; submit a new job" in said
    typo = kubectl.refuses("apply", "--filename=-", stdin=JOB.replace("mnist", "b").replace("workers", "wrkers"))
    assert 'unknown field "spec.wrkers"' in typo


def test_the_columns_of_get(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=JOB)
    kubectl.status(STATUS)
    head, row = cells(kubectl("get", "tj"))
    assert head == ["NAME", "PHASE", "REASON", "QUEUE", "WORKERS", "GPUS/WORKER", "ATTEMPT", "AGE"]
    assert row[:-1] == ["mnist", "Running", "WorkersRunning", "default", "2", "4", "1"]
    wide = kubectl("get", "trainingjob", "mnist", "--output=wide")
    assert cells(wide)[0][7:] == ["PRIORITY", "STEP", "OF", "MESSAGE", "AGE"]
    assert cells(wide)[1][7:-1] == ["0", "30", "90", "2", "workers", "run"]
    assert "trainingjob.stoker.dev/mnist" in kubectl("get", "all")
    assert "trainingjob.stoker.dev/mnist" in kubectl("get", "stoker")


def test_jobs_are_selected_by_fields(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=JOB)
    kubectl.status(STATUS)
    for selector, found in {
        "spec.queue=default,status.phase=Running": 1,
        "spec.queue=other": 0,
        "status.reason=Completed": 0,
        "spec.suspend=false": 1,
    }.items():
        names = kubectl("get", "tj", "--output=name", f"--field-selector={selector}").split()
        assert len(names) == found, selector


async def test_wait_sees_the_end(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=JOB)
    kubectl.status(STATUS | succeeded("False"))
    waits = [
        asyncio.create_task(asyncio.to_thread(kubectl, "wait", "tj/mnist", f"--for={what}", "--timeout=30s"))
        for what in ("condition=Succeeded", "jsonpath={.status.phase}=Succeeded")
    ]
    kubectl.status({"phase": "Succeeded", "reason": "Completed"} | succeeded("True"))
    assert await asyncio.gather(*waits) == ["trainingjob.stoker.dev/mnist condition met\n"] * 2


def test_describe_shows_the_whole_object(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=JOB)
    kubectl.status(STATUS)
    text = " ".join(kubectl("describe", "tj", "mnist").split())
    for part in ("Gpus Per Worker: 4", "Recipe: image-classification", "Message:", "2 workers run", "Events:"):
        assert part in text


def test_explain_has_a_sentence_for_every_field(kubectl: Kubectl) -> None:
    text = explain(kubectl, "trainingjob.spec.trainer")
    assert "What runs: a recipe of ours with its config, or a command of the user's." in text
    assert "A program and its arguments, run once per worker with torchrun's" in text
    assert "auto" in explain(kubectl, "tj.spec.precision")
    for definition in DEFINITIONS:
        for path in fields(custom_resource(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
            assert path[1], f"{definition.name} {path[0]} has no description"


def explain(kubectl: Kubectl, path: str) -> str:
    """The server publishes the documents of new kinds within seconds."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return kubectl("explain", path)
        except BedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def fields(schema: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    found = []
    for name, part in schema.get("properties", {}).items():
        if path or name in ("spec", "status"):
            found += [(f"{path}.{name}", part.get("description", "")), *fields(part, f"{path}.{name}")]
    return found + (fields(schema["items"], f"{path}[]") if "items" in schema else [])


def test_a_status_of_a_newer_version_is_taken_and_read(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=JOB)
    kubectl.status(STATUS | {"reason": "SomethingNew", "phase": "Paused", "novel": {"a": 1}})
    found = yaml.safe_load(kubectl("get", "tj", "mnist", "--output=yaml"))
    assert found["status"]["reason"] == "SomethingNew"
    assert "novel" not in found["status"], "pruned"


def test_the_status_we_write_is_stored_whole(kubectl: Kubectl) -> None:
    full = {
        **STATUS,
        **succeeded("True"),
        "intent": "Suspend",
        "placement": [{"worker": 0, "node": "n0"}],
        "queuedAt": "2026-01-01T00:00:00.123456Z",
        "blamed": [{"node": "n1", "until": "2026-01-01T00:00:00Z"}],
        "ranS": 1.5,
        "attainedGpuSeconds": 12.5,
        "retries": {"Killed": 1},
        "attempts": [
            {
                "number": 1,
                "endedAt": "2026-01-01T00:00:00Z",
                "category": "Killed",
                "workers": [{"worker": 0, "node": "n0", "podUid": "u", "exitCode": 137}],
                "progress": {"at": 1.0, "metrics": {"loss": 0.5}, "summary": {"weights": [1, {"a": 2}]}},
            }
        ],
    }
    kubectl("apply", "--filename=-", stdin=JOB)
    kubectl.status(full)
    found = json.loads(kubectl("get", "tj", "mnist", "--output=json"))
    read, wrote = (TrainingJob.model_validate(found | {"status": status}) for status in (found["status"], full))
    assert read.status == wrote.status
    assert JOBS.model is TrainingJob


def test_two_managers_share_the_projects_of_a_queue(kubectl: Kubectl, namespace: str) -> None:
    """The list is a set: each applies its own entries, and neither takes the other's away."""
    for manager, project in (("a", "team-a"), ("b", "team-b")):
        queue = {"apiVersion": "stoker.dev/v1alpha1", "kind": "Queue", "metadata": {"name": namespace}}
        body = json.dumps(queue | {"spec": {"projects": [project]}})
        kubectl("apply", "--server-side", f"--field-manager={manager}", "--filename=-", stdin=body)
    found = kubectl("get", "queues.stoker.dev", namespace, "--output=jsonpath={.spec.projects}")
    kubectl("delete", "queues.stoker.dev", namespace)
    assert json.loads(found) == ["team-a", "team-b"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: str(path.name))
def test_the_examples_are_taken_by_kubectl_too(path: Path, kubectl: Kubectl) -> None:
    assert "created (server dry run)" in kubectl("create", "--dry-run=server", f"--filename={path}")
