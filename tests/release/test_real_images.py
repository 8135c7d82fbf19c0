"""The real images as archives: their SBOMs list what is in them, at the versions that were asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.testbed import build
from tools import images
from tools.images import building
from tools.release import making, oci, record, sbom, source, verifying

# Root, buildah, mmdebstrap. With warm layers three minutes, most of it to compress the trainer's.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def made(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build.build("helm")
    build.build("release")
    return making.make(making.Options(version="0.5.1", out=tmp_path_factory.mktemp("dist"), root=checkout))


def listed(made: Path, name: str) -> oci.Installed:
    (image,) = [image for image in record.read(made).of("image") if image.image == name]
    return sbom.listed(sbom.read(made / image.sbom))


def test_the_release_is_whole(made: Path) -> None:
    assert verifying.problems(made) == []


@pytest.mark.parametrize("name", ["control-plane", "trainer-cpu"])
def test_labels_follow_the_version_where_all_layers_are_kept(taken: source.Source, name: str) -> None:
    for version in ("0.5.2", "0.5.3", "0.5.2"):
        reference = f"stoker.labels/{name}:{version}"
        images.build_tagged(name, reference, taken.root, version, f"commit of {version}", print)
        try:
            about = json.loads(building.run("buildah", "inspect", "--type", "image", reference))["OCIv1"]["config"]
        finally:
            building.forget(reference)
        assert about["Labels"]["org.opencontainers.image.version"] == version
        assert about["Labels"]["org.opencontainers.image.revision"] == f"commit of {version}"


def test_the_control_planes_sbom(made: Path) -> None:
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (source.ROOT / "constraints.txt").read_text(), re.MULTILINE))
    found = listed(made, "control-plane")
    python = dict(found.python)
    assert python["stoker"] == "0.5.1"
    for name in ("pydantic", "fastapi", "kubernetes", "uvicorn"):
        assert python[name] == pinned[name]
    assert not python.keys() & {"torch", "pip", "hatchling", "pytest"}
    assert {"libc6", "python3", "ca-certificates"} <= dict(found.debian).keys()


def test_the_trainers_sbom(made: Path) -> None:
    found = listed(made, "trainer-cpu")
    assert dict(found.python)["torch"].startswith("2.")
    assert {"libc6", "python3-torch"} <= dict(found.debian).keys()
    assert not dict(found.python).keys() & {"fastapi", "kubernetes", "pydantic"}


def test_licences_of_debians_packages_are_in_the_images(made: Path) -> None:
    for image in record.read(made).of("image"):
        described = {file["fileName"] for file in sbom.read(made / image.sbom)["files"]}
        assert "usr/share/doc/libc6/copyright" in described
