"""What the tests against a real Kubernetes share: a namespace of their own in the run's throw-away cluster.

`control_plane` and `own_control_plane` come from tests.support.testbed.fixtures, which tests/conftest.py loads.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from stoker.kube.client import KubeClient
from stoker.store.clock import SystemClock
from tests.support.testbed.arguments import CONTROLLERS
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.control_plane import ControlPlane
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly

from .operator_world import World, operator_world


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A fresh namespace; its deletion is asked for at the end and not waited for."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def client(control_plane: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_config(kubeconfig=control_plane.kubeconfig, clock=SystemClock()) as client:
        yield client


@pytest.fixture(scope="session")
def operator_plane() -> Iterator[Cluster]:
    """A cluster for operators only: they see every job there is."""
    try:
        found = ControlPlane(args={"kube-controller-manager": ["--node-monitor-period=1s"]})
    except Unavailable as error:
        skip_loudly(str(error))
    with found:
        found.install_crds()
        controllers = found.parts[CONTROLLERS]  # begun anew they know the new kinds at once, not half a minute later
        controllers.kill()
        controllers.start()
        found.wait_for_collector()
        yield found


@asynccontextmanager
async def _world(cluster: Cluster, *, operate: bool) -> AsyncIterator[World]:
    project = f"t{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", project)
    cluster.kubectl("label", "namespace", project, "pod-security.kubernetes.io/enforce=restricted")
    async with operator_world(cluster, project, operate=operate) as made:
        account = f"/api/v1/namespaces/{project}/serviceaccounts/default"
        await made.until(lambda: "default" in cluster.kubectl("get", "--raw", account, check=False), "service account")
        yield made


@pytest.fixture
async def world(operator_plane: Cluster) -> AsyncIterator[World]:
    """A namespace of the cluster's and an operator of this test's, on its own loop."""
    async with _world(operator_plane, operate=True) as made:
        yield made


@pytest.fixture
async def empty_world(operator_plane: Cluster) -> AsyncIterator[World]:
    """The same without an operator."""
    async with _world(operator_plane, operate=False) as made:
        yield made
