"""The documented commands that need nodes or minutes, as they are written; those of one machine: tests/docs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_stack import CHART, SYSTEM, Stack
from tests.support.documented import Sandbox, blocks, notes, pages
from tests.support.testbed.errors import BedError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
PAGES = pages()
NOTES = "helm/stoker/templates/NOTES.txt"


def _with(place: str) -> list[str]:
    return [page for page, text in PAGES.items() if any(block.place == place for block in blocks(text))]


@pytest.mark.parametrize("page", _with("long"))
def test_what_takes_minutes(page: str, tmp_path: Path) -> None:
    Sandbox(tmp_path / "sandbox").run(page, PAGES[page], "long")


@pytest.fixture
def bare(stack: Stack) -> Iterator[Stack]:
    """A cluster without Stoker, which it has again afterwards."""
    stack.release.uninstall()
    left = (("trainingruntime", "default"), ("namespace", "vision"), ("namespace", SYSTEM), ("pv", "stoker-data"))
    for kind, name in left:
        stack.bed.kubectl("delete", kind, name, "--ignore-not-found", "--timeout=60s", timeout_s=70)
    stack.prepare()
    yield stack
    stack.bed.kubectl("delete", "namespace", "vision", "--ignore-not-found", "--timeout=60s", timeout_s=70)
    try:
        stack.release.uninstall()
    except BedError:
        pass  # the page has done it
    stack.deploy()


@pytest.mark.parametrize("page", [*_with("nodes"), NOTES])
def test_with_nodes(page: str, bare: Stack, tmp_path: Path) -> None:
    values = {"server": bare.url, "image": bare.images["foreign-python"]}
    sandbox = Sandbox(tmp_path / "sandbox", {"KUBECONFIG": str(bare.bed.kubeconfig)}, values)
    (tmp_path / "sandbox" / "stoker" / "values.yaml").write_text(json.dumps(bare.values()))
    text = PAGES.get(page, "")
    if "create namespace" in text and "helm install" in text:
        bare.bed.kubectl("delete", "namespace", SYSTEM)
    if "helm install" not in text:
        printed = bare.release.install(CHART, bare.values())
        text = text or notes(printed.partition("NOTES:")[2])
    sandbox.run(page, text, "cluster", "nodes")
