"""The operator as a process of its own: who leads, what it serves, how it ends, what it says of what it can't read."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stoker.kube.client import Call
from stoker.spec.event import EVENTS
from stoker.spec.job import JOBS, Phase
from tests.support.testbed.accounts import SCRAPER
from tests.support.testbed.kubelets import Play
from tests.support.testbed.remote_write import read_request
from tests.support.testbed.webhook import Answer, Webhook

from .operator_world import World

_PORT = re.compile(r"metrics on port (\d+)")


class Process:
    """One operator."""

    def __init__(self, world: World, identity: str, log: Path, options: tuple[str, ...] = ()) -> None:
        self._world, self.identity, self._log, self._options = world, identity, log, options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        arguments = (
            *("--image", "stoker:test", "--trainer-image", "trainer:test", "--host", "127.0.0.1", "--port", "0"),
            *("--namespace", self._world.project, "--identity", self.identity, "--log-format", "json"),
            *("--kubeconfig", str(self._world.operators_config), *self._options),
        )
        with self._log.open("w") as out:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "stoker.controller.main", *arguments),
                stdout=out,
                stderr=out,
                env={name: value for name, value in os.environ.items() if not name.startswith("STOKER_")},
            )
        ready = lambda: self.exit_code is not None or self.page("/readyz")[0] == 200  # noqa: E731
        await self._world.until(ready, self.log, every_s=0.05)
        assert self.exit_code is None, self.log()

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def log(self) -> str:
        return self._log.read_text()

    def page(self, path: str, token: str = "") -> tuple[int, str]:
        port = _PORT.search(self.log())
        if port is None:
            return 0, ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port[1]}{path}", headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float | None:
        page = self.page("/metrics", self._world.token(SCRAPER))[1]
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return None if found is None else float(found[1])

    async def leads(self) -> None:
        await self._world.until(lambda: self.metric("stoker_operator_leader") == 1, self.log, 40, every_s=0.1)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), 20)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def operators(
    world: World, folder: Path, *identities: str, options: tuple[str, ...] = ()
) -> AsyncIterator[list[Process]]:
    found = [Process(world, identity, folder / f"{identity}.log", options) for identity in identities]
    try:
        for process in found:
            await process.start()
        yield found
        for job in [job for job in world.jobs.values() if job.metadata.namespace == world.project]:
            await world.store.delete(JOBS, job.key)
        await world.until(lambda: not [p for p in world.pods.values() if p.metadata.namespace == world.project], "pods")
    finally:
        for process in found:
            await process.kill()


async def test_one_of_two_leads_and_the_other_takes_over_at_once_when_it_is_stopped(
    empty_world: World, tmp_path: Path
) -> None:
    world = empty_world
    await world.node("n")
    async with operators(world, tmp_path, "one", "two") as (one, two):
        await one.leads()
        await world.submit("a")
        await world.phase("a", Phase.SUCCEEDED)
        assert two.metric("stoker_operator_leader") == 0
        assert one.metric('stoker_operator_api_requests_total{kind="Pod",verb="create"}') == 1
        assert two.metric('stoker_operator_api_requests_total{kind="Pod",verb="create"}') is None
        assert one.page("/healthz") == (200, "ok\n")

        one.send(signal.SIGTERM)
        assert await one.ended() == 0
        path = f"/apis/coordination.k8s.io/v1/namespaces/{world.project}/leases/stoker-operator"
        lease = json.loads(await world.client.request(Call("get", "Lease", "stoker-operator"), "GET", path))
        assert lease["spec"]["holderIdentity"] in ("", "two"), "it was released, not waited for"
        await two.leads()
        await world.submit("b")
        await world.phase("b", Phase.SUCCEEDED)
        for line in one.log().splitlines():
            assert json.loads(line)["level"] in ("info", "warning"), line


async def test_metrics_are_for_who_may_read_the_path_probes_for_all_and_pushed_if_asked(
    empty_world: World, tmp_path: Path
) -> None:
    world = empty_world
    await world.kubectl("create", "serviceaccount", "tenant", "-n", world.project)
    push = Webhook(lambda _: Answer(204))
    with push:
        options = ("--push-url", push.url, "--push-header", "X-Scope-OrgID=team")
        await _readable_by_who_may(world, tmp_path, options)
        written = [dict(one.labels) for request in push.posted for one in read_request(request.body)]
    assert {"stoker-operator"} == {labels["job"] for labels in written}
    assert {"up", "stoker_operator_leader"} <= {labels["__name__"] for labels in written}
    assert {request.headers["x-scope-orgid"] for request in push.posted} == {"team"}


async def _readable_by_who_may(world: World, folder: Path, options: tuple[str, ...]) -> None:
    async with operators(world, folder, "one", options=options) as (one,):
        for token, status in (("", 401), ("guess", 401), (world.token("tenant"), 403), (world.token(SCRAPER), 200)):
            found, text = one.page("/metrics", token)
            assert found == status and ("stoker_operator_leader" in text) == (status == 200), text
        assert one.page("/healthz")[0] == one.page("/readyz")[0] == 200


async def test_a_leader_that_is_killed_is_followed_and_its_jobs_go_on(empty_world: World, tmp_path: Path) -> None:
    world = empty_world
    await world.node("n")
    world.kubelet.script = lambda _pod: Play()
    async with operators(world, tmp_path, "one", "two") as (one, two):
        await one.leads()
        await world.submit("a")
        await world.phase("a", Phase.RUNNING)
        one.send(signal.SIGKILL)
        await two.leads()
        job = world.job("a")
        assert (job.status.phase, job.status.attempt, len(world.kubelet.ran)) == (Phase.RUNNING, 1, 1)
        world.kubelet.script = lambda _pod: Play(code=0)
        await world.evict(world.pods_of("a")[0])
        job = await world.phase("a", Phase.SUCCEEDED)
        assert job.status.attempt == 2


async def test_a_job_that_can_not_be_read_is_reported_once_and_the_others_go_on(
    empty_world: World, tmp_path: Path
) -> None:
    world = empty_world
    await world.node("n")
    async with operators(world, tmp_path, "one", options=("--log-format", "text")) as (one,):
        await one.leads()
        bad = {
            "apiVersion": "stoker.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "bad"},
            "spec": {"trainer": {"recipe": "image-classification", "config": {"nonsense\nFORGED \x1b[2J": 1}}},
        }
        await world.kubectl("create", "-n", world.project, "-f", "-", stdin=json.dumps(bad))

        async def condition() -> dict[str, str]:
            status = json.loads(await world.kubectl("get", "trainingjob", "-n", world.project, "bad", "-o", "json"))
            found = [c for c in status.get("status", {}).get("conditions", []) if c["type"] == "Accepted"]
            return {**found[0], "version": status["metadata"]["resourceVersion"]} if found else {}

        async with asyncio.timeout(20):
            while not (first := await condition()):
                await asyncio.sleep(0.1)
        assert (first["status"], first["reason"]) == ("False", "Unreadable")
        assert "nonsense" in first["message"]
        assert "FORGED ?[2J" in one.log() and "\nFORGED" not in one.log(), "as part of a line"
        await world.submit("good")
        await world.phase("good", Phase.SUCCEEDED)
        assert await condition() == first, "written once"
        events = await world.store.list(EVENTS, namespace=world.project)
        assert [e.involved_object.name for e in events.items if e.reason == "NotAccepted"] == ["bad"]
        await world.kubectl("delete", "trainingjob", "-n", world.project, "bad")
