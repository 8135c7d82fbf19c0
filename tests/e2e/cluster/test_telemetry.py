"""Exporters on real nodes: who holds which GPU by the kubelet, what each job has had of it, and what breaks.

The GPUs are those of our fake NVML, each with a power of its own; who holds which is the device plugin's and the
kubelet's doing, and what a worker says of its own environment is the truth that all is held against.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stoker.spec.job import Phase
from stoker.spec.rest import JobUsageReport
from stoker.spec.usage import JobUsage, UsageState
from tests.support.cluster_driver import watts_of
from tests.support.cluster_exporters import Exporter, pod_of
from tests.support.cluster_stack import CHART, SYSTEM, WATCH, Project, Stack
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Figure = Callable[[str, object], None]

POLL_S = 1.0
SEEN_S = 5.0
"""The exporter asks the kubelet this often: a hold's begin and its end are seen so late."""
LATE_S = 4.0
"""A poll and a question under way, and times of the kubelet that are whole seconds."""
SHARED = "nvidia.com/gpu.shared"
HOLD = """
import os, pathlib, time
print("holds", os.environ["NVIDIA_VISIBLE_DEVICES"], flush=True)
enough = pathlib.Path(os.environ["STOKER_CHECKPOINT_DIR"]) / "enough"
while not enough.exists(): time.sleep(0.05)
"""


@pytest.fixture
def exporters(stack: Stack) -> Iterator[dict[str, Exporter]]:
    """By node; what a test did to the GPUs is undone."""
    yield {name: Exporter(stack, name) for name in stack.bed.nodes}
    for name in stack.bed.nodes:
        stack.drivers.reset(name)


class Holder:
    """A job that does nothing but hold GPUs, until it is ended."""

    def __init__(self, project: Project, name: str, **spec: Any) -> None:
        self._project, self.name = project, name
        trainer = {"image": project.stack.images["foreign-python"], "command": ["python3", "-c", HOLD]}
        asked = {"gpusPerWorker": 1, "cpu": "50m", "memory": "64Mi", "trainer": trainer}
        self.uid = project.client.submit({**asked, **spec}, name=name).uid
        project.until_phase(name, Phase.RUNNING)

    def devices(self, worker: int = 0) -> list[str]:
        """What the worker itself says it was given."""

        def reported() -> list[str]:
            lines = self._project.log(self.name, 1, worker).splitlines()
            return next((line.removeprefix("holds ").split(",") for line in lines if line.startswith("holds ")), [])

        return until(reported, f"{self.name} says what it holds")

    def release(self, phase: Phase = Phase.SUCCEEDED) -> None:
        folder = self._project.stack.bed.folder / f"shared-{self._project.name}" / self.uid / "checkpoints"
        (folder / "enough").touch()
        self._project.until_phase(self.name, phase)

    def final(self) -> JobUsageReport:
        """What it has had, once every GPU's last receipt is there."""

        def there() -> JobUsageReport | None:
            found = self._project.client.job_usage(self.name)
            return found if found.usage.state is UsageState.FINAL else None

        return until(there, f"the last receipts of {self.name}", timeout_s=90, every_s=0.3)

    def seconds(self, worker: int = 0) -> tuple[float, float]:
        """From when the kubelet took the pod (it gives out GPUs then) to the container's end; whole unix seconds."""
        pods = {pod["metadata"]["name"]: pod for pod in self._project.pods(self.name)}
        status = pods[f"{self.name}-1-{worker}"]["status"]
        ended = status["containerStatuses"][0]["state"].get("terminated", {}).get("finishedAt")
        return _unix(status["startTime"]), _unix(ended) if ended else time.time()


def test_it_runs_on_every_node_as_root_without_any_right(stack: Stack, exporters: dict[str, Exporter]) -> None:
    for exporter in exporters.values():
        page = exporter.page()
        assert page.value("stoker_exporter_collect_success") == 1
        until(partial(_answers, exporter), "the kubelet answers")
        parent, child = exporter.processes()
        for process in (parent, child):
            assert process["Uid"].split() == ["0"] * 4
            rights = {process[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
            assert rights == {"0" * 16}
            assert process["NoNewPrivs"].strip() == "1"
            assert process["Seccomp"].strip() == "2"
    labels = json.loads(stack.bed.kubectl("get", "namespace", WATCH, "-o", "json"))["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    pods = json.loads(stack.bed.kubectl("get", "pods", "-A", "-o", "json"))["items"]
    assert {pod["metadata"]["namespace"] for pod in pods if _runs_as_root(pod)} == {WATCH}


def test_every_gpu_is_its_holders(
    stack: Stack, project: Project, exporters: dict[str, Exporter], figure: Figure
) -> None:
    """Two jobs and someone else's pod on both nodes at once; power changes meanwhile; usage is the scenario's."""
    gang = Holder(project, "gang", workers=2)
    single = Holder(project, "single")
    foreign = _foreign_pod(stack, project)
    holders = [(gang, 0), (gang, 1), (single, 0)]
    for job, worker in holders:
        [device] = job.devices(worker)
        node = device.split("-")[1]
        identity = {"job_uid": job.uid, "attempt": "1", "worker": str(worker), "uuid": device, "node": node}
        [share] = until(partial(_anywhere, exporters, **identity), f"{identity} is seen")
        assert (share["pod_namespace"], share["pod_name"]) == (project.name, f"{job.name}-1-{worker}")
        assert share["method"] == "exclusive"
    given = {job.devices(worker)[0] for job, worker in holders}
    [share] = until(lambda: _anywhere(exporters, pod_name="notebook"), "another user's pod is seen")
    assert (share["pod_namespace"], share["pod_uid"]) == (project.name, foreign)
    assert not share.keys() & {"job_uid", "attempt", "worker"}
    every = {f"GPU-{node.name}-{index}" for node in stack.bed.nodes.values() for index in range(node.gpus)}
    assert {one["uuid"] for one in _anywhere(exporters)} == every
    assert share["uuid"] in every - given

    for device in given:
        stack.drivers.gpu(device).step(time.time() + 3, watts=650, sm=90)
    for scenario in stack.drivers.scenario.values():
        scenario.write()
    for exporter in exporters.values():
        until(partial(_at_power, exporter, 650.0, _on(exporter, given)), "the power has changed")
    for job in (gang, single):
        job.release()

    seen_after: list[float] = []
    off: list[float] = []
    for job, workers in ((gang, 2), (single, 1)):
        report = job.final()
        assert [(gpu.attempt, gpu.worker) for gpu in report.gpus] == [(1, worker) for worker in range(workers)]
        expected_j = 0.0
        for gpu in report.gpus:
            assert [gpu.uuid] == job.devices(gpu.worker)
            assert (gpu.node, gpu.model, gpu.method) == (gpu.uuid.split("-")[1], "NVIDIA H200", "exclusive")
            began, ended = job.seconds(gpu.worker)
            held_s, begin = gpu.usage.gpu_seconds, _begin_at(gpu.usage)
            seen_after.append(begin - began)
            assert -1 <= seen_after[-1] <= SEEN_S + LATE_S
            assert 0 <= begin + held_s - ended <= SEEN_S + LATE_S
            assert gpu.usage.unobserved_seconds == 0
            assert gpu.usage.busy_seconds == pytest.approx(0.8 * held_s, rel=0.01, abs=POLL_S)
            does = stack.drivers.gpu(gpu.uuid)
            wanted_j = does.integral("watts", begin, begin + held_s)
            assert gpu.usage.energy_joules is not None
            assert gpu.usage.energy_joules == pytest.approx(wanted_j, rel=0.005)
            sm_s = does.integral("sm", begin, begin + held_s) / 100
            assert gpu.usage.sm_active_seconds == pytest.approx(sm_s, rel=0.02, abs=POLL_S)
            off.append(abs(gpu.usage.energy_joules / wanted_j - 1))
            expected_j += wanted_j
        assert report.usage.energy_joules == pytest.approx(expected_j, rel=0.005)
        reported = json.loads(project.stoker("usage", job.name, "-o", "json").stdout)
        assert reported["usage"]["state"] == "final"
        assert reported["usage"]["energyJoules"] == report.usage.energy_joules
        assert project.job(job.name).status.usage == report.usage
    figure("3 workers of 2 jobs and a foreign pod on 2 nodes: GPUs attributed to their holder", "4 of 4")
    figure("kubelet takes the pod → its GPU is the worker's", f"{min(seen_after):.1f}–{max(seen_after):.1f} s")
    figure("joules of a worker's GPU against the scenario's integral", f"{100 * max(off):.2f} % off at most")


def test_usage_outlives_the_job(project: Project, exporters: dict[str, Exporter]) -> None:
    job = Holder(project, "gone")
    [device] = job.devices()
    node = device.split("-")[1]
    until(lambda: exporters[node].shares(uuid=device, job_uid=job.uid), "it is seen")
    job.release()
    had = job.final().usage
    watts = watts_of(project.stack.bed.nodes[node], int(device.split("-")[2]))
    assert had.energy_joules == pytest.approx(watts * had.gpu_seconds, rel=0.005)
    project.client.delete("gone")
    until(lambda: not list(project.client.ls()), "the job is gone")
    after = project.client.job_usage("gone")
    assert after.deleted and after.usage == had
    [row] = json.loads(project.stoker("usage", "--by", "job", "-p", project.name, "-o", "json").stdout)["rows"]
    assert row["job"] == "gone" and row["jobUid"] == job.uid
    assert row["gpuHours"] * 3600 == pytest.approx(had.gpu_seconds, abs=0.01)
    assert row["energyKwh"] * 3.6e6 == pytest.approx(had.energy_joules, rel=0.001)


def test_an_exporter_is_killed_and_then_replaced(
    stack: Stack, project: Project, exporters: dict[str, Exporter], figure: Figure
) -> None:
    """Its ledger lies on the node: killed or replaced by a new pod it goes on, and says what no one saw."""
    with _only(stack, "n1"):
        job = Holder(project, "watched")
    [device] = job.devices()
    exporter = exporters["n1"]
    until(lambda: exporter.shares(uuid=device, job_uid=job.uid), "it is seen")
    os.kill(int(exporter.processes()[0]["Pid"]), signal.SIGKILL)
    watched_s = until(
        lambda: (reported := _seconds(exporter, job.uid))[1] and reported[0], "the unobserved time is shown"
    )
    until(lambda: _seconds(exporter, job.uid)[0] > watched_s, "it is seen again")
    unseen_s = _seconds(exporter, job.uid)[1]

    old = pod_of(stack, "n1")["metadata"]["name"]
    stack.bed.kubectl("delete", "pod", "-n", WATCH, old, "--timeout=60s", timeout_s=70)
    first = project.client.job_usage("watched").usage  # the old one's last words
    assert first.at is not None
    assert 0 <= _begin_at(first) - job.seconds()[0] + 1 <= SEEN_S + LATE_S
    assert first.unobserved_seconds == pytest.approx(unseen_s, abs=0.01)
    until(lambda: exporter.shares(uuid=device, job_uid=job.uid), "the new one sees it")
    job.release()
    report = job.final()
    assert [gpu.uuid for gpu in report.gpus] == [device]
    assert report.usage.at is not None
    gap_s = report.usage.unobserved_seconds - first.unobserved_seconds
    assert 0 < gap_s < 60
    assert report.usage.gpu_seconds == pytest.approx(report.usage.at.timestamp() - _begin_at(first), abs=0.05)
    watts = watts_of(stack.bed.nodes["n1"], int(device.split("-")[2]))
    assert report.usage.energy_joules == pytest.approx(watts * report.usage.gpu_seconds, rel=0.01)
    assert report.usage.unobserved_energy_joules == pytest.approx(watts * (unseen_s + gap_s), rel=0.05)
    figure("exporter killed -9: of the job's GPU time unobserved", f"{unseen_s:.1f} s")
    figure("exporter's pod replaced: of the job's GPU time unobserved", f"{gap_s:.1f} s")


def test_an_upgrade_keeps_the_books_and_lets_shared_gpus_be_each_pods_own(
    stack: Stack, project: Project, exporters: dict[str, Exporter], figure: Figure
) -> None:
    """The chart is upgraded to an exporter that sees the node's processes, while a job runs."""
    with _only(stack, "n1"):
        job = Holder(project, "watched")
    exporter = exporters["n1"]
    until(lambda: _seconds(exporter, job.uid)[0] >= 10, "it is seen for ten seconds")
    before = pod_of(stack, "n1")["metadata"]["name"]
    before_s = sum(_seconds(exporter, job.uid))
    with _upgraded(stack, hostPid=True):
        assert pod_of(stack, "n1")["metadata"]["name"] != before
        observed_s, unseen_s = until(lambda: (found := _seconds(exporter, job.uid))[0] and found, "it is seen again")
        assert observed_s + unseen_s > before_s
        job.release()
        report = job.final()
        began, ended = job.seconds()
        assert report.usage.gpu_seconds == pytest.approx(ended - began, abs=SEEN_S + LATE_S)
        assert 0 < report.usage.unobserved_seconds == pytest.approx(unseen_s, abs=0.1)
        figure(
            "`helm upgrade` with a running job: shown before → after", f"{before_s:.1f} → {observed_s + unseen_s:.1f} s"
        )
        figure("of that unobserved", f"{unseen_s:.1f} s")
        with _shared(stack, "n1"):
            _each_pods_own(stack, project, exporter, figure)


def _each_pods_own(stack: Stack, project: Project, exporter: Exporter, figure: Figure) -> None:
    """Two jobs on one GPU: energy and memory by what the process of each did, by its cgroup on the real kubelet."""
    device = f"GPU-{exporter.node}-0"
    gpu, driver = stack.drivers.gpu(device), stack.drivers.scenario[exporter.node]
    gpu.step(time.time(), used=0, processes=())  # one that is alone has all of its memory
    driver.write()
    large, small = jobs = [Holder(project, name, gpu={"resource": SHARED}) for name in ("large", "small")]
    for job in jobs:
        [given] = job.devices()
        assert given.startswith(f"{device}::")
    until(lambda: len(exporter.shares(uuid=device)) == 2, "both are seen")
    of_large, of_small = (_rank_of(large.uid), 10 << 30, 30.0), (_rank_of(small.uid), 5 << 30, 10.0)
    gpu.step(time.time() + 1, watts=400, sm=40, used=15 << 30, processes=[of_large, of_small])
    driver.write()

    def joules() -> list[float]:
        page = exporter.page()
        return [page.total("stoker_job_gpu_energy_joules_total", job_uid=job.uid, method="sm_share") for job in jobs]

    first = until(lambda: all(now := joules()) and now, "each has its part")
    until(lambda: joules()[0] > first[0] + 3000, "ten seconds more")
    large_j, small_j = (now - then for now, then in zip(joules(), first, strict=True))
    assert large_j / (large_j + small_j) == pytest.approx(0.75, abs=0.01)
    gpu.step(time.time(), used=5 << 30, processes=[of_small])
    driver.write()
    until(lambda: exporter.page().value("stoker_gpu_memory_used_bytes", uuid=device) < 6 << 30, "the rest is free")
    for job, (_, peak_bytes, _) in ((large, of_large), (small, of_small)):
        job.release()
        [had] = job.final().gpus
        assert (had.method, had.usage.memory_peak_bytes) == ("sm_share", peak_bytes)
    figure("a shared GPU, one job with 3/4 of SM time: its part of the joules", f"{large_j / (large_j + small_j):.3f}")


def _rank_of(job_uid: str) -> int:
    """The pid, on the machine, of the job's one process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"holds" in (folder / "cmdline").read_bytes().split(b"\0")[-2:][0] and (
                f"STOKER_JOB_UID={job_uid}".encode() in (folder / "environ").read_bytes().split(b"\0")
            ):
                return int(folder.name)
    raise AssertionError(f"no process of job {job_uid}")


@contextlib.contextmanager
def _upgraded(stack: Stack, **exporter: Any) -> Iterator[None]:
    stack.release.upgrade(CHART, stack.values(exporter=stack.values()["exporter"] | exporter))
    try:
        yield
    finally:
        stack.release.upgrade(CHART, stack.values())


@contextlib.contextmanager
def _shared(stack: Stack, name: str) -> Iterator[None]:
    """The node offers its first GPU to two pods at a time, as NVIDIA's device plugin does, and nothing else."""
    node = stack.bed.nodes[name]
    node.offer(2, f"{name}-0::", SHARED)
    try:
        yield
    finally:
        node.offer(node.gpus, name, "nvidia.com/gpu")
        until(lambda: stack.bed.allocatable_gpus(name) == node.gpus, "it offers its GPUs again", timeout_s=60)


def test_the_api_is_away_when_a_job_ends(
    stack: Stack, project: Project, exporters: dict[str, Exporter], figure: Figure
) -> None:
    with _only(stack, "n1"):
        job = Holder(project, "quiet")
    [device] = job.devices()
    exporter = exporters["n1"]
    until(lambda: exporter.shares(uuid=device, job_uid=job.uid), "it is seen")
    with _without_api(stack):
        folder = stack.bed.folder / f"shared-{project.name}" / job.uid / "checkpoints"
        (folder / "enough").touch()
        until(lambda: not exporter.shares(uuid=device), "the GPU is given back", timeout_s=90)
        until(lambda: exporter.page().value("stoker_exporter_receipts_spooled") > 0, "its receipt waits")
        held_s = exporter.page().value("stoker_job_gpu_allocated_seconds_total", job_uid=job.uid, uuid=device)
        os.kill(int(exporter.processes()[0]["Pid"]), signal.SIGKILL)  # the spool is on disk
        until(lambda: exporter.shares() == [] and _answers(exporter), "another is there")
    back = time.monotonic()
    report = job.final()
    took_s = time.monotonic() - back
    assert report.usage.gpu_seconds == pytest.approx(held_s, abs=0.01)
    assert 0 <= _begin_at(report.usage) - job.seconds()[0] + 1 <= SEEN_S + LATE_S
    until(lambda: exporter.page().value("stoker_exporter_receipts_spooled") == 0, "nothing waits any more")
    figure("api away as a job ended and its exporter was killed: the last receipt arrives after", f"{took_s:.1f} s")


def test_an_xid_becomes_an_event_of_the_job(
    stack: Stack, project: Project, exporters: dict[str, Exporter], figure: Figure
) -> None:
    job = Holder(project, "unlucky")
    [device] = job.devices()
    node, index = device.split("-")[1], int(device.split("-")[2])
    until(lambda: exporters[node].shares(uuid=device, job_uid=job.uid), "it is seen")
    at = time.time() + 2
    stack.drivers.scenario[node].xid(index, at, 31)  # a mistake of a program's: the GPU stays well
    stack.drivers.scenario[node].write()

    def messages() -> list[str]:
        return [event.message for event in project.client.past_events("unlucky") if event.reason == "GpuXid"]

    [message] = until(messages, "the event", timeout_s=60, every_s=0.2)
    took_s = time.time() - at
    assert "31" in message and device in message and node in message, message
    assert message in project.stoker("events", "unlucky").stdout
    counter, series = "stoker_gpu_xid_errors_total", {"uuid": device, "xid": "31"}
    until(lambda: exporters[node].page().series(counter, **series), "the page shows it")  # the event may come first
    page = exporters[node].page()
    assert page.value(counter, **series) == 1
    assert page.value("stoker_gpu_xid_last_timestamp_seconds", uuid=device, xid="31") == pytest.approx(at, abs=2)
    job.release()
    figure("XID → event of the job that held the GPU", f"{took_s:.1f} s: “{message}”")


def test_a_kubelet_restarts(stack: Stack, project: Project, exporters: dict[str, Exporter], figure: Figure) -> None:
    """Its socket is another, and at first it knows no pods: the hold goes on all the same, nothing is unobserved."""
    with _only(stack, "n1"):
        job = Holder(project, "steady")
    [device] = job.devices()
    exporter = exporters["n1"]
    until(lambda: exporter.shares(uuid=device, job_uid=job.uid), "it is seen")
    kubelet = stack.bed.nodes["n1"].parts["kubelet"]
    kubelet.kill()
    kubelet.start()
    stack.bed.wait_ready("n1")
    restarted = time.time()
    ages: list[float] = []

    def asked_again() -> bool:
        page = exporter.page()
        assert page.series("stoker_gpu_allocation_share_ratio", uuid=device, job_uid=job.uid), "a false end"
        ages.append(page.value("stoker_exporter_allocation_age_seconds"))
        return time.time() - ages[-1] > restarted + 10  # an answer of the new kubelet, once it is asked again

    until(asked_again, "the new kubelet is asked", timeout_s=60, every_s=0.2)
    job.release()
    report = job.final()
    assert report.usage.unobserved_seconds == 0
    began, ended = job.seconds()
    assert report.usage.gpu_seconds == pytest.approx(ended - began, abs=SEEN_S + LATE_S)
    figure("kubelet restarted: oldest knowledge of who holds what; false ends, unobserved", f"{max(ages):.0f} s; 0")


def _begin_at(usage: JobUsage) -> float:
    """Unix seconds of the first moment that the ledger counts; of one GPU and one ledger."""
    assert usage.at is not None
    return usage.at.timestamp() - usage.gpu_seconds


def _seconds(exporter: Exporter, job_uid: str) -> tuple[float, float]:
    """Of the job's GPUs: observed, unobserved; nothing where no one answers."""
    with contextlib.suppress(OSError):
        page = exporter.page()
        unobserved_s = page.total("stoker_job_gpu_unobserved_seconds_total", job_uid=job_uid)
        return page.total("stoker_job_gpu_allocated_seconds_total", job_uid=job_uid) - unobserved_s, unobserved_s
    return 0.0, 0.0


def _answers(exporter: Exporter) -> bool:
    with contextlib.suppress(OSError):
        return exporter.page().total("stoker_exporter_allocation_known") == 1  # absent before the first answer
    return False


def _anywhere(exporters: dict[str, Exporter], **labels: str) -> list[dict[str, str]]:
    return [share for exporter in exporters.values() for share in exporter.shares(**labels)]


def _on(exporter: Exporter, devices: set[str]) -> set[str]:
    return {device for device in devices if device.split("-")[1] == exporter.node}


def _at_power(exporter: Exporter, watts: float, devices: set[str]) -> bool:
    """Whether all of these, and no others of the node, draw that power."""
    found = exporter.page().series("stoker_gpu_power_watts")
    return {labels["uuid"] for labels, value in found if value == watts} == devices


@contextlib.contextmanager
def _only(stack: Stack, node: str) -> Iterator[None]:
    """Nothing new is placed elsewhere meanwhile."""
    with contextlib.ExitStack() as cordons:
        for other in stack.bed.nodes.keys() - {node}:
            cordons.enter_context(stack.cordoned(other))
        yield


@contextlib.contextmanager
def _without_api(stack: Stack) -> Iterator[None]:
    def scale(replicas: int) -> None:
        stack.bed.kubectl("scale", "-n", SYSTEM, "deployment/stoker-api", f"--replicas={replicas}")
        wait = ("rollout", "status", "deployment/stoker-api") if replicas else ("wait", "--for=delete", "pod")
        which = () if replicas else ("-l", "app.kubernetes.io/component=api")
        stack.bed.kubectl(*wait, *which, "-n", SYSTEM, "--timeout=90s", timeout_s=100)

    scale(0)
    try:
        yield
    finally:
        scale(1)


def _foreign_pod(stack: Stack, project: Project) -> str:
    """A notebook with a GPU that no scheduler of ours knows. Returns: its uid, once it runs."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "notebook", "namespace": project.name},
        "spec": stack.others_pod("notebook"),
    }
    stack.bed.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    stack.bed.kubectl("wait", "--for=condition=Ready", "pod/notebook", "-n", project.name, "--timeout=60s")
    return stack.bed.kubectl("get", "pod", "notebook", "-n", project.name, "--output=jsonpath={.metadata.uid}")


def _runs_as_root(pod: dict[str, Any]) -> bool:
    whole = pod["spec"].get("securityContext", {})
    each = [{**whole, **container.get("securityContext", {})} for container in pod["spec"]["containers"]]
    return any(one.get("runAsUser") == 0 or not one.get("runAsNonRoot") for one in each)


def _unix(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
