"""pytest plugin: `control_plane` and `node_bed`, each started once, when the first test of a run asks for it, and
`monitoring`: whether Prometheus and Alertmanager are there.

Never builds (a build outlasts every test's time-out): `make testbed` does. Where there is no cluster (or Prometheus) to
be had, tests that want one are skipped and the run's last lines say so loudly; under CI (`$CI` set) they fail instead.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import pytest

from testbed.build import built, cache
from testbed.cluster import Cluster, existing
from testbed.control_plane import ControlPlane
from testbed.errors import Unavailable
from testbed.nodes import NodeBed

_SKIPPED = "no test bed: "


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def skip_loudly(reason: str) -> NoReturn:
    """Skips the test, which the end of the run tells once more. Under CI it fails."""
    if in_ci():
        pytest.fail(f"CI never skips the test bed: {reason}", pytrace=False)
    pytest.skip(f"{_SKIPPED}{reason}")


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A real API server with controllers and scheduler, shared by the run: tests use namespaces of their own."""
    if cluster := existing():
        if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
            pytest.fail("one cluster can't serve several test processes: run `make test AT_ONCE=`", pytrace=False)
        yield cluster
        return
    try:
        plane = ControlPlane()
    except Unavailable as error:
        skip_loudly(str(error))
    with plane:
        yield plane


@pytest.fixture
def own_control_plane() -> Iterator[ControlPlane]:
    """A control plane of this test only, whose parts it may break."""
    try:
        plane = ControlPlane()
    except Unavailable as error:
        skip_loudly(str(error))
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
def monitoring() -> None:
    """That `testbed.monitoring` can start what it starts; tests make servers of their own."""
    try:
        built("monitoring")
    except Unavailable as error:
        skip_loudly(str(error))


@pytest.hookimpl(tryfirst=True)  # before `-m` is asked
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what uses the test bed (`-m "not cluster"`): fixtures ending in `plane`, or `node_bed`, `monitoring`.

    Where several processes run the tests (`--dist loadgroup`), a cluster is started in one of them, for all its tests:
    each more would cost a fifth of a core while it idles. Other tests stay together by file. The longest come first.
    Leaves out what needs root and real nodes, or very long, unless the run asks for it by name (`-m e2e`, `-m sweep`).
    """
    groups: dict[pytest.Item, str] = {}
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        in_mode = any(isinstance(value, str) and value == "kubernetes" for value in params.values())
        fixtures = getattr(item, "fixturenames", ())
        planes = [name for name in fixtures if name.endswith("_plane")] or ["control_plane"] * in_mode
        if planes or "node_bed" in fixtures or "monitoring" in fixtures:
            item.add_marker("cluster")
        shared = [name for name in planes if name != "own_control_plane"]
        groups[item] = shared[0] if shared else str(item.path)
        item.add_marker(pytest.mark.xdist_group(groups[item]))
    slow = {group for item, group in groups.items() if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (not groups[item].endswith("_plane"), groups[item] not in slow))
    for mark in ("e2e", "sweep"):
        if mark not in config.option.markexpr:
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(mark)])
            items[:] = [item for item in items if not item.get_closest_marker(mark)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """From the reports alone: so it is right too where other processes ran the tests (pytest-xdist)."""
    whys = Counter(_why_skipped(report) for report in terminalreporter.stats.get("skipped", ()))
    for why, tests in whys.items():
        if not why.startswith(_SKIPPED):
            continue
        terminalreporter.section("NOT TESTED", sep="=", red=True, bold=True)
        some = "1 test skipped, nothing of it is" if tests == 1 else f"{tests} tests skipped, nothing of them is"
        terminalreporter.write_line(f"{some} proved here: {why.removeprefix(_SKIPPED)}")


def _why_skipped(report: pytest.TestReport | pytest.CollectReport) -> str:
    """In the words given to pytest.skip."""
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
