"""One bed with two real nodes for the whole run, Stoker on it, a project per test; figures are printed at the end.

`STOKER_E2E_BED` names a bed that runs already (`python -m tests.support.testbed nodes up 2 2`): it is
used, given the images of the working tree, and left running.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.test_fetch import Site
from tests.support.cluster_stack import Project, Stack, built_images
from tests.support.testbed.nodes import NodeBed

GPUS_PER_NODE = 2
_FIGURES: list[tuple[str, str]] = []


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="stoker-e2e-"))
    folder.chmod(0o755)  # pods of another user mount folders below
    try:
        built = built_images(folder)
        archives = [image.archive for image in built.values()]
        if running := os.environ.get("STOKER_E2E_BED"):
            bed = NodeBed.attach(Path(running))
            assert bed is not None, f"no bed runs in {running}"
            for image in built.values():
                for node in bed.nodes.values():
                    if image.name not in node.images():
                        node.import_image(image.archive)
            stack = Stack(bed, built)
            stack.deploy()
            yield stack
            return
        with NodeBed(folder / "bed", gpus=(GPUS_PER_NODE, GPUS_PER_NODE), archives=archives) as bed:
            stack = Stack(bed, built)
            stack.deploy()
            yield stack
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def project(stack: Stack) -> Iterator[Project]:
    project = stack.project(f"team-{uuid.uuid4().hex[:6]}")
    yield project
    for job in project.client.ls():
        project.client.cancel(job.metadata.name)
    project.client.close()
    stack.bed.kubectl("delete", "namespace", project.name, "--wait=true", "--timeout=60s", timeout_s=70)


@pytest.fixture(scope="session")
def site(stack: Stack) -> Iterator[Site]:
    """Where pods reach it."""
    found = Site(stack.bed.machine_address)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """A folder of both nodes, on a disk that has room whatever this machine's own has."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-e2e-", dir="/dev/shm"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def figure() -> object:
    """`figure("what", value)`: into the table at the end of the run, for docs/verify.md."""

    def note(what: str, value: object) -> None:
        _FIGURES.append((what, str(value)))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _FIGURES:
        terminalreporter.section("figures")
        terminalreporter.write_line("| what | seen |\n|---|---|")
        for what, value in _FIGURES:
            terminalreporter.write_line(f"| {what} | {value} |")
        _FIGURES.clear()
