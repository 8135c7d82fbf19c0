"""A whole release, but for the image builder: made twice it is the same, verification passes, and damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tools.images.machine import require_disk
from tools.release import __main__ as command
from tools.release import making, oci, record, sbom, verifying, wheel
from tools.release.errors import Refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("helm", "syft", "small_images"),
    # A test builds twice at most. Each build has a limit of its own, which says what did not end; it comes first.
    pytest.mark.timeout(2 * wheel.BUILD_S + 120),
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def made(kept: Path, checkout: Path, tmp_path: Path) -> Path:
    """A release of 0.5.1 with its own copy, made once."""
    if not (kept / "0.5.1").exists():
        making.make(making.Options(version="0.5.1", out=kept, root=checkout))
    return Path(shutil.copytree(kept / "0.5.1", tmp_path / "0.5.1"))


def resum(folder: Path) -> None:
    """Sums that fit what lies there: the damage is deeper."""
    record.write(record.read(folder), folder)


def test_the_same_commit_gives_the_same_bytes_and_cuda_one_image_more(
    made: Path, checkout: Path, tmp_path: Path
) -> None:
    again = making.make(making.Options(version="0.5.1", cuda=True, out=tmp_path / "again", root=checkout))
    names, cuda = {path.name for path in made.iterdir()}, "trainer-cuda-0.5.1.oci.tar"
    assert {path.name for path in again.iterdir()} == names | {cuda, f"{cuda}.spdx.json"} and len(names) == 12
    for name in sorted(names - {record.FILE, "SHA256SUMS"}):
        assert (made / name).read_bytes() == (again / name).read_bytes(), name
    release = record.read(again)
    assert [image.image for image in release.of("image")] == ["control-plane", "trainer-cpu", "trainer-cuda"]
    assert release.left_out == ()
    without = release.model_copy(update={"artefacts": release.artefacts[:-1], "left_out": ("trainer-cuda",)})
    assert without == record.read(made)
    for name in (cuda, f"{cuda}.spdx.json"):
        (again / name).unlink()
    record.write(without, again)
    for name in (record.FILE, "SHA256SUMS"):
        assert (made / name).read_bytes() == (again / name).read_bytes(), name


def test_it_is_whole(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["verify", str(made)]) == 0
    said = capsys.readouterr().out
    assert f"{made}: may be published" in said
    assert "trainer-cuda:0.5.1 is not in this release: `make release CUDA=1`" in said
    release = record.read(made)
    assert [artefact.kind for artefact in release.artefacts] == ["sdist", "wheel", "chart", *["image"] * 2]
    assert (release.version, release.left_out) == ("0.5.1", ("trainer-cuda",))
    for artefact in release.of("image"):
        image = oci.read(made / artefact.file)
        assert image.name == artefact.reference and image.name.endswith(":0.5.1")
        assert image.config["config"]["Labels"]["org.opencontainers.image.revision"] == release.commit


def test_a_second_run_replaces_the_first(made: Path, checkout: Path) -> None:
    (made / "old").write_text("")
    making.make(making.Options(version="0.5.1", parts=("chart",), out=made.parent, root=checkout))
    assert {path.name for path in made.iterdir()} == {
        *("release.json", "SHA256SUMS", "stoker-0.5.1.tgz", "stoker-0.5.1.tgz.spdx.json")
    }
    assert [path.name for path in made.parent.iterdir()] == ["0.5.1"]
    assert record.read(made).left_out == ("wheel", "images")
    assert (
        verifying.problems(made)[0] == "no wheel: this release was made with --only; run `make release` for all of it"
    )


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("stoker-0.5.1-py3-none-any.whl", "is not what was released (SHA-256 differs)"),
        ("stoker-0.5.1.tgz", "is in SHA256SUMS but not here"),
        ("more.txt", "is not in SHA256SUMS"),
        ("SHA256SUMS", "is missing"),
    ],
)
def test_a_file_that_changed_came_or_went_is_reported(made: Path, name: str, reported: str) -> None:
    if reported.startswith("is not what"):
        (made / name).write_bytes((made / name).read_bytes() + b"\n")
    elif name == "more.txt":
        (made / name).write_text("")
    else:
        (made / name).unlink()
    (problem,) = verifying.problems(made)
    assert problem.startswith(f"{name} {reported}")


def test_an_sbom_that_lists_too_much_or_too_little_is_reported(made: Path) -> None:
    file = sbom.sbom_file(made / "stoker-0.5.1.oci.tar")
    file.write_text(file.read_text().replace("some-thing@3.1", "some-thing@3.2"))
    resum(made)
    assert [problem.partition("; ")[0] for problem in verifying.problems(made)] == [
        "stoker-0.5.1.oci.tar: Python package some-thing 3.1 is in it, but not in its SBOM",
        "stoker-0.5.1.oci.tar: Python package some-thing 3.2 is in its SBOM, but not in it",
    ]


def test_another_archives_sbom_is_reported(made: Path) -> None:
    file = sbom.sbom_file(made / "stoker-0.5.1.oci.tar")
    shutil.copy(sbom.sbom_file(made / "trainer-cpu-0.5.1.oci.tar"), file)
    resum(made)
    assert "describes another file" in " ".join(verifying.problems(made))


def test_a_chart_of_another_version_is_reported(made: Path, checkout: Path, kept: Path) -> None:
    other = making.make(making.Options(version="0.5.2", parts=("chart",), out=kept.parent / "other", root=checkout))
    shutil.copy(other / "stoker-0.5.2.tgz", made / "stoker-0.5.1.tgz")
    resum(made)
    found = " ".join(verifying.problems(made))
    assert "version 0.5.2, appVersion 0.5.2; wanted ('0.5.1', '0.5.1')" in found
    assert "stoker:0.5.2, which is in no archive here" in found


def test_an_image_of_another_release_is_reported(made: Path) -> None:
    release = json.loads((made / record.FILE).read_text())
    (made / record.FILE).write_text(json.dumps({**release, "commit": "0" * 40}))
    resum(made)
    assert len([problem for problem in verifying.problems(made) if "its revision label is" in problem]) == 2


def test_too_little_disk_is_reported_before_anything_is_built(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making.images.machine, "require_disk", require_disk)  # the real one
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(making.images.machine.shutil, "disk_usage", lambda path: usage._replace(free=29 * 10**9))
    with pytest.raises(making.images.NotEnoughDisk, match=r"trainer-cuda needs 30\.0 GB"):
        making.make(making.Options(version="0.5.1", cuda=True, out=tmp_path, root=checkout))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_release_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match=r"holds no release\.json: name a folder that `make release` made"):
        verifying.problems(tmp_path)
    assert command.main(["verify", str(tmp_path)]) == 1
    assert "release: " in capsys.readouterr().err
