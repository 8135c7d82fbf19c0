"""A GPU falls off the bus on a real node: its gang goes on elsewhere, and none lands there until it is said to be well.

The fake NVML says so to the exporter alone: the device plugin goes on offering the GPU, so its whole node is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_exporters import Exporter
from tests.support.cluster_stack import Project, Stack
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Figure = Callable[[str, object], None]

SICK = "n1"
GOAL_S = 10.0
LATER = 3


@pytest.fixture
def repaired(stack: Stack) -> Iterator[Callable[[], None]]:
    """What an administrator says of the node's GPUs with kubectl; said once more when the test has ended."""

    def say() -> None:
        at = datetime.now(UTC).isoformat()
        cleared = [{"gpu": f"GPU-{SICK}-{index}", "at": at} for index in range(stack.bed.nodes[SICK].gpus)]
        word = json.dumps({"spec": {"cleared": cleared}})
        stack.bed.kubectl("patch", "gpunodes", SICK, "--type=merge", "-p", word)

    yield say
    stack.drivers.reset(SICK)
    say()


def test_xid_79_moves_the_gang_and_nothing_lands_there_until_it_is_well(
    stack: Stack, project: Project, repaired: Callable[[], None], figure: Figure
) -> None:
    (other,) = stack.bed.nodes.keys() - {SICK}
    with stack.cordoned(other):
        uid = project.count("counting", steps=600, gpusPerWorker=1).uid
        project.until_step("counting", 20)
    [share] = until(lambda: Exporter(stack, SICK).shares(job_uid=uid), "its GPU is seen")
    device = share["uuid"]
    at = time.time() + 1
    stack.drivers.scenario[SICK].xid(int(device.rsplit("-", 1)[1]), at, 79)
    stack.drivers.scenario[SICK].write()
    moved = project.until_phase("counting", Phase.RUNNING, attempt=2)
    took_s = time.time() - at
    assert moved.status.placement[0].node == other and moved.status.retries == {}
    assert "is sick (XID 79)" in moved.status.attempts[0].message
    project.until_step("counting", 1, attempt=2)
    lost = project.steps_lost("counting")
    assert lost == [0], "it saves on SIGTERM"
    figure("XID 79 on a real node: seconds to the job running on the other; steps done twice", f"{took_s:.1f}; {lost}")
    assert took_s < 3 * GOAL_S, "what a loaded machine may add"

    for number in range(LATER):
        project.count(f"later-{number}", steps=1, gpusPerWorker=1)
        project.until_phase(f"later-{number}", Phase.SUCCEEDED)
        (pod,) = project.pods(f"later-{number}")
        assert pod["spec"]["nodeName"] == other
    figure("jobs that landed on the sick GPU's node afterwards", f"0 of {LATER}")
    with stack.cordoned(other):
        project.count("back", steps=1, gpusPerWorker=1)
        until(lambda: "sick: XID 79 since" in project.client.why("back").summary, "why names it")
        repaired()
        cleared = time.monotonic()
        project.until_phase("back", Phase.RUNNING, Phase.SUCCEEDED)
        figure("cleared by kubectl → a job runs there again", f"{time.monotonic() - cleared:.1f} s")
