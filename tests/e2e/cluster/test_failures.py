"""The parts of Stoker and of the cluster fail while jobs run: none is lost, none runs twice, no GPU stays held."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.spec.job import Phase
from stoker.spec.outcome import Category
from tests.support.cluster_stack import SYSTEM, Project, Stack
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]
Figure = Callable[[str, object], None]

STEPS, SAVE_EVERY = 120, 20


def _start(project: Project, *names: str, **spec: object) -> None:
    for name in names:
        project.count(name, steps=STEPS, save_every=SAVE_EVERY, **{"gpusPerWorker": 1, **spec})
    for name in names:
        project.until_step(name, 10)


def _check_end(stack: Stack, project: Project, *names: str, attempts: int = 1) -> list[int]:
    """Nothing lost, doubled or leaked. Returns the steps done twice, over all jobs."""
    lost: list[int] = []
    for name in names:
        job = project.until_phase(name, Phase.SUCCEEDED, timeout_s=200)
        assert job.status.attempt <= attempts, job.status
        lost += project.steps_lost(name)
        done = [step for attempt in range(1, job.status.attempt + 1) for step in project.steps(name, attempt)]
        assert set(done) == set(range(1, STEPS + 1)), name
        assert len(done) - STEPS == sum(lost_here for lost_here in project.steps_lost(name))
    assert all(0 <= steps <= SAVE_EVERY for steps in lost), lost
    until(lambda: sum(stack.gpus_held().values()) == 0, "no GPU is held any more", timeout_s=60)
    return lost


def test_the_leading_operator_is_killed(stack: Stack, project: Project, figure: Figure) -> None:
    _start(project, "one", "two")
    leader = _leader(stack)
    began = time.monotonic()
    _kill_9(leader.rpartition("-")[0])
    project.count("three", steps=STEPS, save_every=SAVE_EVERY, gpusPerWorker=1)
    until(lambda: _leader(stack) not in ("", leader), "another leads", timeout_s=60)
    lead_s = time.monotonic() - began
    project.until_phase("three", Phase.RUNNING, Phase.SUCCEEDED)
    figure("leading operator killed: another leads after, next job runs after", f"{lead_s:.1f} s, {_since(began)}")
    assert _check_end(stack, project, "one", "two", "three") == []


def test_the_api_server_restarts(stack: Stack, project: Project, figure: Figure) -> None:
    _start(project, "one", "two")
    server = stack.bed.part("kube-apiserver")
    began = time.monotonic()
    server.kill()
    time.sleep(5)
    server.start()
    assert stack.bed.plane is not None
    stack.bed.plane.wait_ready()
    up = time.monotonic()
    until(lambda: _submits(project), "a job can be submitted", timeout_s=60)
    project.until_phase("three", Phase.RUNNING, Phase.SUCCEEDED)
    figure("API server killed, back after; next job runs after that", f"{up - began:.1f} s; {_since(up)}")
    assert _check_end(stack, project, "one", "two", "three") == []


def test_etcd_is_away_for_half_a_minute(stack: Stack, project: Project, figure: Figure) -> None:
    _start(project, "one", "two")
    etcd = stack.bed.part("etcd")
    etcd.freeze()
    time.sleep(30)
    etcd.thaw()
    up = time.monotonic()
    until(lambda: stack.bed.kubectl("get", "ns", "default", check=False), "the API server answers", timeout_s=60)
    until(lambda: _submits(project), "a job can be submitted", timeout_s=60)
    project.until_phase("three", Phase.RUNNING, Phase.SUCCEEDED)
    figure("etcd stopped for 30 s: next job runs after", _since(up))
    _check_end(stack, project, "one", "two", "three", attempts=2)


def test_a_kubelet_stops_for_a_while(stack: Stack, project: Project, figure: Figure) -> None:
    """Nothing can end the old worker, but it asks the api whether it may go on: so it saves and ends by itself."""
    steps = 900
    with stack.cordoned("n0"):
        project.count("one", steps=steps, save_every=SAVE_EVERY, gpusPerWorker=1)
        project.until_step("one", 10)
    kubelet = stack.bed.nodes["n1"].parts["kubelet"]
    began = time.monotonic()
    kubelet.kill()
    try:
        project.until_phase("one", Phase.RUNNING, attempt=2, timeout_s=200)
        figure("kubelet stopped: its job runs elsewhere after", _since(began))
        first = project.log("one", 1)
        assert "asked to stop by the api" in first
        project.until_step("one", steps - 50, attempt=2)
        assert project.log("one", 1) == first, "the old worker was gone before the new one began"
    finally:
        kubelet.start()
        stack.bed.wait_ready("n1")
    job = project.until_phase("one", Phase.SUCCEEDED, timeout_s=120)
    assert (job.status.attempts[0].category, job.status.attempt) == (Category.NODE_LOST, 2)
    done = project.steps("one", 1) + project.steps("one", 2)
    assert done == list(range(1, steps + 1))
    figure("steps done twice, steps of the two workers at the same time", "0, 0")
    until(lambda: sum(stack.gpus_held().values()) == 0, "no GPU is held any more", timeout_s=90)


def test_a_gpu_turns_unhealthy(stack: Stack, project: Project, figure: Figure) -> None:
    with stack.cordoned("n0"):
        _start(project, "one")
    node = stack.bed.nodes["n1"]
    node.toggle_last_gpu()
    try:
        until(lambda: stack.bed.allocatable_gpus("n1") == 1, "one GPU less", timeout_s=30)
        project.count("wide", steps=STEPS, save_every=SAVE_EVERY, gpusPerWorker=2)
        project.until_phase("wide", Phase.RUNNING)
        assert project.node_of("wide") == "n0"
        project.count("waits", steps=STEPS, save_every=SAVE_EVERY, gpusPerWorker=2)
        until(lambda: "GPU" in project.client.why("waits").summary, "why it waits", timeout_s=20)
        figure("a GPU of n1 is unhealthy, n0 is busy: why a job of 2 GPUs waits", project.client.why("waits").summary)
    finally:
        node.toggle_last_gpu()
        until(lambda: stack.bed.allocatable_gpus("n1") == 2, "the GPU is back", timeout_s=30)
        stack.clear_gpus("n1")  # sick for the operator, if "one" held it
    assert _check_end(stack, project, "wide", "waits") == []
    assert sum(_check_end(stack, project, "one", attempts=2)) == 0  # moved if it was on that GPU, as it had saved


def test_every_line_of_a_long_log_after_its_pod_is_gone(project: Project, figure: Figure) -> None:
    """60 MB, which the kubelet rotates away, in attempt 1; then a second attempt and the first one's pod deleted."""
    lines, width = 600_000, 100
    script = (
        "import os, sys, time\n"
        "if os.environ['STOKER_ATTEMPT'] == '1':\n"
        f"    for i in range({lines}): sys.stdout.write(f'line {{i:09}} '.ljust({width - 1}, '.') + '\\n')\n"
        "    sys.stdout.flush(); sys.exit(3)\n"
        "print('second attempt', flush=True)\n"
    )
    began = time.monotonic()
    project.client.submit(
        {
            "cpu": "200m",
            "memory": "256Mi",
            "retry": {"rules": [{"categories": ["UserError"], "limit": 1, "backoff": "1s"}]},
            "trainer": {"image": project.stack.images["foreign-python"], "command": ["python3", "-c", script]},
        },
        name="talks",
    )
    project.until_phase("talks", Phase.SUCCEEDED, timeout_s=200)
    took = time.monotonic() - began
    until(lambda: len(project.pods("talks")) == 1, "the first attempt's pod is deleted", timeout_s=30)
    seen = [line for line in project.log("talks", 1).splitlines() if line.startswith("line ")]
    assert seen == [f"line {i:09} ".ljust(width - 1, ".") for i in range(lines)]
    figure(
        "60 MB printed by attempt 1, its pod gone: lines missing, doubled; both attempts took", f"0, 0; {took:.0f} s"
    )


def test_a_thief_takes_the_pinned_gpus(stack: Stack, project: Project, figure: Figure) -> None:
    """Another Deployment takes every GPU of n1 and one of n0; a job of 2 waits and says why, a job of 1 runs."""
    thief = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "thief", "namespace": project.name},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "thief"}},
            "template": {"metadata": {"labels": {"app": "thief"}}, "spec": stack.others_pod("thief")},
        },
    }
    stack.bed.kubectl("apply", "-f", "-", stdin=json.dumps(thief))
    until(lambda: sum(stack.gpus_held().values()) == 3, "the thief has its GPUs", timeout_s=60)
    project.count("wide", steps=STEPS, save_every=SAVE_EVERY, gpusPerWorker=2)
    project.count("narrow", steps=STEPS, save_every=SAVE_EVERY, gpusPerWorker=1)
    project.until_phase("narrow", Phase.RUNNING, Phase.SUCCEEDED)
    summary = until(lambda: _named(project, "wide", "thief"), "why names the thief", timeout_s=90)
    figure("why a job waits whose GPUs another Deployment took", summary)
    stack.bed.kubectl(
        "delete", "deployment", "thief", "-n", project.name, "--cascade=foreground", "--timeout=60s", timeout_s=70
    )
    began = time.monotonic()
    project.until_phase("wide", Phase.RUNNING, Phase.SUCCEEDED, timeout_s=90)
    figure("the thief is gone: the job runs after", _since(began))
    _check_end(stack, project, "wide", "narrow", attempts=2)


def _named(project: Project, name: str, word: str) -> str:
    reported = project.client.why(name)
    texts = [
        reported.summary,
        *(blocker.message for blocker in reported.blockers),
        *(hint.message for hint in reported.hints),
    ]
    return next((text for text in texts if word in text), "")


def _leader(stack: Stack) -> str:
    """The lease's holder: the pod's name and a random part."""
    return stack.bed.kubectl(
        "get", "lease", "-n", SYSTEM, "stoker-operator", "--output=jsonpath={.spec.holderIdentity}", check=False
    )


def _kill_9(pod: str) -> None:
    """The pod's operator process, as this machine sees it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HOSTNAME={pod}\0" in (folder / "environ").read_text() and "stoker" in (folder / "cmdline").read_text():
                os.kill(int(folder.name), signal.SIGKILL)
                return
    raise AssertionError(f"no process of {pod} on this machine")


def _submits(project: Project) -> bool:
    from stoker.client.errors import StokerError

    try:
        project.count("three", steps=STEPS, save_every=SAVE_EVERY, gpusPerWorker=1)
    except StokerError as error:
        return "exists" in str(error)
    return True


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"
