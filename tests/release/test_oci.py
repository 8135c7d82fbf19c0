"""Archives: written the same each time, read without an engine, and looked into as a container would see them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tools.release import oci, sbom

from .conftest import write_layout

NAME = "registry.example/team/stoker:0.5.1"


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    write_layout(tmp_path / "layout", {"a": "b"})
    return tmp_path / "layout"


def test_packed_twice_the_bytes_are_the_same(layout: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        oci.pack(layout, tmp_path / name, NAME)
        (layout / "oci-layout").touch()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_is_read_is_what_was_packed(layout: Path, tmp_path: Path) -> None:
    packed = oci.pack(layout, tmp_path / "archive", NAME)
    assert oci.read(tmp_path / "archive") == packed
    assert packed.name == NAME and packed.config["config"]["Labels"] == {"a": "b"}
    with tarfile.open(tmp_path / "archive") as tar:
        index = json.load(tar.extractfile("index.json"))  # type: ignore[arg-type]
        (for_docker,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert packed.digest == index["manifests"][0]["digest"]
        assert for_docker["RepoTags"] == [NAME] and set(for_docker["Layers"]) <= set(tar.getnames())


def test_packages_are_those_that_the_layers_leave(layout: Path, tmp_path: Path) -> None:
    oci.pack(layout, tmp_path / "archive", NAME)
    found = oci.installed(tmp_path / "archive")
    assert found.debian == {("libc6", "2.41-12")}
    assert found.python == {("some-thing", "3.1")}


@pytest.mark.usefixtures("syft")
def test_the_sbom_lists_these_and_no_others(layout: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    oci.pack(layout, archive, NAME)
    described = sbom.describe(sbom.Subject(archive, NAME, "0.5.1", layout, is_image=True), 0)
    document, first = sbom.read(described), described.read_bytes()
    assert sbom.listed(document) == oci.installed(archive)
    assert document["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
    assert sbom.sha256(archive) in document["documentNamespace"]
    assert sbom.describe(sbom.Subject(archive, NAME, "0.5.1", layout, is_image=True), 0).read_bytes() == first
