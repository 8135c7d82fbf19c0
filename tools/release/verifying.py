"""Checks whether a release folder is whole and its parts fit each other, by looking at the files themselves."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.version import Version

from tools.release import chart, oci, record, sbom, versions, wheel
from tools.release.errors import Refused

Log = Callable[[str], None]
_LABEL = "org.opencontainers.image."
_WANTED = ("wheel", "sdist", "chart", "image")


def problems(folder: Path, log: Log = lambda line: None) -> list[str]:
    """What is wrong with it; none: it may be published. What is left out on purpose, but not wrong, is logged.

    Raises: Refused where the folder is no release at all.
    Cost: 10 s with the CPU images, most of it to unpack them.
    """
    release = record.read(folder)
    found = record.sums_problems(folder)
    if found:
        return found  # nothing else can be trusted
    for kind in _WANTED:
        if not release.of(kind):
            found.append(f"no {kind}: this release was made with --only; run `make release` for all of it")
    for artefact in release.artefacts:
        found += [f"{artefact.file}: {problem}" for problem in _artefact_problems(artefact, folder)]
        log(f"{artefact.kind:5} {artefact.file} {artefact.bytes / 1e6:,.1f} MB")
    return found + list(_fit(release, folder, log))


def _artefact_problems(artefact: record.Artefact, folder: Path) -> Iterator[str]:
    """Whether its SBOM lists what is in it."""
    try:
        document = sbom.read(folder / artefact.sbom)
    except (OSError, ValueError) as error:
        yield f"SBOM {artefact.sbom}: {error}; make the release again"
        return
    if document["documentNamespace"] != sbom.namespace(folder / artefact.file):
        yield f"SBOM {artefact.sbom} describes another file; make the release again"
    if artefact.kind == "image":
        listed, there = sbom.listed(document), oci.installed(folder / artefact.file)
        yield from _differences("Debian package", there.debian, listed.debian)
        yield from _differences("Python package", there.python, listed.python)
    elif artefact.kind == "wheel":
        yield from wheel.wheel_problems(folder / artefact.file)


def _differences(what: str, there: set[tuple[str, str]], listed: set[tuple[str, str]]) -> Iterator[str]:
    for name, version in sorted(there - listed):
        yield f"{what} {name} {version} is in it, but not in its SBOM; is syft (tools/modules/syft) too old for it?"
    for name, version in sorted(listed - there):
        yield f"{what} {name} {version} is in its SBOM, but not in it; make the release again"


def _fit(release: record.Release, folder: Path, log: Log) -> Iterator[str]:
    """Whether versions, tags and commit are the same everywhere."""
    version = versions.parse(release.version)
    for artefact in release.of("wheel"):
        if Version(has := wheel.wheel_version(folder / artefact.file)) != version:
            yield f"{artefact.file}: holds version {has}, not {version}; make the release again"
    archives = {artefact.reference: artefact.image for artefact in release.of("image")}
    for artefact in release.of("image"):
        yield from _image_problems(artefact, release, folder)
    for artefact in release.of("chart"):
        yield from _chart_problems(folder / artefact.file, version, archives, release, log)


def _image_problems(artefact: record.Artefact, release: record.Release, folder: Path) -> Iterator[str]:
    try:
        image = oci.read(folder / artefact.file)
    except (KeyError, ValueError, tarfile.TarError, json.JSONDecodeError) as error:
        yield f"{artefact.file}: no OCI archive of one image: {error}"
        return
    labels = image.config["config"].get("Labels") or {}
    for name, has, wanted in (
        ("name", image.name, artefact.reference),
        ("digest", image.digest, artefact.digest),
        ("version label", labels.get(_LABEL + "version"), release.version),
        ("revision label", labels.get(_LABEL + "revision"), release.commit),
        ("licence label", labels.get(_LABEL + "licenses"), "Apache-2.0"),
    ):
        if has != wanted:
            yield f"{artefact.file}: its {name} is {has}, not {wanted}; make the release again"


def _chart_problems(
    packed: Path, version: Version, archives: dict[str, str], release: record.Release, log: Log
) -> Iterator[str]:
    about = chart.metadata(packed)
    wanted = versions.semver(version), versions.image_tag(version)
    if (about["version"], about["appVersion"]) != wanted:
        yield f"{packed.name}: version {about['version']}, appVersion {about['appVersion']}; wanted {wanted}"
    try:
        named = chart.images(packed)
    except Refused as error:
        yield f"{packed.name} does not render with default values: {error}"
        return
    for image in sorted(named - archives.keys()):
        repository, _, tag = image.rpartition(":")
        if tag == wanted[1] and repository.rpartition("/")[2] in release.left_out:
            log(f"note: the chart's {image} is not in this release: `make release CUDA=1`, or install with")
            log("      --set image.trainer.repository=trainer-cpu")
        elif "images" not in release.left_out:
            yield f"{packed.name} names {image}, which is in no archive here ({', '.join(sorted(archives))})"
