"""pytest plugin: `control_plane` and `node_bed`, each started once, when the first test of a run asks for it, and
`monitoring`: whether Prometheus and Alertmanager are there. Marks the tests that use them (`-m "not cluster"`).

Never builds (a build outlasts every test's time-out): `make testbed` does. Where there is no cluster (or Prometheus) to
be had, tests that want one are skipped and the run's last lines say so loudly; under CI (`$CI` set) they fail instead.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.support.testbed.build import built, cache
from tests.support.testbed.cluster import Cluster, existing
from tests.support.testbed.control_plane import ControlPlane
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.nodes import NodeBed

_SKIPPED = "no test bed: "
PAGE = "page: "


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def skip_loudly(reason: str) -> NoReturn:
    """Skips the test, which the end of the run says once more. Under CI it fails."""
    if in_ci():
        pytest.fail(f"CI never skips the test bed: {reason}", pytrace=False)
    pytest.skip(f"{_SKIPPED}{reason}")


def skip_page(reason: str) -> NoReturn:
    """The same for tests in a browser, under CI too: what can be installed there differs."""
    pytest.skip(f"{PAGE}{reason}")


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


def clusters(item: pytest.Item) -> list[str]:
    """The fixtures of a test that are clusters: their names end in `plane`."""
    named = [name for name in getattr(item, "fixturenames", ()) if name.endswith("_plane")]
    params = getattr(getattr(item, "callspec", None), "params", {})
    in_mode = any(isinstance(value, str) and value == "kubernetes" for value in params.values())
    return named or ["control_plane"] * in_mode


@pytest.hookimpl(tryfirst=True)  # before `-m` is asked
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what needs root and real nodes, or very long, unless the run asks for it (`-m e2e`, `-m sweep`)."""
    for item in items:
        if clusters(item) or not {"node_bed", "monitoring"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("cluster")
    for mark in ("e2e", "sweep"):
        if mark not in config.option.markexpr:
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(mark)])
            items[:] = [item for item in items if not item.get_closest_marker(mark)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """From the reports alone: so it is right too where other processes ran the tests (pytest-xdist)."""
    whys = Counter(_why_skipped(report) for report in terminalreporter.stats.get("skipped", ()))
    for why, tests in whys.items():
        if not why.startswith((_SKIPPED, PAGE)):
            continue
        what = ": page" if why.startswith(PAGE) else ""
        terminalreporter.section(f"NOT TESTED{what}", sep="=", red=True, bold=True)
        some = "1 test skipped, nothing of it is" if tests == 1 else f"{tests} tests skipped, nothing of them is"
        terminalreporter.write_line(f"{some} proved here: {why.removeprefix(_SKIPPED).removeprefix(PAGE)}")


def _why_skipped(report: pytest.TestReport | pytest.CollectReport) -> str:
    """In the words given to pytest.skip."""
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
