"""What the chart's tests share: real helm, a real API server with Prometheus' definitions, and a strict namespace."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.testbed import build, downloads
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly

WANTED = ("podmonitors", "prometheusrules", "servicemonitors")


@pytest.fixture(autouse=True)
def _with_helm() -> None:
    try:
        build.program("helm")
    except Unavailable as error:
        skip_loudly(str(error))


@pytest.fixture(scope="session")
def server(control_plane: Cluster) -> Cluster:
    """The run's throw-away cluster, Prometheus' definitions installed and established."""
    try:
        folder = downloads.folder("prometheus-crds")
    except Unavailable as error:
        skip_loudly(str(error))
    control_plane.install_crds(*(folder / f"monitoring.coreos.com_{name}.yaml" for name in WANTED))
    return control_plane


@pytest.fixture(scope="module")
def restricted(control_plane: Cluster) -> Iterator[str]:
    """A namespace of the file's that takes restricted pods only, and warns of workloads that would make others.

    Beside it the exporter's: a dry run of an installation does not make it, and would find it missing.
    """
    name = f"chart-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    modes = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    control_plane.kubectl("label", "namespace", name, *modes)
    control_plane.kubectl("wait", "--for=create", "--timeout=30s", "-n", name, "serviceaccount/default")
    control_plane.kubectl("create", "namespace", f"{name}-exporter")
    yield name
    control_plane.kubectl("delete", "namespace", name, f"{name}-exporter", "--wait=false")
