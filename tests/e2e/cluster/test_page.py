"""The web page in a real browser on real nodes: what tests/kube/test_page.py can't show, where no worker runs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import SYSTEM, Project
from tests.support.harness import SHOWS_PROGRESS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
POD_MS = 90_000
"""A pod's start, and the api's own."""
TRAIN = (
    SHOWS_PROGRESS
    + """
open(os.environ['STOKER_OUTPUT_DIR'] + '/model.txt', 'w').write('weights')
for step in range(1, 100_000):
    show(step=step, totalSteps=100_000, at=time.time(), metrics={'loss': 1 / step})
    print(f'step {step} of it', flush=True)
    time.sleep(0.1)
"""
)


def submit(project: Project, name: str) -> None:
    """A job that takes all GPUs of the bed."""
    trainer = {"image": project.stack.images["foreign-python"], "command": ["python3", "-c", TRAIN]}
    spec = {"workers": 2, "gpusPerWorker": 2, "cpu": "100m", "memory": "128Mi", "checkpoint": {"grace": "5s"}}
    project.client.submit({**spec, "trainer": trainer}, name=name)


def test_a_job_watched_and_acted_on(project: Project, browse: Any) -> None:
    bed = project.stack.bed
    submit(project, "one")
    project.until_phase("one", Phase.RUNNING)
    submit(project, "two")
    page = browse(project.stoker("page", "one").stdout.strip())
    state = page.locator(".job-head .state")

    page.get_by_role("link", name="Curves").click()
    loss = page.locator("figure", has_text="loss")
    loss.locator("canvas").wait_for(timeout=POD_MS)
    before = loss.locator(".latest").inner_text()
    page.wait_for_function("before => document.querySelector('.latest').textContent !== before", arg=before)

    page.get_by_role("link", name="Files").click()
    with page.expect_download(timeout=POD_MS) as download:  # by a session of the running worker
        page.get_by_role("button", name="Download model.txt").click(timeout=POD_MS)
    assert Path(download.value.path()).read_text() == "weights"

    page.get_by_role("link", name="Log", exact=True).click()
    page.locator(".log .line", has_text="step 1 of it").first.wait_for()
    page.evaluate("window.stayed = true")
    bed.kubectl("delete", "pod", "-n", SYSTEM, "-l", "app.kubernetes.io/component=api", "--grace-period=0", "--force")
    page.get_by_text("No connection to the server").wait_for()
    page.get_by_text("No connection to the server").wait_for(state="hidden", timeout=POD_MS)
    lines = page.locator(".log .line").count()
    page.wait_for_function("n => document.querySelectorAll('.log .line').length > n", arg=lines, timeout=POD_MS)
    steps = [int(n) for n in re.findall(r"^step (\d+)", "\n".join(page.locator(".log .line").all_inner_texts()), re.M)]
    assert all(b == a + 1 for a, b in itertools.pairwise(steps)), "no line is lost or doubled"
    assert page.evaluate("window.stayed"), "without a reload"

    page.goto(f"{project.stack.url}/jobs/{project.name}/two")
    page.locator(".blocker", has_text="4 of 4 GPUs missing").wait_for()
    page.get_by_role("link", name=f"{project.name}/one").click()
    page.get_by_role("button", name="Suspend").click()
    page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
    state.get_by_text("Suspended").wait_for(timeout=POD_MS)
    project.until_phase("two", Phase.RUNNING)
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    state.get_by_text("Queued").wait_for()
    page.get_by_role("button", name="Clone").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("three")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_role("button", name="Submit").click()
    page.wait_for_url(f"**/jobs/{project.name}/three")
    assert project.job("three").spec.priority == 7

    page.goto(f"{project.stack.url}/compare?jobs={project.name}/one,{project.name}/two")
    figure = page.locator("figure", has_text="loss")
    figure.locator("canvas").wait_for()
    figure.locator(".latest", has_text=re.compile("one: .*two: ")).wait_for()
