"""A real Prometheus finds all of Stoker on real nodes by the chart's monitors, and the chart's rules give figures.

It runs on this machine with a service account's token, discovers by the cluster's API and reaches pods at their own
addresses, as one in the cluster does. What its operator would make of the monitors is `tests.support.testbed.monitors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.spec.job import Phase, TrainingJob
from tests.support.cluster_driver import SM, watts_of
from tests.support.cluster_stack import CHART, SYSTEM, WATCH, Project, Stack
from tests.support.harness import until
from tests.support.testbed.monitoring import Prometheus, Series
from tests.support.testbed.monitors import scrape_configs
from tools.chart import rendering

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
Figure = Callable[[str, object], None]

RULES = CHART / "files" / "rules"
MONITORS = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
POD = "stoker_gpu_allocation_share_ratio * on (pod_uid) group_left (job_name, queue, user) stoker_job_pod_info"


@pytest.fixture
def prometheus(stack: Stack, tmp_path: Path) -> Iterator[Prometheus]:
    stack.apply("prometheus")
    token = tmp_path / "token"
    token.write_text(stack.bed.kubectl("create", "token", "prometheus", "-n", "monitoring", "--duration=1h").strip())
    values = stack.values()
    values["monitoring"] |= MONITORS
    objects = rendering.objects(values, namespace=SYSTEM)
    monitors = [one for one in objects if one["kind"] in ("PodMonitor", "ServiceMonitor")]
    assert {one["metadata"]["name"] for one in monitors} == {
        *("stoker-api", "stoker-operator", "stoker-exporter", "stoker-workers"),
    }
    discovery = {
        "api_server": stack.bed.url,
        "tls_config": {"ca_file": str(stack.bed.folder / "pki" / "ca.crt")},
        "authorization": {"credentials_file": str(token)},
    }
    with Prometheus(
        scrape=scrape_configs(monitors, discovery, str(token), stack.secret),
        rules=sorted(RULES.glob("*.yaml")),
        interval_s=2,
    ) as found:
        yield found


@pytest.fixture
def jobs(project: Project) -> dict[str, TrainingJob]:
    """One that trains by a recipe and serves its metrics, and a gang of someone's own script on both nodes."""
    trainer = {"recipe": "image-classification", "config": {"data": "digits", "epochs": 100_000}}
    project.client.submit({"gpusPerWorker": 1, "cpu": "300m", "memory": "1500Mi", "trainer": trainer}, name="trains")
    script = {
        "image": project.stack.images["foreign-python"],
        "command": ["python3", "-c", "import time; time.sleep(999)"],
    }
    gang = {"workers": 2, "gpusPerWorker": 1, "cpu": "50m", "memory": "64Mi", "trainer": script}
    project.client.submit(gang, name="gang")
    return {name: project.until_phase(name, Phase.RUNNING) for name in ("trains", "gang")}


def test_everything_is_found_and_the_rules_give_figures(
    stack: Stack, project: Project, jobs: dict[str, TrainingJob], prometheus: Prometheus, figure: Figure
) -> None:
    wanted = Counter(
        {"stoker-api": 1, "stoker-operator": 2, f"{WATCH}/stoker-exporter": 2, f"{SYSTEM}/stoker-workers": 1}
    )

    def up() -> bool:
        return Counter(one["labels"]["job"] for one in prometheus.targets() if one["health"] == "up") == wanted

    prometheus.until_true(up, f"targets {dict(wanted)}", 60)
    assert len(prometheus.targets()) == wanted.total()
    assert {one.labels["instance"] for one in prometheus.query("stoker_gpu_up")} == {"n0", "n1"}

    # Whose each GPU is, with names: by the pod, of which only the leading one of two operators reports.
    assert prometheus.value("count(stoker_operator_leader)") == 2
    held = prometheus.until_true(lambda: _if(3, prometheus.query(POD)), "three GPUs held", 60)
    assert Counter(one.labels["job_name"] for one in held) == {"gang": 2, "trains": 1}
    assert {one.labels["job_uid"] for one in held} == {job.uid for job in jobs.values()}
    assert all(one.value == 1 and one.labels["queue"] == "default" and one.labels["user"] for one in held)

    # The trainer's own, under the names that its pod has.
    [steps] = prometheus.until("stoker_train_step_total")
    identity = {"project": project.name, "job_name": "trains", "job_uid": jobs["trains"].uid, "attempt": "1"}
    assert identity.items() <= steps.labels.items()
    assert not [label for label in steps.labels if label.startswith("exported_")]

    # The recorded figures, of each job and of the cluster, as the scenario has them.
    watts = dict.fromkeys(jobs, 0.0)
    for one in held:
        watts[one.labels["job_name"]] += watts_of(stack.bed.nodes[one.labels["node"]], int(one.labels["gpu"]))
    for name, gpus in (("trains", 1), ("gang", 2)):
        of = f'{{job_uid="{jobs[name].uid}"}}'
        prometheus.until(f"stoker:job_sm_efficiency:ratio_rate5m{of} > {SM / 100 - 0.02} < {SM / 100 + 0.02}", 60)
        per_gpu = f"stoker:job_power_watts:rate5m{of} / stoker:job_gpus:rate5m{of}"
        prometheus.until(f"abs({per_gpu} - {watts[name] / gpus}) < {0.02 * watts[name] / gpus}", 60)
        [efficiency] = prometheus.query(f"stoker:job_sm_efficiency:ratio_rate5m{of}")
        assert (efficiency.labels["job_name"], efficiency.labels["project"]) == (name, project.name)
    holders = prometheus.query('stoker:gpu_holder{job_name!=""}')
    assert Counter(one.labels["job_name"] for one in holders) == {"gang": 2, "trains": 1}
    total = sum(node.gpus for node in stack.bed.nodes.values())
    assert prometheus.value("stoker:cluster_gpus") == total
    every = sum(watts_of(node, index) for node in stack.bed.nodes.values() for index in range(node.gpus))
    assert prometheus.value("stoker:cluster_power_watts") == pytest.approx(every)
    # A rate over five minutes, of which this Prometheus has seen a part: that part is taken out again.
    seen = "sum(rate(stoker_gpu_account_seconds_total[5m])) / on () stoker:cluster_gpus"
    goodput = f"stoker:cluster_goodput:ratio_rate5m / on () ({seen})"
    prometheus.until(f"abs({goodput} - {SM / 100}) < 0.03", 60)
    broken = {rule["name"]: rule["lastError"] for rule in prometheus.rules() if rule["health"] == "err"}
    assert not broken
    figure(
        "Prometheus by the chart's monitors: targets up", ", ".join(f"{n} {job}" for job, n in sorted(wanted.items()))
    )
    figure(
        "goodput, SM efficiency of two jobs by the recording rules; the scenario's",
        f"{prometheus.value(goodput):.3f}, "
        f"{[round(one.value, 3) for one in prometheus.query('stoker:job_sm_efficiency:ratio_rate5m')]}; {SM / 100}",
    )

    # Another operator leads: joins and rules go on, each job once.
    lease = ("get", "lease", "-n", SYSTEM, "stoker-operator", "--output=jsonpath={.spec.holderIdentity}")
    leader = stack.bed.kubectl(*lease)
    stack.bed.kubectl("delete", "pod", "-n", SYSTEM, leader.rpartition("-")[0], "--wait=false")
    until(lambda: stack.bed.kubectl(*lease) not in ("", leader), "another leads", timeout_s=60)
    prometheus.until_true(up, "the new operator is found", 60)
    prometheus.until_true(lambda: _if(3, prometheus.query(POD)), "the other one shows the pods", 60)
    names = prometheus.query("stoker:job_info")
    assert Counter(one.labels["job_name"] for one in names if one.labels["project"] == project.name) == {
        "gang": 1,
        "trains": 1,
    }
    assert not {rule["name"]: rule["lastError"] for rule in prometheus.rules() if rule["health"] == "err"}


def _if(count: int, found: list[Series]) -> list[Series] | None:
    return found if len(found) == count else None
