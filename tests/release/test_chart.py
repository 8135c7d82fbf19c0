"""The packaged chart: another version without touching the tree, always the same bytes, and the images it names."""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from pathlib import Path

import pytest

from tools.release import chart, source
from tools.release.errors import Refused

pytestmark = pytest.mark.usefixtures("helm")


def test_two_versions_of_one_tree(tmp_path: Path) -> None:
    before = (source.ROOT / source.CHART / "Chart.yaml").read_bytes()
    for version, semver in (("0.5.0", "0.5.0"), ("0.5.1rc1", "0.5.1-rc.1")):
        packed = chart.package(version=version, folder=tmp_path / "charts")
        assert packed == tmp_path / "charts" / f"stoker-{semver}.tgz"
        about = chart.metadata(packed)
        assert (about["version"], about["appVersion"]) == (semver, version)
        tags = {image.rpartition(":")[2] for image in chart.images(packed)}
        assert tags == {version}
    assert (source.ROOT / source.CHART / "Chart.yaml").read_bytes() == before


def test_the_default_images_are_the_control_planes_and_a_trainers(tmp_path: Path) -> None:
    named = {image.rpartition("/")[2] for image in chart.images(chart.package("0.5.1", tmp_path))}
    assert named == {"stoker:0.5.1", "trainer-cuda:0.5.1"}


def test_a_version_with_a_local_part_still_makes_names_that_kubernetes_takes(tmp_path: Path) -> None:
    packed = chart.package("0.5.1+dirty", tmp_path)
    assert all(image.endswith(":0.5.1_dirty") for image in chart.images(packed))
    assert "+" not in chart.helm("template", "stoker", str(packed)).partition("kind: CustomResource")[0]


def test_packaged_twice_the_bytes_are_the_same(taken: source.Source, tmp_path: Path) -> None:
    one = chart.package("0.5.1", tmp_path / "one", taken.root, taken.epoch)
    again = tmp_path / "again" / source.CHART
    shutil.copytree(taken.root / source.CHART, again)
    for path in again.rglob("*"):
        path.chmod(0o700)
        os.utime(path, (time.time(), time.time()))
    other = chart.package("0.5.1", tmp_path / "two", tmp_path / "again", taken.epoch)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as packed:
        assert {entry.mtime for entry in packed} == {taken.epoch}


def test_every_file_of_the_chart_is_packed(taken: source.Source, tmp_path: Path) -> None:
    with tarfile.open(chart.package("0.5.1", tmp_path, taken.root, taken.epoch)) as packed:
        names = {entry.name for entry in packed}
    folder = taken.root / source.CHART
    assert names == {f"stoker/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()}


def test_a_chart_that_does_not_render_is_refused(taken: source.Source, tmp_path: Path) -> None:
    shutil.copytree(taken.root / source.CHART, tmp_path / source.CHART)
    (tmp_path / source.CHART / "templates/broken.yaml").write_text("{{ fail `not today` }}\n")
    packed = chart.package("0.5.1", tmp_path / "out", tmp_path, taken.epoch)
    with pytest.raises(Refused, match=r"(?s)helm template: .*not today"):
        chart.images(packed)
