"""What the tests against a real Kubernetes share: a namespace of their own in the run's throw-away cluster.

`control_plane` and `own_control_plane` come from tests.support.testbed.fixtures, which tests/conftest.py loads.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.testbed.arguments import CONTROLLERS
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.control_plane import ControlPlane
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly

from .operator_world import World, operator_world

CRDS = Path(__file__).parents[2] / "helm" / "stoker" / "files" / "crds"


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A fresh namespace; its deletion is asked for at the end and not waited for."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def operator_plane() -> Iterator[Cluster]:
    """A cluster for operators only: they see every job there is."""
    try:
        found = ControlPlane(args={"kube-controller-manager": ["--node-monitor-period=1s"]})
    except Unavailable as error:
        skip_loudly(str(error))
    with found:
        found.kubectl("apply", "--server-side", "-f", str(CRDS))
        found.kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=30s")
        controllers = found.parts[CONTROLLERS]  # begun anew they know the new kinds at once, not half a minute later
        controllers.kill()
        controllers.start()
        _collector_knows(found)
        yield found


def _collector_knows(cluster: Cluster) -> None:
    """Until the garbage collector has seen a new kind it deletes nothing that a job owns."""
    job = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "owner"}}
    job |= {"spec": {"trainer": {"command": ["true"]}}}
    owner = json.loads(cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(job)))
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {"name": "owner", "uid": owner["metadata"]["uid"]}
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [reference]}}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(owned))
    cluster.kubectl("delete", "trainingjob", "owner", "--cascade=background", "--wait=true", "--timeout=10s")
    cluster.kubectl("wait", "configmap/owned", "--for=delete", "--timeout=60s", timeout_s=70)


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
