"""The chart's life by real helm, with jobs on the cluster: upgraded, rolled back, removed, installed again."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import CHART, SYSTEM, WATCH, Project, Stack
from tests.support.harness import until
from tests.support.testbed.build import program
from tools.release.chart import package

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
Figure = Callable[[str, object], None]

ROOT = Path(__file__).parents[3]
STEPS = 400


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """The chart as another version of it."""
    return package(version="99.0.0", folder=tmp_path)


@pytest.fixture
def long_job(project: Project) -> str:
    """A job that takes longer than what is done to the chart; it ends undisturbed."""
    project.count("counting", steps=STEPS, step_s=0.2, save_every=STEPS)
    project.until_step("counting", 10)
    return "counting"


def _undisturbed(project: Project, name: str) -> None:
    """One attempt, every step done once: it never noticed."""
    job = project.until_phase(name, Phase.SUCCEEDED, timeout_s=200)
    assert job.status.attempt == 1
    assert project.steps(name, 1) == list(range(1, STEPS + 1))


def _versions(stack: Stack) -> set[str]:
    """Which versions of the chart the running pods of operator and api belong to."""
    pods = json.loads(stack.bed.kubectl("get", "pods", "-n", SYSTEM, "-o", "json"))["items"]
    return {pod["metadata"]["labels"]["helm.sh/chart"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}


def test_upgraded_and_rolled_back_while_a_job_runs(
    stack: Stack, project: Project, long_job: str, next_version: Path, figure: Figure
) -> None:
    uid = [pod["metadata"]["uid"] for pod in project.pods(long_job)]
    before = stack.release.revisions[-1]["revision"]
    scrape_token = stack.secret(WATCH, "stoker-exporter-scrape", "token")
    began = time.monotonic()
    stack.release.upgrade(next_version, stack.values(podAnnotations={"example.com/changed": "yes"}))
    figure("helm upgrade --wait with a job running", f"{time.monotonic() - began:.1f} s")
    assert any("99.0.0" in version for version in _versions(stack))
    assert [pod["metadata"]["uid"] for pod in project.pods(long_job)] == uid
    assert project.job(long_job).status.attempt == 1
    assert stack.secret(WATCH, "stoker-exporter-scrape", "token") == scrape_token
    began = time.monotonic()
    stack.release.rollback(before)
    figure("helm rollback --wait with a job running", f"{time.monotonic() - began:.1f} s")
    assert not any("99.0.0" in version for version in _versions(stack))
    assert [pod["metadata"]["uid"] for pod in project.pods(long_job)] == uid
    _undisturbed(project, long_job)


def test_removed_and_installed_again_the_jobs_are_found(
    stack: Stack, project: Project, long_job: str, figure: Figure
) -> None:
    project.count("over", steps=3)
    project.until_phase("over", Phase.SUCCEEDED)
    try:
        said = stack.release.uninstall()
        assert "kept" in said.lower(), said
        until(lambda: not any(name.startswith("pod/") for name in _left(stack)), "its pods are gone")
        kept = _left(stack)
        assert kept == {
            "customresourcedefinition/gpunodes.stoker.dev",
            "customresourcedefinition/queues.stoker.dev",
            "customresourcedefinition/trainingjobs.stoker.dev",
            "customresourcedefinition/trainingruntimes.stoker.dev",
            f"persistentvolumeclaim/{SYSTEM}/stoker-api-data",
        }
        for name in kept:
            assert name.rpartition("/")[2] in said, (name, said)
        assert {pod["status"]["phase"] for pod in project.pods(long_job)} == {"Running"}
    finally:
        stack.release.install(CHART, stack.values())
    assert {job.metadata.name for job in project.client.ls()} == {"over", long_job}
    assert "step 3" in project.log("over", 1)
    _undisturbed(project, long_job)
    figure("helm uninstall and install with a job running", "1 attempt, no step lost or repeated")


def test_from_nothing_to_the_first_step(stack: Stack, figure: Figure, tmp_path: Path) -> None:
    """Everything of Stoker removed, what is kept too; then how long until a user's job does its first step."""
    stack.release.uninstall()
    remove = (ROOT / "docs" / "helm.md").read_text().split("every object of theirs:\n\n```text\n")[1].split("```")[0]
    env = {"PATH": f"{program('kubectl').parent}:{os.environ['PATH']}", "KUBECONFIG": str(stack.bed.kubeconfig)}
    subprocess.run(["bash", "-ec", remove], env=env | {"HOME": str(tmp_path)}, check=True, timeout=100)
    until(lambda: not _left(stack) - {f"persistentvolumeclaim/{SYSTEM}/stoker-api-data"}, "nothing is left")
    began = time.monotonic()
    stack.release.install(CHART, stack.values())
    installed_s = time.monotonic() - began
    project = stack.project("from-nothing")
    try:
        project.count("first", steps=5)
        project.until_step("first", 1)
        first_s = time.monotonic() - began
        project.until_phase("first", Phase.SUCCEEDED)
    finally:
        project.client.close()
        stack.bed.kubectl("delete", "namespace", project.name, "--wait=false")
    figure("helm install --wait, images on the nodes", f"{installed_s:.1f} s")
    figure("helm install to the first step of the first job (project and token made between)", f"{first_s:.1f} s")


def test_the_charts_own_tests_pass(stack: Stack) -> None:
    assert "Succeeded" in stack.release.test()


def _left(stack: Stack) -> set[str]:
    """What the cluster still has of the release: by its label, whatever the kind, and all that is in its namespace."""
    kinds = stack.bed.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    own = [kind for kind in kinds if kind not in ("events", "events.events.k8s.io", "endpoints")]
    listed = stack.bed.kubectl(
        "get", ",".join(own), "-A", "-l", "app.kubernetes.io/instance=stoker", "-o", "json", "--ignore-not-found"
    )
    found = json.loads(listed)["items"] if listed.strip() else []
    inside = stack.bed.kubectl("get", ",".join(own), "-n", SYSTEM, "-o", "json", "--ignore-not-found")
    found += [one for one in json.loads(inside)["items"] if one["metadata"].get("namespace") == SYSTEM]
    names = set()
    for one in found:
        where = one["metadata"].get("namespace")
        names.add("/".join(filter(None, (one["kind"].lower(), where, one["metadata"]["name"]))))
    return names - {f"configmap/{SYSTEM}/kube-root-ca.crt", f"serviceaccount/{SYSTEM}/default"}
