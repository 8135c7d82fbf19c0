"""A gang trains in containers on two real nodes; its log and progress stream over REST."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from stoker.client.updates import JobChanged
from stoker.spec.job import Phase
from tests.support.cluster_stack import Project

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
Figure = Callable[[str, object], None]


def test_a_gang_of_two_trains_on_two_nodes(project: Project, figure: Figure) -> None:
    began = time.monotonic()
    project.client.submit(
        {
            "workers": 2,
            "gpusPerWorker": 2,
            "cpu": "500m",
            "memory": "1500Mi",
            "trainer": {
                "recipe": "image-classification",
                "config": {"data": "digits", "epochs": 4},
            },
        },
        name="digits",
    )
    progressed = []
    for update in project.client.events("digits"):
        if isinstance(update, JobChanged):
            progress = update.job.status.progress
            if progress is not None and update.job.status.phase is Phase.RUNNING:
                progressed.append(progress.step)
    job = project.job("digits")
    took_s = time.monotonic() - began
    assert job.status.phase is Phase.SUCCEEDED, job.status
    assert progressed and progressed == sorted(progressed)
    ended = job.status.attempts[-1]
    assert {worker.node for worker in ended.workers} == {"n0", "n1"}
    assert "[rank 0] done: step 92" in project.log("digits", 1, worker=0)
    pods = project.pods("digits")
    for pod in pods:  # the gang met by DNS name, not by address
        env = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
        assert env["MASTER_ADDR"] == f"digits-1-0.digits.{project.name}.svc"
    accuracy = ended.progress.summary.get("accuracy") if ended.progress else None
    figure("gang of 2 workers × 2 ranks on two nodes, digits, 4 epochs: submit to Succeeded", f"{took_s:.1f} s")
    figure("its test accuracy, progress reports seen over REST while it ran", f"{accuracy}, {len(progressed)}")
