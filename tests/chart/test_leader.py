"""The leader's lease, which the chart makes empty: operators take it, upgrades leave it, it goes at the end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.kube.client import KubeClient
from stoker.kube.lease import LeaderElection, Timing
from stoker.store.clock import SystemClock
from tests.support.testbed import build
from tests.support.testbed.cluster import Cluster
from tools.chart import rendering

# Without what other tests of this API server would notice, and the namespace that `restricted` has made already.
QUIET = {
    "crds": {"enabled": False},
    "admission": {"enabled": False},
    "rbac": {"openLists": False},
    "exporter": {"enabled": False},
    "api": {"persistence": {"storageClass": "-"}},
}
FAST = Timing(lease_s=6.0, margin_s=1.0, renew_s=0.2, retry_s=0.1, stop_s=0.5)


class Release:
    """The chart, really installed. No node runs its pods."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self.namespace = cluster, namespace
        self.name = f"stoker-{uuid.uuid4().hex[:6]}"
        self.lease = f"{self.name}-operator"

    def helm(self, *args: str, values: dict[str, Any] | None = None) -> str:
        command = [str(build.program("helm")), f"--kubeconfig={self._cluster.kubeconfig}", f"-n{self.namespace}", *args]
        done = subprocess.run(
            command, input=None if values is None else json.dumps(values), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self) -> dict[str, Any]:
        got = self._cluster.kubectl("get", "lease", self.lease, f"-n{self.namespace}", "-o", "json")
        found: dict[str, Any] = json.loads(got)
        return found


@pytest.fixture
def release(control_plane: Cluster, restricted: str) -> Iterator[Release]:
    made = Release(control_plane, restricted)
    made.helm("install", made.name, str(rendering.CHART), "-f-", values=QUIET)
    yield made
    made.helm("uninstall", made.name, "--ignore-not-found")


async def test_who_leads_is_not_disturbed(release: Release, control_plane: Cluster) -> None:
    async with KubeClient.from_config(kubeconfig=control_plane.kubeconfig, clock=SystemClock()) as client:
        began = asyncio.Event()
        ended = asyncio.Event()

        async def work() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        election = LeaderElection(
            client, SystemClock(), namespace=release.namespace, identity="a", name=release.lease, timing=FAST
        )
        made = release.read()
        assert not made.get("spec")
        running = asyncio.create_task(election.run(work))
        await asyncio.wait_for(began.wait(), 20)
        for number, verb in enumerate(
            (("upgrade", release.name, str(rendering.CHART)), ("rollback", release.name, "1"))
        ):
            await asyncio.to_thread(_change, release, verb, 3 + number)
            found = await asyncio.to_thread(release.read)
            assert found["spec"]["holderIdentity"] == "a"
            assert election.is_leader and not ended.is_set()
            # The operator's writes have not taken what helm finds its objects by.
            assert found["metadata"]["uid"] == made["metadata"]["uid"]
            assert found["metadata"]["labels"] == made["metadata"]["labels"]
            assert found["metadata"]["annotations"] == made["metadata"]["annotations"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert release.read()["spec"]["holderIdentity"] == ""
    release.helm("uninstall", release.name, "--wait")
    assert control_plane.kubectl("get", "lease", release.lease, f"-n{release.namespace}", "--ignore-not-found") == ""


def _change(release: Release, verb: tuple[str, ...], replicas: int) -> None:
    if verb[0] == "rollback":
        release.helm(*verb)
    else:
        release.helm(*verb, "-f-", values=QUIET | {"operator": {"replicas": replicas}})


def test_nothing_is_left_but_what_is_said(release: Release, control_plane: Cluster) -> None:
    said = release.helm("uninstall", release.name, "--wait", "--cascade=foreground")
    assert f"{release.name}-api-data" in said
    kinds = "clusterrole,clusterrolebinding,role,rolebinding,serviceaccount,service,deployment,lease,configmap,pvc,"
    kinds += "networkpolicy,poddisruptionbudget,validatingadmissionpolicy,validatingadmissionpolicybinding"
    left = control_plane.kubectl(
        "get", kinds, "-A", "-l", f"app.kubernetes.io/instance={release.name}", "-o", "name"
    ).split()
    assert left == [f"persistentvolumeclaim/{release.name}-api-data"]
