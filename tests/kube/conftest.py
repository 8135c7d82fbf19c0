"""What the tests against a real Kubernetes share: a namespace of their own in the run's throw-away cluster.

`control_plane` and `own_control_plane` come from testbed.fixtures (tests/conftest.py loads it for every folder).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from testbed.cluster import Cluster


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A fresh namespace; its deletion is asked for at the end and not waited for."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
