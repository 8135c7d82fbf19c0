"""A GPU becomes sick on a real node: its gang goes on elsewhere, and none lands there until it is healthy.

The fake NVML says so to the exporter alone: the device plugin goes on offering the GPU, so its whole node is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from stoker.spec.job import Phase
from tests.support.burn_in_torch import TORCH_WITH_A_GPU
from tests.support.cluster_exporters import Exporter
from tests.support.cluster_stack import CHART, SYSTEM, Project, Stack
from tests.support.harness import until
from tests.support.nvml_scenario import Scenario

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Figure = Callable[[str, object], None]

SICK = "n1"
GOAL_S = 10.0
LATER = 3
GANG = 4
SW_THERMAL = 0x20


@dataclass(frozen=True)
class Cause:
    happen: Callable[[Scenario, int, float], None]
    """To the GPU of this number, at this time."""
    said: str
    at_checkpoint: bool = False
    """It is moved only once it has saved since; else at once."""
    ends: Callable[[Scenario, int, float], None] | None = None
    """None: when an administrator says so."""


CAUSES = {
    "XID 79": Cause(lambda driver, gpu, at: driver.xid(gpu, at, 79), "XID 79"),
    "uncorrected memory errors without an XID": Cause(
        lambda driver, gpu, at: driver.gpus[gpu].step(at, ecc_uncorrected_volatile=2), "uncorrected memory errors"
    ),
    "recovery action": Cause(
        lambda driver, gpu, at: driver.gpus[gpu].step(at, recovery=2),
        "the driver asks for a reboot of the node",
        at_checkpoint=True,
        ends=lambda driver, gpu, at: driver.gpus[gpu].step(at, recovery=0),
    ),
}


@pytest.fixture
def repaired(stack: Stack) -> Iterator[None]:
    """The node's GPUs are healthy once the test has ended."""
    yield
    stack.drivers.reset(SICK)
    stack.clear_gpus(SICK)


@pytest.mark.parametrize("name", CAUSES)
def test_a_sick_gpu_moves_its_gang_and_nothing_lands_there_until_it_is_well(
    stack: Stack, project: Project, repaired: None, figure: Figure, name: str
) -> None:
    cause, driver = CAUSES[name], stack.drivers.scenario[SICK]
    (other,) = stack.bed.nodes.keys() - {SICK}
    with stack.cordoned(other):
        uid = project.count("counting", steps=900, save_every=50, workers=2, gpusPerWorker=1, env={"REPORTS": "1"}).uid
        project.until_step("counting", 20)
    device = until(lambda: Exporter(stack, SICK).shares(job_uid=uid), "its GPUs are seen")[0]["uuid"]
    gpu, at = int(device.rsplit("-", 1)[1]), time.time() + 1
    cause.happen(driver, gpu, at)
    driver.write()
    moved = project.until_phase("counting", Phase.RUNNING, attempt=2)
    running_at = time.time()
    assert {placed.node for placed in moved.status.placement} == {other} and moved.status.retries == {}
    ended = moved.status.attempts[0]
    assert f"is sick ({cause.said})" in ended.message
    project.until_step("counting", 1, attempt=2)
    lost = project.steps_lost("counting")
    assert lost == [0], "it saves on SIGTERM"
    figure(f"{name} on a real node: seconds to the gang of 2 running on the other", f"{running_at - at:.1f}")
    took_s = running_at - at
    if cause.at_checkpoint:
        assert moved.status.progress is not None and moved.status.progress.checkpoint is not None
        saved_at = moved.status.progress.checkpoint.at
        assert saved_at is not None and saved_at > at
        took_s = running_at - saved_at
        figure(f"{name}: the same since its first checkpoint after it", f"{took_s:.1f}")
    figure(f"{name}: steps done twice", lost[0])
    assert took_s < 3 * GOAL_S, "what a loaded machine may add"

    project.client.cancel("counting")
    for number in range(LATER):
        project.count(f"later-{number}", steps=1, gpusPerWorker=1)
    for number in range(LATER):
        project.until_phase(f"later-{number}", Phase.SUCCEEDED)
        (pod,) = project.pods(f"later-{number}")
        assert pod["spec"]["nodeName"] == other
    figure(f"{name}: jobs that landed on the sick GPU's node afterwards", f"0 of {LATER}")
    with stack.cordoned(other):
        project.count("back", steps=1, gpusPerWorker=1)
        until(lambda: f"sick: {cause.said} since" in project.client.why("back").summary, "why names it")
        well = time.monotonic()
        if cause.ends is None:
            stack.clear_gpus(SICK)
        else:
            cause.ends(driver, gpu, time.time())
            driver.write()
        project.until_phase("back", Phase.RUNNING, Phase.SUCCEEDED)
        said = "cleared by kubectl" if cause.ends is None else "over"
        figure(f"{name}: {said} → a job runs there again", f"{time.monotonic() - well:.1f} s")


@pytest.fixture
def burn_ins(stack: Stack) -> Iterator[None]:
    """The operator tests sick GPUs, with what is taken for CUDA in its own namespace alone."""
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "torch", "namespace": SYSTEM}}
    stack.bed.kubectl("apply", "-f", "-", stdin=json.dumps(files | {"data": {"sitecustomize.py": TORCH_WITH_A_GPU}}))
    volume = {"name": "torch", "source": {"configMap": {"name": "torch"}}, "mountPath": "/torch"}
    runtime = {"imagePullPolicy": "Never", "defaultFor": [SYSTEM], "volumes": [volume], "env": {"PYTHONPATH": "/torch"}}
    stack.put_runtime("burn-in", runtime)
    try:
        stack.release.upgrade(CHART, stack.values(health={"burnIn": {"enabled": True, "seconds": 1}}))
        yield
    finally:
        stack.release.upgrade(CHART, stack.values())
        stack.bed.kubectl("delete", "trainingruntime", "burn-in")
        stack.bed.kubectl("delete", "configmap", "torch", "-n", SYSTEM)


@pytest.mark.timeout(600)
def test_what_is_over_is_tested_before_the_node_takes_jobs_again(
    stack: Stack, project: Project, repaired: None, burn_ins: None, figure: Figure
) -> None:
    cause, driver = CAUSES["recovery action"], stack.drivers.scenario[SICK]
    (other,) = stack.bed.nodes.keys() - {SICK}
    cause.happen(driver, 0, time.time())
    driver.write()
    until(lambda: _causes(stack), "it is sick", timeout_s=60)
    with stack.cordoned(other):
        project.count("back", steps=1, gpusPerWorker=1)
        until(lambda: f"sick: {cause.said} since" in project.client.why("back").summary, "why names it")
        assert cause.ends is not None
        over_at = time.time()
        cause.ends(driver, 0, over_at)
        driver.write()
        project.until_phase("back", Phase.RUNNING, Phase.SUCCEEDED, timeout_s=240)
    figure("recovery action over → burn-in passed, a job runs there again", f"{time.time() - over_at:.1f} s")
    tests = json.loads(stack.bed.kubectl("get", "trainingjobs", "-n", SYSTEM, "-o", "json"))["items"]
    assert [(one["status"]["phase"], one["spec"]["gpusPerWorker"]) for one in tests] == [
        ("Succeeded", stack.bed.nodes[SICK].gpus)
    ]
    assert tests[0]["status"]["burnIn"]["gpu"] == f"GPU-{SICK}-0"
    (cleared,) = (one for one in _object(stack)["spec"]["cleared"] if one["gpu"] == f"GPU-{SICK}-0")
    assert cleared["by"] == "burn-in"
    stack.bed.kubectl("delete", "trainingjobs", "--all", "-n", SYSTEM)


@pytest.mark.timeout(1500)
def test_a_hot_gpu_moves_the_gangs_that_wait_for_it_and_is_left_out_after_two(
    stack: Stack, project: Project, repaired: None, figure: Figure
) -> None:
    """Two gangs of four after one another on the same node: each leaves once it has saved, then no job goes there."""
    if min(node.gpus for node in stack.bed.nodes.values()) < GANG:
        pytest.skip("it takes nodes with 4 GPUs: python -m tests.support.testbed nodes up 4 4, with STOKER_E2E_BED")
    driver = stack.drivers.scenario[SICK]
    (other,) = stack.bed.nodes.keys() - {SICK}
    hot = f"GPU-{SICK}-2"
    driver.gpus[1].step(time.time(), sm=95)  # a rank with more work than the others
    driver.gpus[2].step(time.time(), sm=90, reasons=SW_THERMAL)
    driver.write()
    for name in ("first", "second"):
        with stack.cordoned(other):
            uid = project.count(
                name, steps=9000, save_every=50, workers=GANG, gpusPerWorker=1, env={"REPORTS": "1"}
            ).uid
            project.until_step(name, 1)
        began = time.time()
        moved = project.until_phase(name, Phase.RUNNING, attempt=2, timeout_s=600)
        running_at = time.time()
        assert {placed.node for placed in moved.status.placement} == {other} and moved.status.retries == {}
        project.until_step(name, 1, attempt=2)
        assert project.steps_lost(name) == [0]
        blames = {gpu["uuid"]: gpu["blames"] for gpu in _health(stack) if gpu.get("blames")}
        assert blames.keys() == {hot}
        [blame] = [one for one in blames[hot] if one["jobUid"] == uid]
        assert blame["message"] in moved.status.attempts[0].message or "too hot" in moved.status.attempts[0].message
        blamed_at = datetime.fromisoformat(blame["at"]).timestamp()
        assert moved.status.progress is not None and moved.status.progress.checkpoint is not None
        saved_at = moved.status.progress.checkpoint.at
        assert saved_at is not None and saved_at > blamed_at
        figure(f"straggler, {name} gang of 4: seconds from its start to blame", f"{blamed_at - began:.0f}")
        figure("its first checkpoint since → running elsewhere; steps done twice", f"{running_at - saved_at:.1f} s; 0")
        assert running_at - saved_at < 3 * GOAL_S
        if name == "first":
            assert _causes(stack) == [], "others may use it"
            project.client.cancel(name)
            project.until_phase(name, Phase.CANCELLED)
    until(lambda: _causes(stack), "it is left out", timeout_s=90)
    project.client.cancel("second")
    for number in range(LATER):
        project.count(f"later-{number}", steps=1, gpusPerWorker=1)
        project.until_phase(f"later-{number}", Phase.SUCCEEDED)
        assert project.pods(f"later-{number}")[0]["spec"]["nodeName"] == other
    figure("straggler: jobs that landed on its node after two gangs", f"0 of {LATER}")


def _object(stack: Stack) -> dict[str, Any]:
    """The node's GPUNodeHealth."""
    found: dict[str, Any] = json.loads(stack.bed.kubectl("get", "gpunodes", SICK, "-o", "json"))
    return found


def _health(stack: Stack) -> list[dict[str, Any]]:
    """Of the node's GPUs, as the api keeps it."""
    found: list[dict[str, Any]] = _object(stack)["status"]["gpus"]
    return found


def _causes(stack: Stack) -> list[str]:
    return [cause["code"] for gpu in _health(stack) for cause in gpu.get("causes", ())]
