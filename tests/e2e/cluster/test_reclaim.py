"""An owner takes its guarantee back from a borrower's trainer, again and again; no bit of the training changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from stoker.client.client import Client
from stoker.spec.job import Phase
from stoker.spec.outcome import Intent
from tests.support.cluster_stack import Project, Stack
from tests.support.harness import until
from tools.verify.resume import Traced, compare, default_config

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
Figure = Callable[[str, object], None]

RECLAIMS = 20


@pytest.fixture
def owner(stack: Stack, project: Project) -> Iterator[str]:
    stack.apply("owner", project=project.name)
    yield "owner"
    for job in project.client.ls():
        project.client.cancel(job.metadata.name)
    stack.bed.kubectl("delete", "queue", "owner", "--wait=false")


def test_an_owner_reclaims_from_a_borrowers_trainer_twenty_times(
    stack: Stack, project: Project, owner: str, figure: Figure
) -> None:
    """Two GPUs a node: the trainer's beside a free one, and on the other node a holder's, which may not be stopped."""
    shared = stack.bed.folder / f"shared-{project.name}"
    reference = _train(project, shared, "reference")
    project.until_phase("reference", Phase.SUCCEEDED, timeout_s=600)
    stopped = _train(project, shared, "stopped")
    project.until_phase("stopped", Phase.RUNNING)
    with stack.cordoned(project.node_of("stopped")):
        _hold(project, "holder-0")
    waits = []
    for number in range(RECLAIMS):
        wanted = stopped.count() + 5
        until(lambda wanted=wanted: stopped.count() >= wanted, f"step {wanted}", timeout_s=60, every_s=0.05)
        node, began = project.node_of("stopped"), time.monotonic()
        project.count(f"owner-{number}", steps=5, gpusPerWorker=2, queue=owner)
        project.until_phase(f"owner-{number}", Phase.RUNNING, Phase.SUCCEEDED)
        waits.append(time.monotonic() - began)
        went_on = project.until_phase("stopped", Phase.RUNNING, attempt=number + 2)
        assert went_on.status.attempts[-1].intent is Intent.PREEMPT
        assert project.node_of("stopped") != node
        project.until_phase(f"owner-{number}", Phase.SUCCEEDED)
        _hold(project, f"holder-{number + 1}")
        project.client.cancel(f"holder-{number}")
        project.until_phase(f"holder-{number}", Phase.CANCELLED)
    project.client.cancel(f"holder-{RECLAIMS}")
    job = project.until_phase("stopped", Phase.SUCCEEDED, timeout_s=600)
    assert job.status.retries == {}
    compare(_output(project.client, shared, reference), _output(project.client, shared, stopped))
    trained = [line["step"] for line in stopped.lines() if "loss" in line]
    again = [before + 1 - after for before, after in pairwise(trained) if after <= before]
    assert len(again) <= RECLAIMS and max(again, default=0) <= 1, f"steps done twice: {again}"
    figure(
        f"{RECLAIMS} reclaims from a trainer: submit to the owner's job running, median and worst; steps done twice",
        f"{median(waits):.1f} s, {max(waits):.1f} s; {sum(again)} of {trained[-1]}; weights bitwise equal",
    )


def _train(project: Project, shared: Path, name: str) -> Traced:
    config = default_config(epochs=160)
    config["config"]["model"]["width"] = 256  # so that it is still under way when all the owner's jobs have run
    project.client.submit(
        {
            "gpusPerWorker": 1,
            "cpu": "500m",
            "memory": "1500Mi",
            "trainer": {"recipe": config["recipe"], "config": config["config"]},
            "precision": config["precision"],
            "checkpoint": {"every": "10s", "keep": 2, "grace": "30s"},
            "env": {"STOKER_TRACE_FILE": f"/checkpoints/{name}.trace"},
        },
        name=name,
    )
    return Traced(shared / f"{name}-ended", shared / f"{name}.trace")


def _hold(project: Project, name: str) -> None:
    """One GPU, on the node that the trainer is not on: there both are free, and none beside the trainer."""
    project.count(name, steps=100_000, step_s=1, gpusPerWorker=1, preemptible=False)
    project.until_phase(name, Phase.RUNNING)


def _output(client: Client, shared: Path, traced: Traced) -> Traced:
    traced.folder.mkdir()
    name = traced.trace.stem
    (traced.folder / "output").symlink_to(shared / client.get(name).uid / "output")
    return traced
