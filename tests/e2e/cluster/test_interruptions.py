"""A user's own script in a foreign image survives what a cluster does to it, losing at most one checkpoint interval."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest

from stoker.spec.job import Phase
from stoker.spec.outcome import Category, Intent
from tests.support.cluster_stack import Project, Stack
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
Figure = Callable[[str, object], None]

STEPS, SAVE_EVERY = 150, 25


def _finish(project: Project, name: str, what: str, figure: Figure) -> None:
    """Every step is in the logs, none lost beyond the last checkpoint."""
    job = project.until_phase(name, Phase.SUCCEEDED, timeout_s=150)
    lost = project.steps_lost(name)
    done = {step for attempt in range(1, job.status.attempt + 1) for step in project.steps(name, attempt)}
    assert done == set(range(1, STEPS + 1))
    assert all(0 <= steps <= SAVE_EVERY for steps in lost), lost
    figure(f"{what}: attempts, steps done twice (interval {SAVE_EVERY})", f"{job.status.attempt}, {lost}")


def test_suspended_and_resumed(project: Project, figure: Figure) -> None:
    project.count("counting", steps=STEPS, save_every=SAVE_EVERY)
    project.until_step("counting", 40)
    project.client.suspend("counting")
    project.until_phase("counting", Phase.SUSPENDED)
    assert not [pod for pod in project.pods("counting") if pod["status"]["phase"] == "Running"]
    project.client.resume("counting")
    _finish(project, "counting", "suspend and resume", figure)
    assert project.steps_lost("counting") == [0]  # it got SIGTERM, so it saved


def test_its_node_is_drained(stack: Stack, project: Project, figure: Figure) -> None:
    project.count("counting", steps=STEPS, save_every=SAVE_EVERY)
    project.until_step("counting", 40)
    node = project.node_of("counting")
    began = time.monotonic()
    with stack.cordoned(node):
        stack.bed.kubectl(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=stoker.dev/job=counting",
            "--timeout=60s", timeout_s=70,
        )  # fmt: skip
        project.until_phase("counting", Phase.RUNNING, attempt=2)
        figure("drain to running on the other node", f"{time.monotonic() - began:.1f} s")
        assert project.node_of("counting") != node
        _finish(project, "counting", "drain", figure)
    job = project.job("counting")
    assert job.status.attempts[0].category is Category.INTERRUPTED
    assert f"evicted from {node}, by a drain" in job.status.attempts[0].message
    assert project.steps_lost("counting") == [0]


def test_a_drain_and_a_namespaces_end_wait_for_no_pod_whose_labels_were_taken(stack: Stack, project: Project) -> None:
    """As an administrator, allowed by the policy on pods: a tenant's attempt is refused at once."""
    project.count("counting", steps=STEPS, save_every=SAVE_EVERY)
    project.until_step("counting", 10)
    node, pod = project.node_of("counting"), project.pods("counting")[0]["metadata"]["name"]
    gone = [f"stoker.dev/{name}-" for name in ("job", "job-uid", "attempt", "worker", "queue")]
    stack.bed.kubectl("label", "pod", "-n", project.name, pod, *gone)
    with stack.cordoned(node):
        stack.bed.kubectl(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s",
            "--pod-selector=app.kubernetes.io/name!=stoker", timeout_s=70,
        )  # fmt: skip
        project.until_phase("counting", Phase.RUNNING, attempt=2)
    stack.bed.kubectl("delete", "tj", "counting", "-n", project.name, "--timeout=60s", timeout_s=70)
    stack.bed.kubectl("wait", f"pod/{pod}", "-n", project.name, "--for=delete", "--timeout=60s", timeout_s=70)


def test_a_job_of_higher_priority_preempts_it_and_it_goes_on_elsewhere(
    stack: Stack, project: Project, figure: Figure
) -> None:
    """Two GPUs a node: one of the victim's on one, one of a job that may not be stopped on the other."""
    preemption = {"spec": {"preemption": {"withinQueue": "LowerPriority"}}}
    stack.bed.kubectl("patch", "queue", "default", "--type=merge", "-p", json.dumps(preemption))
    try:
        project.count("counting", steps=STEPS, save_every=SAVE_EVERY, gpusPerWorker=1)
        project.until_step("counting", 30)
        node = project.node_of("counting")
        with stack.cordoned(node):
            project.count("holder", steps=10_000, gpusPerWorker=1, preemptible=False)
            project.until_phase("holder", Phase.RUNNING)
        began = time.monotonic()
        project.count("urgent", steps=20, gpusPerWorker=2, priority=5)
        urgent = project.until_phase("urgent", Phase.RUNNING, Phase.SUCCEEDED)
        figure(
            "a job of higher priority: submit to running, its victim saved and gone",
            f"{time.monotonic() - began:.1f} s",
        )
        assert urgent.status.attempt == 1
        project.until_phase("counting", Phase.RUNNING, attempt=2)
        assert project.node_of("counting") != node
        _finish(project, "counting", "preempted", figure)
        (ended, _) = project.job("counting").status.attempts
        assert (ended.intent, project.job("counting").status.retries) == (Intent.PREEMPT, {})
        assert project.steps_lost("counting") == [0]  # it saves on SIGTERM
        project.until_phase("urgent", Phase.SUCCEEDED)
        assert project.job("holder").status.attempt == 1
    finally:
        stack.bed.kubectl("patch", "queue", "default", "--type=merge", "-p", '{"spec": {"preemption": null}}')
        project.client.cancel("holder")
    project.until_phase("holder", Phase.CANCELLED)


def test_an_elastic_training_grows_onto_a_free_node_and_makes_room_for_an_urgent_job(
    stack: Stack, project: Project, figure: Figure
) -> None:
    """Two GPUs a node, two a worker: one worker beside another job, two when that has gone, one again."""
    preemption = {"spec": {"preemption": {"withinQueue": "LowerPriority"}}}
    stack.bed.kubectl("patch", "queue", "default", "--type=merge", "-p", json.dumps(preemption))
    try:
        project.count("holder", steps=10_000, gpusPerWorker=2, preemptible=False)
        project.until_phase("holder", Phase.RUNNING)
        project.client.submit(
            {
                "workers": 2,
                "elastic": {"min": 1, "max": 2},
                "gpusPerWorker": 2,
                "cpu": "500m",
                "memory": "1500Mi",
                "checkpoint": {"claim": "checkpoints", "every": "5s", "grace": "20s"},
                "trainer": {"recipe": "image-classification", "config": {"data": "digits", "epochs": 100_000}},
            },
            name="elastic",
        )
        nodes = [_where_it_trains(project, 1)]
        project.client.cancel("holder")
        nodes.append(_where_it_trains(project, 2))
        began = time.monotonic()
        project.count("urgent", steps=20, gpusPerWorker=2, priority=5)
        project.until_phase("urgent", Phase.RUNNING, Phase.SUCCEEDED)
        figure(
            "an elastic training makes room: submit to running of the urgent job", f"{time.monotonic() - began:.1f} s"
        )
        nodes.append(_where_it_trains(project, 3))
        assert [len(some) for some in nodes] == [1, 2, 1]
        project.until_phase("urgent", Phase.SUCCEEDED)
        ended = project.job("elastic").status.attempts
        assert [one.intent for one in ended] == [Intent.RESIZE] * 2 and project.job("elastic").status.retries == {}
        for attempt in (1, 2):  # it goes on behind the last step that it made
            (step,) = set(re.findall(r"stopped on request after step (\d+)", project.log("elastic", attempt, worker=0)))
            assert f"resumed at step {step} " in project.log("elastic", attempt + 1, worker=0)
    finally:
        stack.bed.kubectl("patch", "queue", "default", "--type=merge", "-p", '{"spec": {"preemption": null}}')
        for name in ("holder", "elastic"):
            project.client.cancel(name)
    project.until_phase("elastic", Phase.CANCELLED)


def _where_it_trains(project: Project, attempt: int) -> set[str]:
    """The nodes of that attempt, once it has made a step."""

    def trains() -> bool:
        job = project.job("elastic")
        progress = job.status.progress
        running = (job.status.attempt, job.status.phase) == (attempt, Phase.RUNNING)
        return running and progress is not None and "epoch" in project.log("elastic", attempt, worker=0)

    until(trains, f"steps of attempt {attempt}", timeout_s=120)
    return {placed.node for placed in project.job("elastic").status.placement}


def test_its_node_is_lost(stack: Stack, project: Project, figure: Figure) -> None:
    node = "n1"  # the api is on n0
    with stack.cordoned("n0"):
        project.count("counting", steps=STEPS, save_every=SAVE_EVERY)
        project.until_step("counting", 40)
    assert project.node_of("counting") == node
    began = time.monotonic()
    stack.bed.nodes[node].power_off()
    try:
        project.until_phase("counting", Phase.RUNNING, attempt=2, timeout_s=180)
        figure("power cut to running on the other node", f"{time.monotonic() - began:.1f} s")
        assert project.node_of("counting") != node
        _finish(project, "counting", "node lost", figure)
    finally:
        stack.bed.nodes[node].power_on()
        stack.bed.wait_ready(node)
    assert project.job("counting").status.attempts[0].category is Category.NODE_LOST
    until(lambda: sum(stack.gpus_held().values()) == 0, "no GPU is held once the node is back", timeout_s=60)
