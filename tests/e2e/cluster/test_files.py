"""What a job leaves is listed and copied while it runs, and by a pod of its own once it has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import Project
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Figure = Callable[[str, object], None]

TRAIN = """\
import os, time
os.makedirs("runs/one")
open("runs/one/model.pt", "wb").write(b"beside" * 100_000)
output = os.environ["STOKER_OUTPUT_DIR"]
open(output + "/best.pt", "wb").write(b"output" * 500_000)
os.symlink("/var/run/secrets/stoker.dev/token", output + "/token")
os.symlink("/etc", output + "/etc")
while not os.path.exists("/tmp/go"): time.sleep(0.1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN)
    return work


def test_files_are_there_while_a_job_runs_and_afterwards(project: Project, folder: Path, figure: Figure) -> None:
    image = project.stack.images["foreign-python"]
    project.stoker(
        "submit", "--image", image, "--memory", "128Mi", "--name", "one", "--gpus", "1", "--", "python3", "train.py",
        cwd=folder,
    )  # fmt: skip
    project.until_phase("one", Phase.RUNNING)
    expected = ["beside-code/runs/one/model.pt", "best.pt", "etc", "token"]
    until(lambda: _listed(project) == expected, "the running job's files", timeout_s=60)
    project.stoker("cp", "one:runs/one/model.pt", "running.pt", cwd=folder)
    assert (folder / "running.pt").read_bytes() == b"beside" * 100_000
    began = time.monotonic()
    project.stoker("cp", "one:best.pt", ".", cwd=folder)
    figure("stoker cp of 3 MB from a running worker, its session open", f"{time.monotonic() - began:.2f} s")
    project.stoker("exec", "one", "--", "touch", "/tmp/go")
    job = project.until_phase("one", Phase.SUCCEEDED)
    assert job.status.output == f"claim checkpoints, {job.uid}/output"

    began = time.monotonic()
    assert _listed(project) == expected
    figure("stoker files of an ended job, its reader pod started for it", f"{time.monotonic() - began:.1f} s")
    project.stoker("cp", "one:", "all", cwd=folder)
    assert (folder / "all" / "beside-code" / "runs" / "one" / "model.pt").read_bytes() == b"beside" * 100_000
    assert (folder / "all" / "best.pt").read_bytes() == b"output" * 500_000
    assert not (folder / "all" / "token").exists()
    for path in ("token", "etc/hostname"):
        refused = project.stoker("cp", f"one:{path}", "stolen", cwd=folder, check=False)
        assert refused.returncode == 1 and not (folder / "stolen").exists(), refused
    kubectl = project.stack.bed.kubectl
    pod = json.loads(kubectl("get", "pod", "one-files", "-n", project.name, "-o", "json"))
    assert pod["spec"]["nodeName"] == job.status.attempts[-1].workers[0].node, "where its claim was"
    assert "nvidia.com/gpu" not in json.dumps(pod["spec"]["containers"]) and not sum(project.stack.gpus_held().values())
    assert project.client.queue("default").usage.running == 0, "it is charged to no queue"

    project.stoker("delete", "one")
    until(
        lambda: "one-files" not in kubectl("get", "pods", "-n", project.name, "-o", "name"),
        "the pod is gone with its job",
        timeout_s=60,
    )


def _listed(project: Project) -> list[str]:
    return project.stoker("files", "one", "-o", "name").stdout.split()
