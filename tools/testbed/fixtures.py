"""pytest plugin: `control_plane` and `node_bed`, each started once, when the first test of a run asks for it, and
`monitoring`: whether Prometheus and Alertmanager are there.

Never builds (a build outlasts every test's time-out): `make testbed` does. Where there is no cluster (or Prometheus) to
be had, tests that want one are skipped and the run's last lines say so loudly; under CI (`$CI` set) they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from testbed.build import built, cache
from testbed.cluster import Cluster, existing
from testbed.control_plane import ControlPlane
from testbed.errors import Unavailable
from testbed.nodes import NodeBed

_WITHOUT = pytest.StashKey[dict[str, list[str]]]()


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def skip_loudly(request: pytest.FixtureRequest, reason: str) -> NoReturn:
    """Skips the test and remembers why for the end of the run. Under CI it fails."""
    if in_ci():
        pytest.fail(f"CI never skips the test bed: {reason}", pytrace=False)
    config = request.config
    if _WITHOUT not in config.stash:
        config.stash[_WITHOUT] = {}
    config.stash[_WITHOUT].setdefault(reason, []).append(request.node.nodeid)
    pytest.skip(f"no test bed: {reason}")


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[Cluster | Unavailable]:
    if cluster := existing():
        yield cluster
        return
    try:
        plane = ControlPlane()
    except Unavailable as error:
        yield error
        return
    with plane:
        yield plane


@pytest.fixture
def control_plane(request: pytest.FixtureRequest, _shared_cluster: Cluster | Unavailable) -> Cluster:
    """A real API server with controllers and scheduler, shared by the run: tests use namespaces of their own."""
    if isinstance(_shared_cluster, Unavailable):
        skip_loudly(request, str(_shared_cluster))
    return _shared_cluster


@pytest.fixture
def own_control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of this test only, whose parts it may break."""
    try:
        plane = ControlPlane()
    except Unavailable as error:
        skip_loudly(request, str(error))
    with plane:
        yield plane


@pytest.fixture(scope="session")
def node_bed() -> Iterator[NodeBed]:
    """Two real nodes, n0 and n1, with four pretend GPUs each, shared by a run of `make e2e`.

    A test repairs what it breaks. Fails where it can't be had: who asks for end-to-end tests by name wants them.
    """
    try:
        bed = NodeBed(cache() / "e2e")
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)
    with bed:
        yield bed


@pytest.fixture
def monitoring(request: pytest.FixtureRequest) -> None:
    """That `testbed.monitoring` can start what it starts; tests make servers of their own."""
    try:
        built("monitoring")
    except Unavailable as error:
        skip_loudly(request, str(error))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what needs root and real nodes, unless the run asks for it by name (`-m e2e`)."""
    if "e2e" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("e2e")])
        items[:] = [item for item in items if not item.get_closest_marker("e2e")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, tests in config.stash.get(_WITHOUT, {}).items():
        terminalreporter.section("NOT TESTED", sep="=", red=True, bold=True)
        some = (
            "1 test skipped, nothing of it is" if len(tests) == 1 else f"{len(tests)} tests skipped, nothing of them is"
        )
        terminalreporter.write_line(f"{some} proved here: {reason}")
