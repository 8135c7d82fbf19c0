"""The web page in a real browser against api and operator on a real API server: what a person does with their jobs.

Nodes are the test's own and their kubelets the test bed's stand-in, which runs nothing: curves, logs and files are
shown by tests/page on one machine, and by tests/e2e/cluster/test_page.py on real nodes.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.kube.client import KubeClient
from stoker.kube.review import TokenReviewer
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.spec.job import Phase
from stoker.spec.runtime import RUNTIMES
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker_api.app import create_app
from stoker_api.cluster_identity import ClusterIdentity
from stoker_api.curves.store import CurveStore
from stoker_api.deps import Deps, caches, running_caches
from stoker_api.serve import serving
from stoker_api.worker_logs.source import WorkerLogSource
from stoker_api.worker_logs.storage import ShippedLogs
from tests.support.browser import browsing
from tests.support.testbed.accounts import apis_kubeconfig
from tests.support.testbed.kubelets import Play

from .operator_world import World

USER = "alice"


@contextlib.asynccontextmanager
async def api(world: World, folder: Path) -> AsyncIterator[str]:
    """The api with the chart's rights, on a port of this machine: its address."""
    clock = SystemClock()
    async with (
        KubeClient.from_config(kubeconfig=apis_kubeconfig(world.cluster, world.project), clock=clock) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        store = KubeStore(client, clock)
        pods, others = cluster_pods(store, clock)
        held = caches(store, clock, pods=pods)
        logs = WorkerLogSource(ShippedLogs(folder / "logs"), pods, held["jobs"], clock)
        deps = Deps(
            store,
            **held,
            logs=logs,
            identity=ClusterIdentity(TokenReviewer(client), clock),
            clock=clock,
            runtimes=WatchCache(store, RUNTIMES, clock=clock),
            other_pods=others,
            curves=stack.enter_context(CurveStore(folder / "curves.db", clock)),
        )
        await stack.enter_async_context(running_caches(deps))
        await stack.enter_async_context(logs.running())
        yield f"http://127.0.0.1:{await stack.enter_async_context(serving(create_app(deps)))}"


async def user(world: World) -> str:
    """The token of one who may use the project's jobs and look at queues and nodes."""
    group = "stoker.dev"
    verbs = ["get", "list", "create", "update", "delete"]
    project = [{"apiGroups": [group], "resources": ["trainingjobs"], "verbs": verbs}]
    project.append({"apiGroups": [group], "resources": ["queues", "trainingruntimes"], "verbs": ["use"]})
    shared = [{"apiGroups": [group], "resources": ["queues", "gpunodes"], "verbs": ["list"]}]
    meta, rbac = {"name": USER, "namespace": world.project}, "rbac.authorization.k8s.io"
    everywhere = {"name": f"{USER}-{world.project}"}
    subjects = [{"kind": "ServiceAccount", **meta}]
    items: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        *(
            {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": of, "rules": rules}
            for kind, of, rules in (("Role", meta, project), ("ClusterRole", everywhere, shared))
        ),
        *(
            {
                "apiVersion": f"{rbac}/v1", "kind": f"{kind}Binding", "metadata": of, "subjects": subjects,
                "roleRef": {"apiGroup": rbac, "kind": kind, "name": of["name"]},
            }
            for kind, of in (("Role", meta), ("ClusterRole", everywhere))
        ),
    ]  # fmt: skip
    await world.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return world.token(USER)


async def state(page: Any, name: str) -> None:
    await page.locator(".job-head .state", has_text=name).wait_for()


@pytest.mark.slow
async def test_jobs_from_submit_to_compare(world: World, chromium_path: str, tmp_path: Path) -> None:
    await world.node("n", gpus=1)
    world.kubelet.script = lambda _pod: Play()
    token = await user(world)
    async with api(world, tmp_path) as base, browsing(chromium_path) as page:
        async with httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {token}"}) as client:
            ticket = (await client.post("/v1/sign-in-tickets")).json()["ticket"]
        await page.goto(f"{base}/docs?op=submit_job#ticket={ticket}")
        await page.get_by_text(f"with the token of system:serviceaccount:{world.project}:{USER}").wait_for()
        submit = page.locator("#submit_job")
        await submit.get_by_label("project", exact=True).fill(world.project)
        await submit.get_by_label("idempotency-key", exact=True).fill("")
        for name in ("first", "second"):
            spec = {"gpusPerWorker": 1, "cpu": "1", "memory": "1Gi", "trainer": {"command": ["train"], "image": "x"}}
            body = json.dumps({"metadata": {"name": name}, "spec": spec})
            await submit.get_by_label("Body of submit_job").fill(body)
            await submit.get_by_role("button", name="Send POST").click()
            await submit.locator(".answer", has_text=f'"name": "{name}"').wait_for()
            await world.phase(name, Phase.RUNNING if name == "first" else Phase.QUEUED)

        await page.get_by_role("link", name="Jobs", exact=True).click()
        await page.get_by_role("row", name="first").get_by_text("Running").wait_for()
        await page.get_by_role("link", name="second").click()
        await state(page, "Queued")
        await page.locator(".blocker", has_text="1 of 1 GPU missing").wait_for()
        await page.get_by_role("link", name=f"{world.project}/first").click()
        await state(page, "Running")

        await page.get_by_role("button", name="Suspend").click()
        await page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
        await state(page, "Suspended")
        await world.phase("second", Phase.RUNNING)
        await page.get_by_role("button", name="Resume").click()
        await page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        await state(page, "Queued")

        await page.get_by_role("button", name="Clone").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("third")
        await dialog.get_by_label("Priority").fill("7")
        await dialog.get_by_role("button", name="Submit").click()
        await page.wait_for_url(f"**/jobs/{world.project}/third")
        await state(page, "Queued")

        await page.goto(f"{base}/compare?jobs={world.project}/first,{world.project}/third")
        await page.get_by_role("row", name=re.compile("priority.*7")).wait_for()
        await page.goto(f"{base}/gpus")
        await (
            page.get_by_label(f"Node {world.project}-n").get_by_role("link", name=f"{world.project}/second").wait_for()
        )
        assert await page.evaluate("window.violations ?? []") == []
