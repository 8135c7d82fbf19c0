"""`/v1/sd/prometheus`: what Prometheus is to scrape, in both modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stoker.kube.views import PodView
from stoker.spec.meta import ObjectMeta
from stoker.spec.pod import PODS, Container, ContainerPort, Pod, PodPhase, PodSpec, PodStatus
from stoker_api.ports import ScrapeTarget
from stoker_api.scrape_targets import PodScraping, server_targets


class OneMachine:
    """The agent's part: worker pods by name → port."""

    def __init__(self, **ports: int) -> None:
        self.ports = ports

    def servers(self) -> Sequence[ScrapeTarget]:
        return [ScrapeTarget("127.0.0.1:8470", {"job": "stoker-api"})]

    def worker(self, pod: Pod) -> str | None:
        port = self.ports.get(pod.metadata.name.replace("-", "_"))
        return None if port is None else f"127.0.0.1:{port}"


async def ask(world: Any, role: str) -> Any:
    answer = await world.call("GET", f"/v1/sd/prometheus?role={role}", who="admin")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def pod(name: str = "one-1-0", *, address: str | None = "10.0.0.7", port: str = "metrics", **status: Any) -> Pod:
    container = Container(ports=(ContainerPort(name=port, container_port=9464),))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="alpha"),
        spec=PodSpec(containers=(container,)),
        status=PodStatus(phase=PodPhase.RUNNING, pod_ip=address, **status),
    )


async def test_nothing_runs_and_nothing_is_found(world: Any) -> None:
    assert await ask(world, "workers") == []
    assert await ask(world, "servers") == []


async def test_a_role_that_is_none_is_refused(world: Any) -> None:
    for role in ("", "?role=", "?role=pods", "?role=workers&port=1"):
        answer = await world.call("GET", f"/v1/sd/prometheus{role}", who="admin")
        assert answer.status_code == 422, (role, answer.text)


@pytest.mark.parametrize("new_world", ["embedded"], indirect=True)
async def test_a_worker_that_runs_and_serves_is_found_with_its_job(world: Any) -> None:
    job = await world.job("one")
    here, silent, waits = [await world.pod(job, worker=number) for number in range(3)]
    for one in (here, silent):
        stored = await world.store.patch_status(PODS, one.key, {"phase": "Running"}, manager="agent")
        await world.deps.pods.at_least(stored.metadata.resource_version, timeout_s=5)
    scraping = OneMachine(**{here.metadata.name.replace("-", "_"): 10001, waits.metadata.name.replace("-", "_"): 10003})
    object.__setattr__(world.deps, "scraping", scraping)
    assert await ask(world, "workers") == [
        {
            "targets": ["127.0.0.1:10001"],
            "labels": {
                "job": "stoker-workers",
                "project": "alpha",
                "job_name": "one",
                "job_uid": job.uid,
                "attempt": "1",
                "worker": "0",
                "queue": "default",
            },
        }
    ]
    assert await ask(world, "servers") == [{"targets": ["127.0.0.1:8470"], "labels": {"job": "stoker-api"}}]
    stored = await world.store.patch_status(PODS, here.key, {"phase": "Succeeded"}, manager="agent")
    await world.deps.pods.at_least(stored.metadata.resource_version, timeout_s=5)
    assert await ask(world, "workers") == []


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (pod(), "10.0.0.7:9464"),
        (pod(address="fd00::7"), "[fd00::7]:9464"),
        (pod(address=None), None),
        (pod(port="http"), None),
    ],
    ids=["served", "by IPv6", "no address yet", "none of that name"],
)
def test_on_a_cluster_a_pod_says_itself_where_it_serves(found: Pod, address: str | None) -> None:
    assert PodScraping().worker(found) == address
    assert PodScraping().servers() == ()


def test_what_kubernetes_writes_is_what_is_read() -> None:
    written = pod().dump()
    assert written["status"]["podIP"] == "10.0.0.7"
    assert written["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 9464}]
    assert PodScraping().worker(PodView.model_validate(written)) == "10.0.0.7:9464"
    without = Pod(metadata=ObjectMeta(name="x"), spec=PodSpec(containers=(Container(),)))
    assert "ports" not in without.dump()["spec"]["containers"][0]


async def test_targets_are_the_deps_own(world: Any) -> None:
    deps = replace(world.deps, scraping=OneMachine())
    assert server_targets(deps) == [ScrapeTarget("127.0.0.1:8470", {"job": "stoker-api"})]
