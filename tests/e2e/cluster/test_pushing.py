"""One value of the chart, and a Prometheus that can reach nothing has all of Stoker's series, trainers' too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import CHART, SYSTEM, WATCH, Project, Stack
from tests.support.testbed.monitoring import Prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
Figure = Callable[[str, object], None]
TENANT = {"X-Scope-OrgID": "bed"}


@pytest.fixture
def prometheus(stack: Stack) -> Iterator[Prometheus]:
    """It scrapes nothing; Stoker is upgraded to push to it, with a token over plain http since that is allowed."""
    with Prometheus(host=stack.bed.machine_address) as found:
        for namespace in (SYSTEM, WATCH):
            stack.bed.kubectl("create", "secret", "generic", "push", "-n", namespace, "--from-literal=token=s3cret")
        values = stack.values()
        values["monitoring"] |= {
            "push": {
                "url": found.write_url,
                "every": "2s",
                "tokenSecret": "push",
                "allowHttp": True,
                "headers": TENANT,
                "labels": {"cluster": "bed"},
            }
        }
        stack.release.upgrade(CHART, values)
        yield found
        stack.release.upgrade(CHART, stack.values())
        for namespace in (SYSTEM, WATCH):
            stack.bed.kubectl("delete", "secret", "push", "-n", namespace)


def test_exporters_operators_api_and_trainers_push(project: Project, prometheus: Prometheus, figure: Figure) -> None:
    trainer = {"recipe": "image-classification", "config": {"data": "digits", "epochs": 100_000}}
    project.client.submit({"gpusPerWorker": 1, "cpu": "300m", "memory": "1500Mi", "trainer": trainer}, name="trains")
    job = project.until_phase("trains", Phase.RUNNING)
    wanted = Counter({"stoker-api": 1, "stoker-operator": 2, "stoker-exporter": 2, "stoker-workers": 1})

    def up() -> bool:
        return Counter(one.labels["job"] for one in prometheus.query('up{cluster="bed"} == 1')) == wanted

    prometheus.until_true(up, f"series of {dict(wanted)}", 120)
    assert prometheus.targets() == []
    assert {one.labels["instance"] for one in prometheus.query("stoker_gpu_up")} == {"n0", "n1"}
    [steps] = prometheus.until("stoker_train_step_total > 0", 60)
    identity = {"project": project.name, "job_name": "trains", "job_uid": job.uid, "attempt": "1", "queue": "default"}
    assert identity.items() <= steps.labels.items()
    joined = "stoker_gpu_allocation_share_ratio * on (pod_uid) group_left (job_name) max by (pod_uid, job_name)"
    [held] = prometheus.until(f"{joined} (stoker_job_pod_info)", 60)
    assert (held.value, held.labels["job_name"]) == (1, "trains")
    assert prometheus.value('sum(stoker_push_samples_total{outcome!="sent"})') == 0
    figure("pushed by one value of the chart: who is up", ", ".join(f"{n} {who}" for who, n in sorted(wanted.items())))
