"""Makes one release: takes the source, builds the parts that were asked for, describes each, sums them up."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tools import images
from tools.images import building
from tools.release import chart, oci, record, sbom, versions, wheel
from tools.release.errors import Refused
from tools.release.source import CHART, ROOT, Source, take

Log = Callable[[str], None]
PARTS = ("wheel", "chart", "images")
IMAGES = ("control-plane", "trainer-cpu", "trainer-cuda")
_NO_REGISTRY = "stoker.release"
"""In buildah's storage only."""


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    version: str = ""
    """Instead of the one in the files."""
    parts: tuple[str, ...] = PARTS
    cuda: bool = False
    dirty: bool = False
    out: Path = ROOT / "dist"
    root: Path = ROOT
    """The checkout that is released."""


def make(options: Options, log: Log = lambda line: None) -> Path:
    """The folder `dist/<version>`, new: what a former run left under this version is replaced once all is made.

    Raises: Refused, images.BuildFailed, images.Missing, images.NotEnoughDisk.
    Cost: see docs/release.md.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    for name in _wanted_images(options):  # refused before minutes of work, not after
        images.machine.require_disk(name, images.RECIPES[name].disk_bytes, options.out, building.STORAGE)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=options.out) as aside:
        tree, folder = Path(aside) / "source", Path(aside) / "made"
        tree.mkdir()
        folder.mkdir()
        source = take(tree, version=options.version, allow_dirty=options.dirty, root=options.root)
        log(f"stoker {source.version} of commit {source.commit}")
        made: list[record.Artefact] = []
        for part, build in (("wheel", _wheel), ("chart", _chart), ("images", _images)):
            if part in options.parts:
                made += build(source, folder, Path(aside), options, log)
        left_out = [part for part in PARTS if part not in options.parts]
        if "images" in options.parts:
            left_out += [name for name in IMAGES if name not in {artefact.image for artefact in made}]
        record.write(_record(source, made, left_out), folder)
        folder.chmod(0o755)
        final = options.out / str(source.version)
        if final.exists():
            final.rename(Path(aside) / "former")
        folder.rename(final)
    return final


def _wheel(source: Source, folder: Path, aside: Path, options: Options, log: Log) -> Iterable[record.Artefact]:
    started = time.monotonic()
    for path in wheel.build(source, folder):
        kind = "wheel" if path.suffix == ".whl" else "sdist"
        yield _unpacked(path, kind, source, aside)
    log(f"wheel and sdist in {time.monotonic() - started:.1f} s")


def _chart(source: Source, folder: Path, aside: Path, options: Options, log: Log) -> Iterable[record.Artefact]:
    started = time.monotonic()
    path = chart.package(str(source.version), folder, source.root, source.epoch)
    yield _unpacked(path, "chart", source, aside)
    log(f"chart in {time.monotonic() - started:.1f} s")


def _images(source: Source, folder: Path, aside: Path, options: Options, log: Log) -> Iterable[record.Artefact]:
    for name in _wanted_images(options):
        yield _image(name, source, folder, aside, log)


def _wanted_images(options: Options) -> list[str]:
    return [name for name in IMAGES if "images" in options.parts and (name != "trainer-cuda" or options.cuda)]


def _image(name: str, source: Source, folder: Path, aside: Path, log: Log) -> record.Artefact:
    repository, tag = images.RECIPES[name].repository, versions.image_tag(source.version)
    began = time.monotonic()
    local, layout = f"{_NO_REGISTRY}/{repository}:{tag}", aside / f"{repository}.layout"
    images.build_tagged(name, local, source.root, str(source.version), source.commit, log)
    built = time.monotonic()
    try:
        building.export_layout(local, layout)
    except building.CommandFailed as error:
        raise Refused(f"{name}: {error}") from None
    registry = yaml.safe_load((source.root / CHART / "values.yaml").read_text())["image"]["registry"]
    archive = folder / f"{repository}-{tag}.oci.tar"
    image = oci.pack(layout, archive, f"{registry}/{repository}:{tag}")
    packed = time.monotonic()
    described = sbom.describe(
        sbom.Subject(archive, image.name, str(source.version), layout, is_image=True), source.epoch
    )
    shutil.rmtree(layout)
    times = f"built in {built - began:.1f} s, packed in {packed - built:.1f} s, SBOM {time.monotonic() - packed:.1f} s"
    log(f"{name}: {archive.stat().st_size / 1e6:,.0f} MB; {times}")
    return _artefact(archive, "image", described, image=name, reference=image.name, digest=image.digest)


def _unpacked(path: Path, kind: str, source: Source, aside: Path) -> record.Artefact:
    content = aside / f"{kind}.content"
    wheel.unpack(path, content)
    described = sbom.describe(sbom.Subject(path, "stoker", str(source.version), content), source.epoch)
    shutil.rmtree(content)
    return _artefact(path, kind, described)


def _artefact(path: Path, kind: str, described: Path, **more: str) -> record.Artefact:
    return record.Artefact(
        file=path.name,
        kind=kind,
        bytes=path.stat().st_size,
        sha256=sbom.sha256(path),
        sbom=described.name,
        **more,
    )


def _record(source: Source, made: list[record.Artefact], left_out: list[str]) -> record.Release:
    return record.Release(
        version=str(source.version),
        chart_version=versions.semver(source.version),
        image_tag=versions.image_tag(source.version),
        commit=source.commit,
        committed_at=datetime.fromtimestamp(source.epoch, UTC).isoformat(),
        artefacts=tuple(made),
        left_out=tuple(left_out),
    )
